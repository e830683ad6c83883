"""Times gathering and rotating of mode fused, and the adjoint with its sums, beside plain PyTorch.

python benchmarks/ops/fused/gather_rotate.py [copper | random]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from ops.fused import problem
from torch import Tensor

from edgewise.ops.fused.gather_rotate import gather_rotate, gather_rotate_adjoint
from edgewise.ops.fused.row_format import RowFormat
from edgewise.ops.reference import edge_steps


def rows(graph: str, row_format: RowFormat, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and format; tests give a problem of their own."""
    given = given or problem.make(graph, row_format)
    nodes, n, c = given.nodes(), given.n_coefficients, given.channels
    radial, slope = (given.random(given.n_edges, 2 * c * sum(given.shape.sizes), seed=seed) for seed in (3, 4))
    gradient = given.rows(2 * n, seed=5)

    def forward() -> list[Tensor]:
        return [
            gather_rotate(nodes, given.edges, radial, given.shape, given.operands(2 * n), row_format=given.row_format)
        ]

    def plain(to: torch.dtype) -> list[Tensor]:
        found = edge_steps.gather_rotate(nodes.to(to), given.order, given.geometry(to), radial.to(to), given.shape)
        return [torch.cat(found, dim=1)]

    def adjoint() -> list[Tensor]:
        parts = given.empty(problem.N_SLICES, given.n_atoms, n, c, dtype=torch.float32)
        tangents = torch.zeros(2 * (problem.LMAX + 1), given.n_edges, 3, device=given.device)
        inputs = gradient, nodes, given.edges, radial, slope, given.shape
        return [gather_rotate_adjoint(*inputs, parts, tangents), tangents.sum(0)]

    def plain_adjoint(to: torch.dtype) -> tuple[Tensor, Tensor]:
        blocks = [block.to(to) for block in given.split(gradient, 2 * c)]
        factors = radial.to(to), slope.to(to)
        return edge_steps.gather_rotate_adjoint(
            blocks, nodes.to(to), given.order, given.geometry(to), *factors, given.shape
        )

    return [
        problem.compare(
            given, "gather_rotate", "forward", forward, plain, lambda found: [given.values(found[0], 2 * c)]
        ),
        problem.compare(given, "gather_rotate", "adjoint and sums", adjoint, plain_adjoint),
    ]


if __name__ == "__main__":
    problem.main(rows, __doc__)
