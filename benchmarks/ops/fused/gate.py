"""Times the gate of mode fused, and its adjoint, beside plain PyTorch.

python benchmarks/ops/fused/gate.py [copper | random]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from ops.fused import problem
from torch import Tensor

from edgewise.ops import reference
from edgewise.ops.fused.gate import gate, gate_adjoint
from edgewise.ops.fused.row_format import RowFormat
from edgewise.ops.reference import edge_steps


def rows(graph: str, row_format: RowFormat, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and format; tests give a problem of their own."""
    given = given or problem.make(graph, row_format)
    n, c, lmax = given.n_coefficients, given.channels, problem.LMAX
    before, gradient = given.rows(n + lmax), given.rows(n, seed=2)
    bias = torch.zeros((2 * lmax + 1) * c, device=given.device)

    def blocks(to: torch.dtype) -> list[Tensor]:
        return [block.to(to) for block in given.split(before, c, lmax * c)]

    def forward() -> list[Tensor]:
        return [gate(before, bias, given.edges, given.shape, given.operands(n), row_format=given.row_format)]

    def plain(to: torch.dtype) -> list[Tensor]:
        return [torch.cat(reference.gate(blocks(to), lmax, c), dim=1)]

    def adjoint() -> list[Tensor]:
        return [
            gate_adjoint(
                gradient, before, bias, given.edges, given.shape, given.operands(n + lmax), row_format=given.row_format
            )
        ]

    def plain_adjoint(to: torch.dtype) -> list[Tensor]:
        gradients = [block.to(to) for block in given.split(gradient, c)]
        return [torch.cat(edge_steps.gate_adjoint(gradients, blocks(to), given.shape), dim=1)]

    return [
        problem.compare(given, "gate", "forward", forward, plain, lambda found: [given.values(found[0], c)]),
        problem.compare(
            given, "gate", "adjoint", adjoint, plain_adjoint, lambda found: [given.values(found[0], c, lmax * c)]
        ),
    ]


if __name__ == "__main__":
    problem.main(rows, __doc__)
