"""Times the gate kernel against plain PyTorch, forward and backward, and with a fixed number of programs.

python benchmarks/ops/gate.py [copper | random]
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
from edgewise.ops.gate import gate, gate_backward
from edgewise.ops.launch import MAX_PROGRAMS


def rows(graph: str) -> list[dict[str, Any]]:
    """Return the rows; the gate sees edges one by one, so that the graph matters for their number only."""
    given = edge_problem.make(graph)
    blocks, gradients = given.blocks(extra=edge_problem.LMAX), given.blocks(seed=3)

    def forward(limit: int = MAX_PROGRAMS) -> list[Tensor]:
        return gate(blocks, edge_problem.LMAX, CHANNELS, max_programs=limit)

    def plain() -> list[Tensor]:
        return reference.gate(blocks, edge_problem.LMAX, CHANNELS)

    def backward(limit: int = MAX_PROGRAMS) -> tuple[Tensor, ...]:
        return gate_backward(*blocks, *gradients, limit)

    leaves = [block.clone().requires_grad_() for block in blocks]
    outputs = reference.gate(leaves, edge_problem.LMAX, CHANNELS)

    def plain_backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(outputs, leaves, gradients, retain_graph=True)

    doubled = [block.double().requires_grad_() for block in blocks]
    right = reference.gate(doubled, edge_problem.LMAX, CHANNELS)
    right_backward = torch.autograd.grad(right, doubled, [item.double() for item in gradients])
    right = [item.detach() for item in right]
    compare = partial(measure.compare, bound=measure.FLOAT32_BOUND)
    found = [
        compare("forward, one kernel", forward, plain, exact=right),
        compare("backward, one kernel", backward, plain_backward, exact=right_backward),
        compare("forward, programs follow edges", forward, lambda: forward(FIXED_PROGRAMS), exact=right),
        compare("backward, programs follow edges", backward, lambda: backward(FIXED_PROGRAMS), exact=right_backward),
    ]
    return [{"op": "gate", "graph": graph, **row} for row in found]


if __name__ == "__main__":
    for row in rows(edge_problem.chosen_graph(__doc__)):
        print(json.dumps(row))
