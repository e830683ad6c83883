"""Times rotating back and summing: against plain PyTorch, with messages kept per edge, with a fixed number of programs.

python benchmarks/ops/rotate_scatter.py [copper | random]
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from ops import edge_problem, measure
from sizes import CHANNELS
from torch import Tensor

from edgewise.ops import reference
from edgewise.ops.fast import FIXED_PROGRAMS
from edgewise.ops.launch import MAX_PROGRAMS
from edgewise.ops.packed_rotation import as_packed
from edgewise.ops.rotate_scatter import rotate_scatter, rotate_scatter_backward


def rows(graph: str) -> list[dict[str, Any]]:
    """Return the rows of one graph."""
    given = edge_problem.make(graph)
    exact = given.to(torch.float64)
    blocks, channels = given.blocks(), CHANNELS
    gradient = torch.randn(given.nodes.shape, generator=torch.Generator("cuda").manual_seed(2), device="cuda")

    def forward(limit: int = MAX_PROGRAMS, *, accumulate: bool = True) -> list[Tensor]:
        arguments = (blocks, given.edge_index, given.packed, given.n_atoms, channels)
        return [rotate_scatter(*arguments, accumulate=accumulate, max_programs=limit)]

    def plain() -> list[Tensor]:
        return [reference.rotate_scatter(blocks, given.edge_index, given.dense, given.n_atoms, channels)]

    def backward(limit: int = MAX_PROGRAMS, *, accumulate: bool = True) -> tuple[Tensor, ...]:
        return rotate_scatter_backward(gradient, *blocks, given.edge_index, given.packed, accumulate, limit)

    leaves = [item.double().requires_grad_() for item in (*blocks, exact.dense)]
    summed = reference.rotate_scatter(leaves[:-1], exact.edge_index, leaves[-1], given.n_atoms, channels)
    *block_gradients, dense_gradient = torch.autograd.grad(summed, leaves, gradient.double())
    # A packed rotation is the dense one's entries that are not zero by its making, and so is its gradient.
    right, right_backward = [summed.detach()], [*block_gradients, as_packed(dense_gradient)]
    compare = partial(measure.compare, bound=measure.FLOAT32_BOUND)
    found = [
        compare("forward against plain PyTorch", forward, plain, exact=right),
        compare("forward, programs follow edges", forward, lambda: forward(FIXED_PROGRAMS), exact=right),
        compare("backward, programs follow edges", backward, lambda: backward(FIXED_PROGRAMS), exact=right_backward),
        compare("forward, summed in the kernel", forward, lambda: forward(accumulate=False), exact=right),
        compare("backward, gathered in the kernel", backward, lambda: backward(accumulate=False), exact=right_backward),
    ]
    return [{"op": "rotate_scatter", "graph": graph, **row} for row in found]


if __name__ == "__main__":
    for row in rows(edge_problem.chosen_graph(__doc__)):
        print(json.dumps(row))
