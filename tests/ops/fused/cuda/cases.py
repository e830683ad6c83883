"""Shapes and sizes that the kernels in CUDA C++ are tried with."""

from __future__ import annotations

from tests.ops.kernel_problems import DEVICE

CASES = [
    (2, 2, 0, 8),
    (2, 2, 1, 8),
    (2, 2, 17, 8),
    (2, 2, 11, 132),
    (2, 1, 7, 128),
    (4, 2, 7, 4),
    (1, 1, 7, 4),
    (0, 0, 7, 4),
    (1, 0, 7, 12),
]
"""lmax, mmax, edges and channels: no edge, one, primes; less than a warp's channels, as many, and a few more."""

if DEVICE == "cuda":
    CASES += [(2, 2, n, 128) for n in (0, 1, 1009)]
    CASES += [(2, 1, 1009, 128), (4, 2, 1009, 128), (3, 3, 211, 256), (4, 4, 211, 36)]
