"""Times rotating back and summing: against plain PyTorch, with messages kept per edge, with a fixed number of programs.

python benchmarks/ops/rotate_scatter.py [copper | random]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from ops import edge_problem, measure
from torch import Tensor

from edgewise.ops import reference
from edgewise.ops.fast import FIXED_PROGRAMS
from edgewise.ops.launch import MAX_PROGRAMS
from edgewise.ops.rotate_scatter import rotate_scatter, rotate_scatter_backward


def rows(graph: str) -> list[dict[str, Any]]:
    """Return the rows of one graph."""
    given = edge_problem.make(graph)
    exact = given.to(torch.float64)
    blocks, channels = given.blocks(), edge_problem.CHANNELS
    gradient = torch.randn(given.nodes.shape, generator=torch.Generator("cuda").manual_seed(2), device="cuda")

    def forward(limit: int = MAX_PROGRAMS, *, accumulate: bool = True) -> list[Tensor]:
        arguments = (blocks, given.edge_index, given.packed, given.n_atoms, channels)
        return [rotate_scatter(*arguments, accumulate=accumulate, max_programs=limit)]

    def plain() -> list[Tensor]:
        return [reference.rotate_scatter(blocks, given.edge_index, given.dense, given.n_atoms, channels)]

    def backward(limit: int = MAX_PROGRAMS, *, accumulate: bool = True) -> tuple[Tensor, ...]:
        return rotate_scatter_backward(gradient, *blocks, given.edge_index, given.packed, accumulate, limit)

    doubled = [block.double() for block in blocks]
    right = [reference.rotate_scatter(doubled, exact.edge_index, exact.dense, given.n_atoms, channels)]
    right_backward = rotate_scatter_backward(
        gradient.double(), *doubled, exact.edge_index, exact.packed, False, MAX_PROGRAMS
    )
    found = [
        measure.compare("forward against plain PyTorch", forward, plain, right),
        measure.compare("forward, programs follow edges", forward, lambda: forward(FIXED_PROGRAMS), right),
        measure.compare("backward, programs follow edges", backward, lambda: backward(FIXED_PROGRAMS), right_backward),
        measure.compare("forward, summed in the kernel", forward, lambda: forward(accumulate=False), right),
        measure.compare(
            "backward, gathered in the kernel", backward, lambda: backward(accumulate=False), right_backward
        ),
    ]
    return [{"op": "rotate_scatter", "graph": graph, **row} for row in found]


if __name__ == "__main__":
    for row in rows(sys.argv[1] if len(sys.argv) > 1 else "copper"):
        print(json.dumps(row))
