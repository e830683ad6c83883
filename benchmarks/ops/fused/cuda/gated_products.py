"""Times gate and second SO(2) map in one kernel beside the kernel of the gate and the products that it replaces.

python benchmarks/ops/fused/cuda/gated_products.py [copper | random]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent.parent))

import torch
from ops import measure
from ops.fused import problem
from torch import Tensor

from edgewise.ops import EdgeSegment, SO2Weights, reference
from edgewise.ops.fused.cuda.gated_products import gated_products, matrix_images, missing
from edgewise.ops.fused.gate import gate
from edgewise.ops.fused.row_format import RowFormat
from edgewise.ops.fused.so2_linear import so2_linear, so2_map


def weights(given: problem.FusedProblem) -> SO2Weights:
    """Return the weights of a second map, with the blocks [[A, -B], [B, A]] of orders above 0."""
    c, blocks = given.channels, []
    for m, n_degrees in enumerate(given.shape.sizes):
        n = n_degrees * c
        a, b = (
            given.random(n, n, seed=10 * m + k, dtype=torch.float32) * (n * min(2, m + 1)) ** -0.5 for k in range(2)
        )
        blocks.append(a if m == 0 else torch.cat([torch.cat([a, -b], dim=1), torch.cat([b, a], dim=1)]))
    return SO2Weights(tuple(blocks), torch.zeros(given.shape.sizes[0] * c, device=given.device))


def rows(graph: str, row_format: RowFormat, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and format, none where there is no such kernel; tests give a problem of their own."""
    given = given or problem.make(graph, row_format)
    if missing(given.shape, row_format, given.device) is not None:
        return []
    n, c, lmax = given.n_coefficients, given.channels, problem.LMAX
    before = given.rows(n + lmax)
    bias = given.random((2 * lmax + 1) * c, seed=3, dtype=torch.float32)
    of_map, segments = weights(given), [EdgeSegment(0, given.n_edges, 0)]
    matrices = so2_map(of_map, row_format)
    images = matrix_images(matrices)

    def ours() -> list[Tensor]:
        return [gated_products(before, bias, images, given.edges, given.empty(given.n_edges, n * c))]

    def replaced() -> list[Tensor]:
        gated = gate(before, bias, given.edges, given.shape, given.operands(n), row_format=row_format)
        return [so2_linear(gated, [matrices], segments)]

    blocks = [block.double() for block in given.split(before, c, lmax * c)]
    blocks[0] = blocks[0] + bias.double()
    # Of the very same matrices, so that their rounding is no error.
    exact = SO2Weights(tuple(block.double() for block in matrices.blocks), of_map.bias.double())
    expected = torch.cat(reference.so2_linear(reference.gate(blocks, lmax, c), [exact], segments), dim=1)
    named = {"op": "gate and second SO(2) map in CUDA C++", "rows": row_format.name}
    return [named | measure.compare("forward", ours, replaced, bound=problem.BOUNDS[row_format], exact=[expected])]


if __name__ == "__main__":
    problem.main(rows, __doc__)
