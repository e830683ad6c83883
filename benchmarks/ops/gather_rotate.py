"""Times gathering and rotating: against plain PyTorch, with gradients kept per edge, and with a fixed number of programs.

python benchmarks/ops/gather_rotate.py [copper | random]
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
from edgewise.ops.gather_rotate import gather_rotate, gather_rotate_backward
from edgewise.ops.launch import MAX_PROGRAMS


def rows(graph: str) -> list[dict[str, Any]]:
    """Return the rows of one graph."""
    given = edge_problem.make(graph)
    exact = given.to(torch.float64)
    inputs = (given.nodes, given.edge_index, given.packed, given.radial)
    gradients = given.blocks(2 * edge_problem.CHANNELS)

    def forward(limit: int = MAX_PROGRAMS) -> list[Tensor]:
        return gather_rotate(*inputs, 2, max_programs=limit)

    def plain() -> list[Tensor]:
        return reference.gather_rotate(given.nodes, given.edge_index, given.dense, given.radial, 2)

    def backward(limit: int = MAX_PROGRAMS, *, to_atoms: bool = True) -> tuple[Tensor, ...]:
        return gather_rotate_backward(*gradients, *inputs, to_atoms, limit)

    right = reference.gather_rotate(exact.nodes, exact.edge_index, exact.dense, exact.radial, 2)
    right_backward = gather_rotate_backward(
        *(item.double() for item in gradients),
        exact.nodes,
        exact.edge_index,
        exact.packed,
        exact.radial,
        False,
        MAX_PROGRAMS,
    )
    found = [
        measure.compare("forward against plain PyTorch", forward, plain, right),
        measure.compare("forward, programs follow edges", forward, lambda: forward(FIXED_PROGRAMS), right),
        measure.compare("backward, programs follow edges", backward, lambda: backward(FIXED_PROGRAMS), right_backward),
        measure.compare("backward straight to atoms", backward, lambda: backward(to_atoms=False), right_backward),
    ]
    a, b = backward(), backward(to_atoms=False)
    found[-1]["rotation_and_radial_gradients_bitwise"] = torch.equal(a[1], b[1]) and torch.equal(a[2], b[2])
    return [{"op": "gather_rotate", "graph": graph, **row} for row in found]


if __name__ == "__main__":
    for row in rows(sys.argv[1] if len(sys.argv) > 1 else "copper"):
        print(json.dumps(row))
