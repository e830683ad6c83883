"""SO(2) maps on rows, and their adjoint, against the reference on blocks; their bias is left to what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from edgewise.ops import EdgeSegment, SO2Weights, reference
from edgewise.ops.fused.row_format import FLOAT16, FLOAT32, FLOAT64, SPLIT, RowFormat
from edgewise.ops.fused.so2_linear import so2_linear, so2_linear_adjoint, so2_map
from edgewise.ops.reference import edge_steps
from tests import tolerances
from tests.ops.fused.problems import SHAPES, SIZES, Problem, joined

N_OUT = 5


@pytest.mark.parametrize(("lmax", "mmax"), SHAPES)
@pytest.mark.parametrize(("n_edges", "channels"), SIZES)
@pytest.mark.parametrize("two_mixtures", [False, True])
@pytest.mark.parametrize("row_format", [FLOAT64, FLOAT32, SPLIT], ids=lambda item: item.name)
def test_map_and_adjoint(
    lmax: int, mmax: int, n_edges: int, channels: int, two_mixtures: bool, row_format: RowFormat
) -> None:
    given = Problem(lmax, mmax, n_edges, channels)
    rows = given.rows(given.n_edge_coefficients * channels)[:n_edges]
    blocks = given.split(rows, channels)
    weights = [
        SO2Weights(tuple(given.random(N_OUT, block.shape[1]) for block in blocks), given.random(N_OUT))
        for _ in range(2)
    ]
    middle = n_edges // 3
    segments = [EdgeSegment(0, n_edges, 1)]
    if two_mixtures:
        segments = [EdgeSegment(0, middle, 1), EdgeSegment(middle, n_edges, 0)]
    maps = [so2_map(item, row_format) for item in weights]
    without_bias = [replace(item, bias=torch.zeros_like(item.bias)) for item in weights]

    def operands(given_blocks: Sequence[Tensor]) -> Tensor:
        return joined([row_format.operand(block.to(row_format.results)) for block in given_blocks])

    found = so2_linear(operands(blocks), maps, segments)
    assert found.dtype == row_format.results
    expected = joined(reference.so2_linear(blocks, without_bias, segments))
    torch.testing.assert_close(found.double(), expected, **tolerances.FUSED)
    room = torch.full_like(found, torch.nan)
    assert so2_linear(operands(blocks), maps, segments, out=room) is room
    assert torch.equal(room, found)
    gradients = given.random(*found.shape).split(N_OUT, dim=1)
    expected = joined(edge_steps.so2_linear_adjoint(gradients, weights, segments))
    found = so2_linear_adjoint(operands(gradients), maps, segments)
    torch.testing.assert_close(found.double(), expected, **tolerances.FUSED)
    room = torch.full_like(found, torch.nan)
    assert so2_linear_adjoint(operands(gradients), maps, segments, out=room) is room
    assert torch.equal(room, found)


def test_operands_are_rounded_to_nearest() -> None:
    given = Problem(1, 1, 3, 4)
    weights = SO2Weights((given.random(N_OUT, 8), given.random(N_OUT, 8)), given.random(N_OUT))
    made = so2_map(weights, FLOAT16)
    for block, transposed, exact in zip(made.blocks, made.transposed, weights.blocks, strict=True):
        assert torch.equal(block, exact.half())
        assert torch.equal(transposed, exact.half().T)
        assert transposed.is_contiguous()
    assert made.bias is weights.bias
