"""Products with matrices of weights inside kernels of nodes, as good as float32 for operands of any size.

Both operands are sums of two float16, x = high + low / 2^11, and of the four products the three that matter are summed in
float32, as in `radial_hidden`. Each row first takes a power of two that brings its largest entry between 1 and 2, so that
gradients of any size keep their digits; it is taken off the sums again.
"""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgewise.ops.fused.radial_hidden import SMALLEST_SUM, padded, product
from edgewise.ops.fused.row_format import high_and_low
from edgewise.ops.launch import width

WIDEST = 128
"""Widest features: a matrix and the rows that it multiplies have to fit on a multiprocessor."""


def columns_of(n: int) -> int:
    """Return the width of tiles for features: a power of two that matrix units can sum over."""
    return width(max(n, SMALLEST_SUM))


def split_matrices(matrices: Sequence[Tensor]) -> Tensor:
    """Return [n_matrices, 2, rows, columns] float16, high and low parts, zero beyond the [n_out, n_in] of each."""
    n_out, n_in = matrices[0].shape
    return torch.stack(
        [torch.stack(high_and_low(padded(item, columns_of(n_out), columns_of(n_in)))) for item in matrices]
    )


def padded_rows(rows: Tensor) -> Tensor:
    """Return float32 rows [n_rows, n] with as many columns as tiles have, zero beyond the last."""
    return padded(rows, rows.shape[0], columns_of(rows.shape[1])).float().contiguous()


@triton.jit
def forward_product(x, matrices, number, OUT: tl.constexpr, IN: tl.constexpr):
    """Return x [rows, IN] times the transpose of a matrix [OUT, IN]."""
    here = matrices + number * (2 * OUT * IN) + tl.arange(0, OUT)[None, :] * IN + tl.arange(0, IN)[:, None]
    return scaled_product(x, tl.load(here), tl.load(here + OUT * IN))


@triton.jit
def adjoint_product(gradient, matrices, number, OUT: tl.constexpr, IN: tl.constexpr):
    """Return a gradient [rows, OUT] times a matrix [OUT, IN]."""
    here = matrices + number * (2 * OUT * IN) + tl.arange(0, OUT)[:, None] * IN + tl.arange(0, IN)[None, :]
    return scaled_product(gradient, tl.load(here), tl.load(here + OUT * IN))


@triton.jit
def scaled_product(x, high, low):
    """Return x times a matrix in two parts; the exponent of a row's largest entry is read off its bits."""
    bits = tl.max(tl.abs(x), axis=1).to(tl.int32, bitcast=True)
    # Where the power or its inverse is not a normal number, a nearby one will do.
    exponent = tl.minimum(tl.maximum(bits >> 23, 2), 252)
    scale = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    unscale = (exponent << 23).to(tl.float32, bitcast=True)
    return product(x * scale[:, None], high, low) * unscale[:, None]


@triton.jit
def silu_slope(x):
    """Return the derivative of SiLU."""
    s = tl.sigmoid(x)
    return s * (1 + x * (1 - s))


@triton.jit
def grid_product(high, low, x):
    """Return a matrix in two parts, between coefficients and a grid, times x; all of x shares one power of two."""
    bits = tl.max(tl.max(tl.abs(x), axis=1), axis=0).to(tl.int32, bitcast=True)
    exponent = tl.minimum(tl.maximum(bits >> 23, 2), 252)
    x = x * ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    x_high = x.to(tl.float16)
    x_low = ((x - x_high.to(tl.float32)) * 2048.0).to(tl.float16)
    small = tl.dot(low, x_high)
    small = tl.dot(high, x_low, small)
    return (tl.dot(high, x_high) + small * (1 / 2048.0)) * (exponent << 23).to(tl.float32, bitcast=True)
