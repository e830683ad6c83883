"""How kernels write operands of matrix products in the formats of `row_format`."""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl

from edgewise.ops.fused.layout import in_kernels_too, order_size, order_start
from edgewise.ops.fused.row_format import FORMATS


@in_kernels_too
def parts(name: str) -> int:
    """Return the number of columns that hold one value of an operand in a format."""
    return FORMATS[name].parts


@triton.jit
def to_tf32(x):
    """Round to nearest, ties to even, to the 10 bits of TF32; NaN, which adding to bits may destroy, stays."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & -8192
    return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, x, rounded.to(tl.float32, bitcast=True))


@triton.jit
def store_parts(high_pointer, low_pointer, x, inside):
    """Store x in two parts of float16, high + low / 2^11."""
    high = x.to(tl.float16)
    tl.store(high_pointer, high, mask=inside)
    tl.store(low_pointer, ((x - high.to(tl.float32)) * 2048.0).to(tl.float16), mask=inside)


@triton.jit
def store_operand(
    pointer, x, inside,
    PLACE: tl.constexpr, ORDER: tl.constexpr, LMAX: tl.constexpr, EXTRA: tl.constexpr, WIDTH: tl.constexpr,
    FORMAT: tl.constexpr,
):  # fmt: skip
    """Store the values at one place of rows; the pointers stand at the place 0 of each.

    PLACE and EXTRA, the places in front of m = 0, count WIDTH columns. In "split" the two parts of an order stand one after
    the other, so that its columns are still a run.
    """
    if FORMAT == "split":
        start = PLACE + order_start(ORDER, LMAX, EXTRA)
        low = start + order_size(ORDER, LMAX, EXTRA)
        store_parts(pointer + start * WIDTH, pointer + low * WIDTH, x, inside)
    elif FORMAT == "tf32":
        tl.store(pointer + PLACE * WIDTH, to_tf32(x), mask=inside)
    else:
        tl.store(pointer + PLACE * WIDTH, x, mask=inside)
