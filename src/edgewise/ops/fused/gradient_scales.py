"""Powers of two that bring the gradients of each atom into the range of float16."""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgewise.ops.fused.shapes import check_rows
from edgewise.ops.launch import width

LARGEST_EXPONENT = 5
"""Gradients in float16 are scaled so that the largest of an atom is below 2^5: the rest of the range, 2^11 above and 2^19
below, is room for what the maps and the gate make of them."""

SMALLEST_EXPONENT = -80
"""Gradients below 2^-80 carry the scale of those: the power of two of the smallest numbers of float32 would overflow."""

VALUES = 1024
"""Values that a program looks at together."""


@triton.jit
def _gradient_scales(
    gradient, scales, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, LARGEST: tl.constexpr, SMALLEST: tl.constexpr
):  # fmt: skip
    """Do one atom."""
    atom = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    largest = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, COLUMNS, BLOCK):
        here = start + column
        x = tl.load(gradient + atom * COLUMNS + here, mask=here < COLUMNS, other=0.0)
        largest = tl.maximum(largest, tl.abs(x))
    found = tl.max(largest, axis=0)
    # A float32 number is m 2^e with 1/2 <= m < 1, and its bits hold e + 126.
    exponent = tl.maximum((found.to(tl.int32, bitcast=True) >> 23) - 126, SMALLEST)
    # Where there is no gradient any scale will do.
    exponent = tl.where(found > 0, exponent, 0)
    tl.store(scales + atom, ((LARGEST - exponent + 127) << 23).to(tl.float32, bitcast=True))


def gradient_scales(gradient: Tensor) -> Tensor:
    """Return the power of two of each atom that brings its largest gradient just below 2^`LARGEST_EXPONENT`.

    Args:
        gradient: [n_atoms, n_coefficients, channels] float32.

    Returns:
        [n_atoms] float32.

    Raises:
        ValueError: A tensor that is not of this kind.
    """
    rows = gradient.flatten(1)
    n_atoms, columns = rows.shape
    check_rows("gradient", rows, n_atoms, columns)
    scales = torch.empty(n_atoms, dtype=torch.float32, device=gradient.device)
    if n_atoms:
        _gradient_scales[(n_atoms,)](
            rows, scales, COLUMNS=columns, BLOCK=min(VALUES, width(columns)), LARGEST=LARGEST_EXPONENT,
            SMALLEST=SMALLEST_EXPONENT, num_warps=4,
        )  # fmt: skip
    return scales
