"""Where everything stands in the rows of edges, for kernels and for the programs around them: one definition of each place.

With n_m = lmax - m + 1 the number of degrees of order m, and h_l = min(l, mmax + 1) the largest order whose rotation an
adjoint reads of degree l (the torque couples neighbouring orders, so one more than the features have).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import triton

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def in_kernels_too(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let kernels call a function of constants while they are compiled, as Python does anywhere else."""
    return cast("Callable[Arguments, Result]", cast("Any", triton).constexpr_function(function))


def n_edge_coefficients(lmax: int, mmax: int) -> int:
    """Return the number of coefficients of an edge."""
    return coefficient(lmax, -mmax, lmax) + 1


@in_kernels_too
def coefficient(degree: int, order: int, lmax: int) -> int:
    """Return the place of a coefficient in m-major order: m = 0, then for each m >= 1 all (l, +m) and all (l, -m)."""
    m = abs(order)
    if m == 0:
        return degree
    before = (lmax + 1) + 2 * ((m - 1) * (lmax + 1) - (m - 1) * m // 2)
    return before + (lmax - m + 1 if order < 0 else 0) + degree - m


@in_kernels_too
def order_start(order: int, lmax: int, extra: int) -> int:
    """Return where the coefficients of the orders +-m begin, with `extra` places in front of m = 0."""
    m = abs(order)
    return extra + coefficient(m, m, lmax) if m else 0


@in_kernels_too
def order_size(order: int, lmax: int, extra: int) -> int:
    """Return the number of coefficients of the orders +-m, with `extra` places in front of m = 0."""
    m = abs(order)
    return 2 * (lmax - m + 1) if m else extra + lmax + 1


@in_kernels_too
def radial_factor(degree: int, order: int, lmax: int) -> int:
    """Return the place of the radial factor of a coefficient, in units of 2 channels; +m and -m share theirs."""
    m = abs(order)
    return m * (lmax + 1) - m * (m - 1) // 2 + degree - m


@in_kernels_too
def highest(degree: int, mmax: int) -> int:
    """Return the largest order of a degree that rotations are kept for."""
    return min(degree, mmax + 1)


@in_kernels_too
def rotation(degree: int, order: int, mmax: int) -> int:
    """Return where the row of a coefficient's rotation begins in an edge's row of geometry; degrees from 1 on."""
    place = 1
    for below in range(1, degree):
        place += (2 * min(below, mmax + 1) + 1) * (2 * below + 1)
    return place + (order + min(degree, mmax + 1)) * (2 * degree + 1)


@in_kernels_too
def envelope_slope(lmax: int, mmax: int) -> int:
    """Return where the slope of the envelope stands; the envelope itself stands in front."""
    return rotation(lmax + 1, -min(lmax + 1, mmax + 1), mmax)


@in_kernels_too
def geometry_width(lmax: int, mmax: int) -> int:
    """Return the number of values of an edge's geometry: a multiple of 4, so that rows begin at multiples of 16 bytes."""
    return -(-(envelope_slope(lmax, mmax) + 1) // 4) * 4


@in_kernels_too
def coupling(degree: int, m: int) -> float:
    """Return how strongly turning a frame couples the orders m and m + 1 of a degree (MODEL.md section 10.1)."""
    return math.sqrt((degree - m) * (degree + m + 1) / (2 if m == 0 else 4))


@in_kernels_too
def tile_rows(degree: int) -> int:
    """Return the rows of a tile that holds the coefficients of a degree: a power of two."""
    return 1 << (2 * degree).bit_length() if degree else 1
