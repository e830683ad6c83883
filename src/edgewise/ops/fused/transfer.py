"""Copies between a GPU and pinned memory of the host, by a kernel.

Kernels reach such memory themselves. The copy engine is no faster with so few bytes, but what waits for it begins 10 to 40
microseconds later.
"""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from edgewise.ops.launch import check_tensor

VALUES = 512
"""Values of a program."""


@triton.jit
def _transfer(given, out, n_values, BLOCK: tl.constexpr):
    """Copy a tile."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(given + place, mask=place < n_values), mask=place < n_values)


def transfer(given: Tensor, out: Tensor) -> Tensor:
    """Copy values; to the host they have arrived once the stream has come to its end.

    Args:
        given: [n_values], on the GPU or in pinned memory.
        out: [n_values], likewise, of the same type.

    Raises:
        ValueError: Another shape or type, or memory of the host that is not pinned.
    """
    check_tensor("given", given, (None,), out.dtype)
    check_tensor("out", out, tuple(given.shape), given.dtype)
    n_values = given.shape[0]
    # Nothing at all is nowhere.
    if n_values and given.is_cuda != out.is_cuda and not (given if out.is_cuda else out).is_pinned():
        message = "kernels reach pinned memory of the host alone; make it with pin_memory=True"
        raise ValueError(message)
    if n_values:
        _transfer[(triton.cdiv(n_values, VALUES),)](given, out, n_values, BLOCK=VALUES, num_warps=4)
    return out
