"""Times gathering and rotating: against plain PyTorch, with gradients kept per edge, and with a fixed number of programs.

python benchmarks/ops/gather_rotate.py [copper | random]
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
from edgewise.ops.gather_rotate import gather_rotate, gather_rotate_backward
from edgewise.ops.launch import MAX_PROGRAMS
from edgewise.ops.packed_rotation import as_packed


def rows(graph: str) -> list[dict[str, Any]]:
    """Return the rows of one graph."""
    given = edge_problem.make(graph)
    exact = given.to(torch.float64)
    inputs = (given.nodes, given.edge_index, given.packed, given.radial)
    gradients = given.blocks(2 * CHANNELS)

    def forward(limit: int = MAX_PROGRAMS) -> list[Tensor]:
        return gather_rotate(*inputs, edge_problem.LMAX, max_programs=limit)

    def plain() -> list[Tensor]:
        return reference.gather_rotate(given.nodes, given.edge_index, given.dense, given.radial, edge_problem.LMAX)

    def backward(limit: int = MAX_PROGRAMS, *, to_atoms: bool = True) -> tuple[Tensor, ...]:
        return gather_rotate_backward(*gradients, *inputs, to_atoms, limit)

    leaves = [item.requires_grad_() for item in (exact.nodes, exact.dense, exact.radial)]
    right = reference.gather_rotate(leaves[0], exact.edge_index, leaves[1], leaves[2], edge_problem.LMAX)
    doubled = [item.double() for item in gradients]
    node_gradient, dense_gradient, radial_gradient = torch.autograd.grad(right, leaves, doubled)
    # A packed rotation is the dense one's entries that are not zero by its making, and so is its gradient.
    right_backward = [node_gradient, as_packed(dense_gradient), radial_gradient]
    right = [item.detach() for item in right]
    compare = partial(measure.compare, bound=measure.FLOAT32_BOUND)
    found = [
        compare("forward against plain PyTorch", forward, plain, exact=right),
        compare("forward, programs follow edges", forward, lambda: forward(FIXED_PROGRAMS), exact=right),
        compare("backward, programs follow edges", backward, lambda: backward(FIXED_PROGRAMS), exact=right_backward),
        compare("backward straight to atoms", backward, lambda: backward(to_atoms=False), exact=right_backward),
    ]
    a, b = backward(), backward(to_atoms=False)
    found[-1]["rotation_and_radial_gradients_bitwise"] = torch.equal(a[1], b[1]) and torch.equal(a[2], b[2])
    return [{"op": "gather_rotate", "graph": graph, **row} for row in found]


if __name__ == "__main__":
    for row in rows(edge_problem.chosen_graph(__doc__)):
        print(json.dumps(row))
