"""Times rotating back and summing of mode fused, and the adjoint, beside plain PyTorch.

python benchmarks/ops/fused/rotate_sum.py [copper | random]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from ops.fused import problem
from torch import Tensor

from edgewise.ops.fused.rotate_sum import rotate_sum, rotate_sum_adjoint
from edgewise.ops.fused.row_format import RowFormat
from edgewise.ops.reference import edge_steps


def rows(graph: str, row_format: RowFormat, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and format; tests give a problem of their own."""
    given = given or problem.make(graph, row_format)
    gradient, n, c = given.nodes(), given.n_coefficients, given.channels
    features = given.rows(n)
    bias = torch.zeros((problem.LMAX + 1) * c, device=given.device)

    def forward() -> list[Tensor]:
        parts = given.empty(problem.N_SLICES, given.n_atoms, n, c, dtype=torch.float32)
        return [rotate_sum(features, bias, given.edges, given.shape, parts).sum(0)]

    def plain(to: torch.dtype) -> list[Tensor]:
        return [edge_steps.rotate_sum([features.to(to)], given.order, given.geometry(to), c)]

    def adjoint() -> list[Tensor]:
        tangents, out = torch.zeros(problem.LMAX + 1, given.n_edges, 3, device=given.device), given.operands(n)
        rotate_sum_adjoint(
            gradient, features, bias, given.edges, given.shape, out, tangents, row_format=given.row_format
        )
        return [out, tangents.sum(0)]

    def plain_adjoint(to: torch.dtype) -> list[Tensor]:
        blocks = [block.to(to) for block in given.split(features, c)]
        found, tangents = edge_steps.rotate_sum_adjoint(
            gradient.to(to), blocks, given.order, given.geometry(to), given.shape
        )
        return [torch.cat(found, dim=1), tangents]

    return [
        problem.compare(given, "rotate_sum", "forward", forward, plain),
        problem.compare(
            given, "rotate_sum", "adjoint", adjoint, plain_adjoint, lambda found: [given.values(found[0], c), found[1]]
        ),
    ]


if __name__ == "__main__":
    problem.main(rows, __doc__)
