"""Times the gate kernel against plain PyTorch, forward and backward, and with a fixed number of programs.

python benchmarks/ops/gate.py
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
from edgewise.ops.gate import gate, gate_backward
from edgewise.ops.launch import MAX_PROGRAMS

HIDDEN = 128


def rows(graph: str) -> list[dict[str, Any]]:
    """Return the rows; the gate sees edges one by one, so that the graph matters for their number only."""
    given = edge_problem.make(graph)
    blocks, gradients = given.blocks(extra=2), given.blocks(seed=3)

    def forward(limit: int = MAX_PROGRAMS) -> list[Tensor]:
        return gate(blocks, 2, HIDDEN, max_programs=limit)

    def plain() -> list[Tensor]:
        return reference.gate(blocks, 2, HIDDEN)

    def backward(limit: int = MAX_PROGRAMS) -> tuple[Tensor, ...]:
        return gate_backward(*blocks, *gradients, limit)

    leaves = [block.clone().requires_grad_() for block in blocks]
    outputs = reference.gate(leaves, 2, HIDDEN)

    def plain_backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(outputs, leaves, gradients, retain_graph=True)

    doubled = [block.double().requires_grad_() for block in blocks]
    right = reference.gate(doubled, 2, HIDDEN)
    right_backward = torch.autograd.grad(right, doubled, [item.double() for item in gradients])
    found = [
        measure.compare("forward, one kernel", forward, plain, [item.detach() for item in right]),
        measure.compare("backward, one kernel", backward, plain_backward, right_backward),
        measure.compare("forward, programs follow edges", forward, lambda: forward(FIXED_PROGRAMS)),
        measure.compare("backward, programs follow edges", backward, lambda: backward(FIXED_PROGRAMS)),
    ]
    return [{"op": "gate", "graph": graph, **row} for row in found]


if __name__ == "__main__":
    for row in rows(sys.argv[1] if len(sys.argv) > 1 else "copper"):
        print(json.dumps(row))
