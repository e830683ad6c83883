"""How the operands of matrix products stand in rows of edges, and the products themselves.

A format says how accurate products on rows are. "float16" and "float32" store operands as they are. "tf32" rounds them to
nearest to the 10 bits that TF32 units read, which would cut off the rest. "split" is as good as float32 at the speed of
float16: x = high + low / 2^11 with both parts in float16, so that low has the range of high, and of the four products

    x w = high_x high_w + (high_x low_w + low_x high_w) / 2^11 + (low_x low_w) / 2^22

the last is below the rounding of float32. An operand is [high | low] and a matrix [low | high], so the two products in the
middle are one, whose result the first product takes as what it adds to: the large terms come last. Only torch 2.8 and newer
have products of float16 with results in float32.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

LOW_SCALE = 2.0**11
"""Low parts are stored times this: numbers down to 2^-14 keep 22 bits, smaller ones an error of 2^-36."""

CONSTANTS = 8
"""Columns behind the input of a last layer in "split" that multiply both parts of its bias: two ones, and zeros up to a
multiple of 16 bytes."""

MATRIX_SCALE = 2.0**8
"""Matrices of last layers in "split" are stored times this: their low parts then stay normal numbers of float16 where they
matter, without a scale of their own."""

Name = Literal["float16", "split", "tf32", "float32", "float64"]


@dataclass(frozen=True)
class RowFormat:
    """How rows of edges are stored.

    Attributes:
        name: Of the format; kernels know it by this name.
        operands: Type of what products read.
        results: Type of what products make, and of everything else in rows.
    """

    name: Name
    operands: torch.dtype
    results: torch.dtype

    @property
    def parts(self) -> int:
        """Number of columns that hold one value of an operand."""
        return 2 if self.name == "split" else 1

    def operand(self, x: Tensor) -> Tensor:
        """Return [..., n] as an operand [..., parts * n]."""
        if self.name == "split":
            return torch.cat(high_and_low(x), dim=-1)
        return to_tf32(x) if self.name == "tf32" else x.to(self.operands)

    def matrix(self, x: Tensor) -> Tensor:
        """Return the matrix [n_out, n_in] as products read it, [n_out, parts * n_in], rounded to nearest."""
        if self.name == "split":
            return torch.cat(high_and_low(x)[::-1], dim=-1)
        return self.operand(x).contiguous()

    def product(self, rows: Tensor, matrix: Tensor, out: Tensor) -> None:
        """Multiply rows by a transposed matrix.

        Args:
            rows: [n_rows, parts * n_in], an operand; columns of longer rows are fine.
            matrix: [n_out, parts * n_in], made by `matrix`.
            out: [n_rows, n_out], receives the results; columns of longer rows are fine.
        """
        if self.name == "split":
            _split_product(rows, matrix, out)
        elif self.name == "tf32":
            with _tf32_products():
                torch.mm(rows, matrix.T, out=out)
        else:
            torch.mm(rows, matrix.T, out=out)

    @property
    def of_embedding(self) -> RowFormat:
        """The format of the degree embedding's radial network.

        Its features are where everything begins: rounded to float16 they cost more than all other roundings together, and
        with a better format they cost a hundredth of a step.
        """
        return SPLIT if self.name == "float16" else self

    def hidden_columns(self, width: int, *, constant: bool) -> int:
        """Return the number of columns that `hidden` makes of so many."""
        if self.name == "split":
            return 3 * width + CONSTANTS
        return 2 * width if self._in_two_parts(constant=constant) else width

    def _in_two_parts(self, *, constant: bool) -> bool:
        return self.name == "tf32" or (self.name == "float16" and constant)

    def hidden(self, x: Tensor, *, constant: bool) -> Tensor:
        """Return the input of a radial network's last layer, or its slope, as `last_layer` reads it.

        It is stored in two parts, high and what rounding leaves behind it, wherever operands have fewer bits than x: the
        network amplifies the rounding of its radial factors more than any other, and the product that makes them waits for
        memory, so twice the sum costs it little. In "float16" slopes, which nothing amplifies, have one. In "split" it is [low | high | high] and constants for the bias, so that one
        product makes all terms, the small ones first: results are wide here, and writing them once is worth long operands.

        Args:
            x: [..., width].
            constant: These are values; slopes, which have no bias, have zeros in place of the constants.
        """
        if self.name == "split":
            constants = x.new_zeros(*x.shape[:-1], CONSTANTS, dtype=torch.float16)
            constants[..., :2] = float(constant)
            high, low = high_and_low(x)
            return torch.cat([low, high, high, constants], dim=-1)
        if not self._in_two_parts(constant=constant):
            return self.operand(x)
        high = self.operand(x)
        return torch.cat([high, self.operand(x - high.to(x.dtype))], dim=-1)

    def rounded(self, x: Tensor) -> Tensor:
        """Return what `hidden` has made of values, as far as factors need it that multiply gradients alone.

        In "float16" that is the first part: the network amplifies what is rounded on the way forth, not on the way back.
        """
        return x[:, : x.shape[1] // 2] if self.name == "float16" else x

    def last_matrix(self, matrix: Tensor, bias: Tensor) -> Tensor:
        """Return the matrix [n_out, width] of a last layer, and its bias [n_out], as `last_layer` reads them."""
        if self.name == "split":
            (high, low), of_bias = (high_and_low(item * MATRIX_SCALE) for item in (matrix, bias))
            # Of the rest that high leaves, not times 2^11: each product carries its own powers of two here.
            low, constants = low / LOW_SCALE, torch.stack([of_bias[0], of_bias[1] / LOW_SCALE], dim=1)
            return torch.cat([high / LOW_SCALE, low, high, functional.pad(constants, (0, CONSTANTS - 2))], dim=1)
        made = self.matrix(matrix)
        return torch.cat([made, made], dim=1) if self.name in ("float16", "tf32") else made

    def last_layer(self, x: Tensor, matrix: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
        """Apply the last layer of a radial network.

        Args:
            x: [n_rows, columns], made by `hidden`.
            matrix: [n_out, columns], made by `last_matrix`.
            bias: [n_out] in the type of results, for values; None for slopes. In "split" the input itself decides.
            out: Where to; None for new memory.

        Returns:
            [n_rows, n_out], in the type of results.
        """
        if out is None:
            out = torch.empty(x.shape[0], matrix.shape[0], dtype=self.results, device=x.device)
        if self.name == "split":
            if x.is_cuda:
                return torch.addmm(out, x, matrix.T, out_dtype=torch.float32, beta=0, alpha=1 / MATRIX_SCALE, out=out)
            return torch.mm(x.float(), matrix.float().T, out=out).div_(MATRIX_SCALE)
        if self.name == "tf32":
            with _tf32_products():
                return _linear(x, matrix, bias, out)
        # The matrix has columns for two parts, and x may have one.
        return _linear(x, matrix[:, : x.shape[1]], bias, out)


FLOAT16 = RowFormat("float16", torch.float16, torch.float16)
SPLIT = RowFormat("split", torch.float16, torch.float32)
TF32 = RowFormat("tf32", torch.float32, torch.float32)
FLOAT32 = RowFormat("float32", torch.float32, torch.float32)
FLOAT64 = RowFormat("float64", torch.float64, torch.float64)

FORMATS: dict[str, RowFormat] = {item.name: item for item in (FLOAT16, SPLIT, TF32, FLOAT32, FLOAT64)}

_PLAIN = {item.results: item for item in (FLOAT16, FLOAT32, FLOAT64)}


def plain_format(dtype: torch.dtype) -> RowFormat:
    """Return the format of rows that have one type throughout."""
    return _PLAIN[dtype]


def format_of(rows: Tensor, n_values: int, row_format: RowFormat | None = None) -> RowFormat:
    """Return the format of operands.

    Args:
        rows: [n_rows, columns].
        n_values: Values of a row.
        row_format: The format where it is known; None reads it off type and width. Rows for TF32 look like float32.

    Raises:
        ValueError: A type that the format does not have.
    """
    if row_format is None:
        two = rows.dtype == torch.float16 and rows.shape[1] == SPLIT.parts * n_values
        row_format = SPLIT if two else plain_format(rows.dtype)
    if rows.dtype != row_format.operands:
        message = f"operands are {rows.dtype}; rows in {row_format.name} have {row_format.operands}"
        raise ValueError(message)
    return row_format


def high_and_low(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return two float16 tensors: the first plus the second over 2^11 is x to 22 bits."""
    high = x.to(torch.float16)
    return high, ((x - high.to(x.dtype)) * LOW_SCALE).to(torch.float16)


def to_tf32(x: Tensor) -> Tensor:
    """Return float32 numbers rounded to nearest, ties to even, to the 10 bits of TF32."""
    x = x.to(torch.float32)
    bits = x.view(torch.int32)
    rounded = ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)
    # Adding to the bits of a NaN may make a number of it.
    return torch.where(x.isnan(), x, rounded)


def _linear(x: Tensor, matrix: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    return torch.mm(x, matrix.T, out=out) if bias is None else torch.addmm(bias, x, matrix.T, out=out)


def _split_product(rows: Tensor, matrix: Tensor, out: Tensor) -> None:
    """Multiply rows [high | low] by a transposed matrix [low | high]."""
    high_rows, high_matrix = rows.chunk(2, dim=1)[0], matrix.chunk(2, dim=1)[1]
    if rows.is_cuda:
        torch.mm(rows, matrix.T, out_dtype=torch.float32, out=out)
        torch.addmm(out, high_rows, high_matrix.T, out_dtype=torch.float32, beta=1 / LOW_SCALE, out=out)
        return
    # Products of float16 with results in float32 exist on GPUs alone; here are the same operands, and sums in float32.
    torch.mm(rows.float(), matrix.float().T, out=out)
    torch.addmm(out, high_rows.float(), high_matrix.float().T, beta=1 / LOW_SCALE, out=out)


@contextmanager
def _tf32_products() -> Generator[None]:
    """Let products of float32 use TF32 on GPUs."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        yield
    finally:
        matmul.fp32_precision = before
