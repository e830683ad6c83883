"""Formats of rows: what rounding leaves, products as good as their format says, and last layers with their biases."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from edgewise.ops.fused.row_format import (
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FORMATS,
    SPLIT,
    TF32,
    RowFormat,
    format_of,
    high_and_low,
    plain_format,
    to_tf32,
)
from tests.ops.kernel_problems import DEVICE

EVERY = pytest.mark.parametrize("row_format", FORMATS.values(), ids=FORMATS)

ROUNDING = {"float16": 2.0**-11, "split": 2.0**-22, "tf32": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
"""Largest relative error of an operand."""

SCALES = [1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0]
"""Sizes of rows: forward values are 1 to 100, gradients carry a power of two that brings them there."""


def random(*shape: int, seed: int = 0) -> Tensor:
    """Return normal numbers that float32 can hold, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).double().to(DEVICE)


def value(row_format: RowFormat, operand: Tensor) -> Tensor:
    """Return the numbers that an operand stands for."""
    if row_format is not SPLIT:
        return operand.double()
    high, low = operand.double().chunk(2, dim=-1)
    return high + low / 2048


def product(row_format: RowFormat, rows: Tensor, matrix: Tensor) -> Tensor:
    """Return the product in a format, in float64; the results stand between other columns."""
    out = torch.full((len(rows), len(matrix) + 2), torch.nan, dtype=row_format.results, device=DEVICE)
    row_format.product(
        row_format.operand(rows.to(row_format.results)), row_format.matrix(matrix.to(row_format.results)), out[:, 1:-1]
    )
    assert out[:, [0, -1]].isnan().all()
    return out[:, 1:-1].double()


def relative(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


@EVERY
def test_operands_are_rounded_to_nearest(row_format: RowFormat) -> None:
    x = random(50, 20)
    operand = row_format.operand(x.to(row_format.results))
    assert operand.dtype == row_format.operands
    assert operand.shape == (50, 20 * row_format.parts)
    error = (value(row_format, operand) - x).abs() / x.abs()
    assert error.max() <= ROUNDING[row_format.name]
    assert error.max() > 0.3 * ROUNDING[row_format.name] or row_format.results.itemsize >= 4


def test_small_numbers_in_two_parts() -> None:
    """Where high has fewer bits or none, low has those that it lacks: the error is 2^-22 of x, at least 2^-36."""
    x = 2.0 ** torch.linspace(-40, 15, 5000, dtype=torch.float64, device=DEVICE)
    high, low = (part.double() for part in high_and_low(x.float()))
    error = (high + low / 2048 - x.float().double()).abs()
    assert (error <= torch.clamp(x * 2.0**-22, min=2.0**-36)).all()
    assert low.abs().max() <= x.max() / 2, "low parts have no larger range than high ones"


def test_tf32_rounds_to_nearest_and_keeps_what_is_no_number() -> None:
    one = 1 + torch.arange(8, dtype=torch.float64) * 2.0**-12
    expected = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2], dtype=torch.float64) * 2.0**-10 + 1
    assert torch.equal(to_tf32(one).double(), expected), "ties go to the even neighbour"
    assert torch.equal(to_tf32(-one), -to_tf32(one))
    bits = torch.tensor([0x7FFFFFFF, -1, 0x7FC00000, 0x7F800001], dtype=torch.int32)
    assert to_tf32(bits.view(torch.float32)).isnan().all()
    infinite = torch.tensor([torch.inf, -torch.inf])
    assert torch.equal(to_tf32(infinite), infinite)
    assert torch.equal(to_tf32(torch.tensor([0.0, 2.0**-140])), torch.tensor([0.0, 0.0]))


@pytest.mark.parametrize("n_in", [8, 128, 1024])
@pytest.mark.parametrize("scale", SCALES)
def test_split_products_are_as_good_as_float32(n_in: int, scale: float) -> None:
    rows, matrix = random(300, n_in) * scale, random(64, n_in, seed=1) * n_in**-0.5
    rows, matrix = rows.float().double(), matrix.float().double()
    exact = rows @ matrix.T
    errors = {item: relative(product(item, rows, matrix), exact) for item in (FLOAT32, SPLIT)}
    assert errors[SPLIT] <= 2 * errors[FLOAT32]


def test_split_products_of_values_of_all_sizes_in_one_row() -> None:
    """Errors are small against the largest values of a row, whatever the others are."""
    sizes = 10.0 ** torch.linspace(-7, 2, 128, dtype=torch.float64, device=DEVICE)
    rows, matrix = (random(300, 128) * sizes).float().double(), random(64, 128, seed=1).float().double()
    exact = rows @ matrix.T
    assert relative(product(SPLIT, rows, matrix), exact) <= 2 * relative(product(FLOAT32, rows, matrix), exact)


def test_what_float16_cannot_hold_is_no_number() -> None:
    """So that a caller sees it, and takes float32."""
    rows = torch.tensor([[1e5, 1.0]], device=DEVICE)
    assert not product(SPLIT, rows, torch.ones(3, 2, device=DEVICE)).isfinite().any()


@EVERY
@pytest.mark.parametrize("n_rows", [0, 1, 17])
def test_last_layers(row_format: RowFormat, n_rows: int) -> None:
    width, n_out, dtype = 20, 7, row_format.results if row_format is not FLOAT16 else torch.float32
    x, matrix, bias = random(n_rows, width), random(n_out, width, seed=1), random(n_out, seed=2)
    last = row_format.last_matrix(matrix.to(dtype), bias.to(dtype))
    for constant in (True, False):
        hidden = row_format.hidden(x.to(dtype), constant=constant)
        assert hidden.shape == (n_rows, row_format.hidden_columns(width, constant=constant))
        assert hidden.dtype == row_format.operands
        of_bias = bias.to(row_format.results) if constant else None
        found = row_format.last_layer(hidden, last, of_bias)
        room = torch.full_like(found, torch.nan)
        assert row_format.last_layer(hidden, last, of_bias, room) is room
        assert torch.equal(room, found)
        assert found.dtype == row_format.results
        exact = functional.linear(x, matrix, bias if constant else None)
        # Only the matrix is rounded to operands, and in float16 the result.
        bound = {"float16": 4, "split": 2}.get(row_format.name, 1) * width**0.5 * ROUNDING[row_format.name]
        assert ((found - exact).abs() <= 5 * bound).all()


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_split_last_layers_are_as_good_as_float32(scale: float) -> None:
    """For inputs behind a layer norm and SiLU, and for slopes, which are larger."""
    x, matrix, bias = random(300, 128) * scale, random(64, 128, seed=1) * 128**-0.5, random(64, seed=2)
    x, matrix, bias = (item.float().double() for item in (x, matrix, bias))
    exact = functional.linear(x, matrix, bias)

    def error(row_format: RowFormat) -> float:
        last = row_format.last_matrix(matrix.float(), bias.float())
        return relative(row_format.last_layer(row_format.hidden(x.float(), constant=True), last, bias.float()), exact)

    assert error(SPLIT) <= 2 * error(FLOAT32)


def test_products_leave_torch_as_it_was() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    product(TF32, random(3, 8), random(4, 8))
    assert matmul.fp32_precision == before


def test_formats_are_known_by_their_rows() -> None:
    assert [plain_format(item.results) for item in (FLOAT16, FLOAT32, FLOAT64)] == [FLOAT16, FLOAT32, FLOAT64]
    assert format_of(torch.empty(3, 10, dtype=torch.float16), 10) is FLOAT16
    assert format_of(torch.empty(3, 20, dtype=torch.float16), 10) is SPLIT
    assert format_of(torch.empty(3, 10), 10) is FLOAT32
    assert format_of(torch.empty(3, 10), 10, TF32) is TF32
    with pytest.raises(ValueError, match=r"operands are torch.float32; rows in split have torch.float16"):
        format_of(torch.empty(3, 20), 10, SPLIT)


@EVERY
def test_last_layers_of_rounded_values(row_format: RowFormat) -> None:
    """As good as products of operands; where hidden values are no better, nothing is left out."""
    width, n_out, dtype = 20, 7, row_format.results if row_format is not FLOAT16 else torch.float32
    x, matrix, bias = random(9, width), random(n_out, width, seed=1), random(n_out, seed=2)
    hidden = row_format.hidden(x.to(dtype), constant=True)
    rounded = row_format.rounded(hidden)
    assert (rounded.shape[1] < hidden.shape[1]) == (row_format is FLOAT16)
    last = row_format.last_matrix(matrix.to(dtype), bias.to(dtype))
    found = row_format.last_layer(rounded, last, bias.to(row_format.results))
    bound = {"float16": 6, "split": 2}.get(row_format.name, 1) * width**0.5 * ROUNDING[row_format.name]
    assert ((found - functional.linear(x, matrix, bias)).abs() <= 5 * bound).all()
