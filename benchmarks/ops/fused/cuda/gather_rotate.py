"""Times gathering and rotating in CUDA C++, and the adjoint with its sums, beside the kernels of Triton.

python benchmarks/ops/fused/cuda/gather_rotate.py [copper | random]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent.parent))

import torch
from ops import measure
from ops.fused import problem
from torch import Tensor

from edgewise.ops.fused.gather_rotate import gather_rotate, gather_rotate_adjoint
from edgewise.ops.fused.row_format import RowFormat
from edgewise.ops.reference import edge_steps

N_SLICES = 1
"""Slices of an atom's edges for the kernels in CUDA C++; those of Triton have `problem.N_SLICES`."""


def rows(graph: str, row_format: RowFormat, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and format; tests give a problem of their own."""
    given = given or problem.make(graph, row_format)
    nodes, n, c = given.nodes(), given.n_coefficients, given.channels
    radial, slope = (given.random(given.n_edges, 2 * c * sum(given.shape.sizes), seed=seed) for seed in (3, 4))
    gradient = given.rows(2 * n, seed=5)
    tangents = torch.zeros(2 * (problem.LMAX + 1), given.n_edges, 3, device=given.device)

    def forward(*, in_cuda: bool) -> list[Tensor]:
        out = given.operands(2 * n)
        inputs = nodes, given.edges, radial, given.shape, out
        return [gather_rotate(*inputs, row_format=row_format, in_cuda=in_cuda)]

    def values(found: Sequence[Tensor]) -> list[Tensor]:
        return [given.values(found[0], 2 * c)]

    def adjoint(n_slices: int, *, in_cuda: bool) -> list[Tensor]:
        parts = given.empty(n_slices, given.n_atoms, n, c, dtype=torch.float32)
        inputs = gradient, nodes, given.edges, radial, slope, given.shape
        return [gather_rotate_adjoint(*inputs, parts, tangents.zero_(), in_cuda=in_cuda), tangents.sum(0)]

    exact = nodes.double(), given.order, given.geometry(torch.float64)
    factors = radial.double(), slope.double()
    blocks = [block.double() for block in given.split(gradient, 2 * c)]
    found = edge_steps.gather_rotate(*exact, factors[0], given.shape)
    named = {"op": "gather_rotate in CUDA C++", "rows": row_format.name}
    bound = problem.BOUNDS[row_format]
    return [
        named
        | measure.compare(
            "forward",
            lambda: forward(in_cuda=True),
            lambda: forward(in_cuda=False),
            bound=bound,
            exact=[torch.cat(found, dim=1)],
            read=values,
            read_replaced=values,
        ),
        named
        | measure.compare(
            "adjoint and sums",
            lambda: adjoint(N_SLICES, in_cuda=True),
            lambda: adjoint(problem.N_SLICES, in_cuda=False),
            bound=bound,
            exact=edge_steps.gather_rotate_adjoint(blocks, *exact, *factors, given.shape),
        ),
    ]


if __name__ == "__main__":
    problem.main(rows, __doc__)
