"""Times rotating back and summing in CUDA C++, and the adjoint, beside the kernels of Triton.

python benchmarks/ops/fused/cuda/rotate_sum.py [copper | random]
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

from edgewise.ops.fused.rotate_sum import rotate_sum, rotate_sum_adjoint
from edgewise.ops.fused.row_format import RowFormat
from edgewise.ops.reference import edge_steps

N_SLICES = 1
"""Slices of an atom's edges for the kernels in CUDA C++; those of Triton have `problem.N_SLICES`."""


def rows(graph: str, row_format: RowFormat, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and format; tests give a problem of their own."""
    given = given or problem.make(graph, row_format)
    gradient, n, c = given.nodes(), given.n_coefficients, given.channels
    features = given.rows(n)
    bias = torch.zeros((problem.LMAX + 1) * c, device=given.device)
    tangents = torch.zeros(problem.LMAX + 1, given.n_edges, 3, device=given.device)

    def forward(n_slices: int, *, in_cuda: bool) -> list[Tensor]:
        parts = given.empty(n_slices, given.n_atoms, n, c, dtype=torch.float32)
        found = rotate_sum(features, bias, given.edges, given.shape, parts, in_cuda=in_cuda)
        return [found[0] if n_slices == 1 else found.sum(0)]

    def adjoint(*, in_cuda: bool) -> list[Tensor]:
        out = given.operands(n)
        inputs = gradient, features, bias, given.edges, given.shape, out, tangents.zero_()
        rotate_sum_adjoint(*inputs, row_format=row_format, in_cuda=in_cuda)
        return [out, tangents.sum(0)]

    def values(found: Sequence[Tensor]) -> list[Tensor]:
        return [given.values(found[0], c), found[1]]

    blocks, geometry = [block.double() for block in given.split(features, c)], given.geometry(torch.float64)
    summed = edge_steps.rotate_sum(blocks, given.order, geometry, c)
    found, found_tangents = edge_steps.rotate_sum_adjoint(gradient.double(), blocks, given.order, geometry, given.shape)
    named = {"op": "rotate_sum in CUDA C++", "rows": row_format.name}
    bound = problem.BOUNDS[row_format]
    return [
        named
        | measure.compare(
            "forward",
            lambda: forward(N_SLICES, in_cuda=True),
            lambda: forward(problem.N_SLICES, in_cuda=False),
            bound=bound,
            exact=[summed],
        ),
        named
        | measure.compare(
            "adjoint",
            lambda: adjoint(in_cuda=True),
            lambda: adjoint(in_cuda=False),
            bound=bound,
            exact=[torch.cat(found, dim=1), found_tangents],
            read=values,
            read_replaced=values,
        ),
    ]


if __name__ == "__main__":
    problem.main(rows, __doc__)
