"""Rotations and real spherical harmonics: coefficient orders, frames, rotation matrices and grids, each defined once.

Conventions (MODEL.md sections 1, 4 and 8.2): real harmonics with y as polar axis, order m = -l..l inside a degree, and
matrices D with Y(R p) = D(R) Y(p), so that D for l = 1 is R itself. Constants are made on the CPU whatever torch's default
device is. This module knows tensors only; it must not know models, configurations or files.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

POLE_CHART_WIDTH = 0.9
"""The two charts of `edge_frames` are blended where |n_y| is below this value."""


def _constant(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Keep the results of a function; for a compiler they are constants, and what makes them is no part of its program."""
    cached = functools.cache(function)

    @functools.wraps(function)
    def look_up(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        return cached(*arguments, **options)

    return torch.compiler.assume_constant_result(look_up)


def n_coefficients(lmax: int) -> int:
    """Return the number of node coefficients, (lmax + 1)^2."""
    return (lmax + 1) ** 2


def block_sizes(lmax: int, mmax: int) -> tuple[int, ...]:
    """Return the number of degrees that have order m, for m = 0..mmax."""
    return tuple(lmax - m + 1 for m in range(mmax + 1))


def degree_index(lmax: int) -> Tensor:
    """Return the degree of each node coefficient, [(lmax + 1)^2] int64, on the CPU."""
    return torch.tensor([math.isqrt(i) for i in range(n_coefficients(lmax))], device="cpu")


@_constant
def m_major_order(lmax: int, mmax: int) -> tuple[int, ...]:
    """Return the l-major indices of the edge coefficients in m-major order (MODEL.md section 4.3).

    First m = 0 for l = 0..lmax; then for each m >= 1 all (l, +m), l = m..lmax, followed by all (l, -m).
    """
    order = [degree * degree + degree for degree in range(lmax + 1)]
    for m in range(1, mmax + 1):
        for sign in (1, -1):
            order += [degree * degree + degree + sign * m for degree in range(m, lmax + 1)]
    return tuple(order)


def spherical_harmonics(points: Tensor, lmax: int) -> Tensor:
    """Evaluate real spherical harmonics in "norm" normalisation: the m = 0 ones are 1 at the pole y.

    Args:
        points: [..., 3] unit vectors (x, y, z).
        lmax: Largest degree.

    Returns:
        [..., (lmax + 1)^2], l-major. Multiply degree l by sqrt((2l + 1) / 4 pi) for orthonormal functions.
    """
    x, y, z = points.unbind(-1)
    # (z + i x)^m holds sin^m(b) cos(m a) and sin^m(b) sin(m a) without any angle.
    cosines, sines = [torch.ones_like(x)], [torch.zeros_like(x)]
    for m in range(lmax):
        cosines.append(cosines[m] * z - sines[m] * x)
        sines.append(cosines[m] * x + sines[m] * z)
    legendre: dict[tuple[int, int], Tensor] = {}
    for m in range(lmax + 1):
        legendre[m, m] = torch.full_like(y, float(math.prod(range(1, 2 * m, 2))))
        for degree in range(m + 1, lmax + 1):
            value = y * (2 * degree - 1) * legendre[degree - 1, m]
            if degree > m + 1:
                value = value - (degree + m - 1) * legendre[degree - 2, m]
            legendre[degree, m] = value / (degree - m)
    columns: list[Tensor] = []
    for degree in range(lmax + 1):
        for m in range(-degree, degree + 1):
            k = abs(m)
            norm = math.sqrt((1 if k == 0 else 2) * math.factorial(degree - k) / math.factorial(degree + k))
            columns.append(norm * legendre[degree, k] * (sines[k] if m < 0 else cosines[k]))
    return torch.stack(columns, dim=-1)


def _sphere_quadrature(degree: int) -> tuple[Tensor, Tensor]:
    """Return points [n, 3] and weights [n] that integrate polynomials of the given degree exactly over the sphere."""
    n_rings, n_around = degree // 2 + 1, degree + 1
    # Golub-Welsch: Gauss-Legendre nodes are the eigenvalues of the Jacobi matrix.
    k = torch.arange(1, n_rings, dtype=torch.float64, device="cpu")
    beta = k / torch.sqrt(4 * k * k - 1)
    heights, vectors = torch.linalg.eigh(torch.diag(beta, 1) + torch.diag(beta, -1))
    ring_weights = 2 * vectors[0] ** 2
    angles = 2 * math.pi * torch.arange(n_around, dtype=torch.float64, device="cpu") / n_around
    radius = torch.sqrt(1 - heights**2)
    points = torch.stack(
        [
            radius[:, None] * torch.sin(angles),
            heights[:, None].expand(-1, n_around),
            radius[:, None] * torch.cos(angles),
        ],
        dim=-1,
    )
    weights = (ring_weights * 2 * math.pi / n_around)[:, None].expand(-1, n_around)
    return points.reshape(-1, 3), weights.reshape(-1)


@_constant
def _coupling_to_next_degree(degree: int) -> Tensor:
    """Return the isometry [3 (2l - 1), 2l + 1] from degree l into the product of degrees 1 and l - 1, float64.

    It is proportional to the integrals of Y^1 Y^(l-1) Y^l over the sphere, which an exact quadrature gives.
    """
    points, weights = _sphere_quadrature(2 * degree)
    harmonics = spherical_harmonics(points, degree)
    first = harmonics[:, 1:4]
    previous = harmonics[:, (degree - 1) ** 2 : degree**2]
    highest = harmonics[:, degree**2 :]
    integrals = torch.einsum("p,pi,pj,pk->ijk", weights, first, previous, highest)
    coupling = integrals.reshape(3 * (2 * degree - 1), 2 * degree + 1)
    return coupling / torch.linalg.vector_norm(coupling, dim=0)


@_constant
def _recursion_matrix(degree: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the matrix that maps D^1 (x) D^(l-1), flattened, to D^l, flattened."""
    n_previous, n = 2 * degree - 1, 2 * degree + 1
    coupling = _coupling_to_next_degree(degree).reshape(3, n_previous, n)
    matrix = torch.einsum("ikm,jln->ijklmn", coupling, coupling)
    return matrix.reshape(9 * n_previous**2, n * n).to(dtype=dtype, device=device)


def rotation_blocks(rotations: Tensor, lmax: int) -> list[Tensor]:
    """Build the matrices D^l of rotations for l = 0..lmax.

    D^l is the part of highest degree in D^1 (x) D^(l-1): a polynomial in the entries of R, so derivatives of any order
    exist everywhere (MODEL.md section 4.1 lists equivalent routes).

    Args:
        rotations: [n, 3, 3] rotation matrices acting on (x, y, z).
        lmax: Largest degree.

    Returns:
        lmax + 1 tensors, [n, 2l + 1, 2l + 1].
    """
    n = rotations.shape[0]
    blocks = [rotations.new_ones(n, 1, 1)]
    for degree in range(1, lmax + 1):
        if degree == 1:
            blocks.append(rotations)
            continue
        previous = blocks[-1].flatten(1)
        products = (rotations.reshape(n, 9, 1) * previous[:, None, :]).flatten(1)
        matrix = _recursion_matrix(degree, rotations.dtype, rotations.device)
        blocks.append((products @ matrix).reshape(n, 2 * degree + 1, 2 * degree + 1))
    return blocks


def axis_swap_matrix(degree: int) -> Tensor:
    """Return the constant matrix J_l that checkpoints of the format carry as `Jd_l` (MODEL.md section 4.1), float64.

    It is the half turn about (1, 1, 0) / sqrt(2), which exchanges x and y and reverses z, followed by the inversion
    (-1)^l.

    Args:
        degree: The degree l.

    Returns:
        [2l + 1, 2l + 1].
    """
    turn = torch.tensor([[[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]]], dtype=torch.float64, device="cpu")
    return (-1) ** degree * rotation_blocks(turn, degree)[degree][0]


def _smooth_step(t: Tensor) -> Tensor:
    """Rise from 0 at t <= 0 to 1 at t >= 1 with all derivatives continuous."""
    inside = (t > 0) & (t < 1)
    # The formula is 0/0 at the ends; a harmless argument there keeps every derivative finite.
    safe = torch.where(inside, t, torch.full_like(t, 0.5))
    rise = torch.sigmoid((2 * safe - 1) / (safe * (1 - safe)))
    return torch.where(inside, rise, (t >= 1).to(t.dtype))


def _normalise_quaternion(quaternion: Tensor) -> Tensor:
    squared = quaternion.square().sum(-1, keepdim=True).clamp_min(torch.finfo(quaternion.dtype).eps)
    return quaternion * squared.rsqrt()


def edge_frames(directions: Tensor) -> Tensor:
    """Build one rotation per direction with R n = +y, by two smoothly blended charts and without any random roll.

    The first chart turns n to y about an axis in the xz plane and fails at n = -y; the second fails at n = +y. Each is
    used alone near the pole where it is smooth, and unit quaternions are blended between (MODEL.md section 4.2). The
    same direction always gives the same bits, and gradients are finite for every direction.

    Args:
        directions: [n, 3] unit vectors.

    Returns:
        [n, 3, 3] rotation matrices.
    """
    x, y, z = directions.unbind(-1)
    zero = torch.zeros_like(x)
    near_plus = _normalise_quaternion(torch.stack([1 + y, -z, zero, x], dim=-1))
    near_minus = _normalise_quaternion(torch.stack([-z, 1 - y, x, zero], dim=-1))
    weight = _smooth_step((y + POLE_CHART_WIDTH) / (2 * POLE_CHART_WIDTH))[:, None]
    # Both signs of a quaternion are the same rotation; blend those that lie on the same side.
    agreement = (near_plus * near_minus).sum(-1, keepdim=True)
    near_minus = torch.where(agreement < 0, -near_minus, near_minus)
    a, b, c, d = _normalise_quaternion((1 - weight) * near_minus + weight * near_plus).unbind(-1)
    rows = [
        1 - 2 * (c * c + d * d),
        2 * (b * c - a * d),
        2 * (b * d + a * c),
        2 * (b * c + a * d),
        1 - 2 * (b * b + d * d),
        2 * (c * d - a * b),
        2 * (b * d - a * c),
        2 * (c * d + a * b),
        1 - 2 * (b * b + c * c),
    ]
    return torch.stack(rows, dim=-1).reshape(-1, 3, 3)


def edge_rotations(directions: Tensor, lmax: int, mmax: int) -> Tensor:
    """Build the matrices that take node coefficients into the edge frame.

    Args:
        directions: [n_edges, 3] unit vectors from target to source.
        lmax: Largest degree.
        mmax: Largest order kept on edges.

    Returns:
        [n_edges, n_edge_coefficients, (lmax + 1)^2]: rows in m-major order, columns l-major (MODEL.md section 4.3).
    """
    return rotation_rows(edge_frames(directions), lmax, mmax)


def rotation_rows(rotations: Tensor, lmax: int, mmax: int) -> Tensor:
    """Build the matrices of rotations that act on all node coefficients.

    Args:
        rotations: [n, 3, 3].
        lmax: Largest degree.
        mmax: Largest order of the rows.

    Returns:
        [n, n_edge_coefficients, (lmax + 1)^2]: rows in m-major order, columns l-major.
    """
    blocks = rotation_blocks(rotations, lmax)
    rows: list[Tensor] = []
    for index in m_major_order(lmax, mmax):
        degree = math.isqrt(index)
        row = blocks[degree][:, index - degree * degree]
        before, after = degree * degree, n_coefficients(lmax) - (degree + 1) ** 2
        rows.append(torch.nn.functional.pad(row, (before, after)))
    return torch.stack(rows, dim=1)


@_constant
def generators(lmax: int) -> Tensor:
    """Return how features in edge frames change when the frames turn about x and about z (MODEL.md section 10.1).

    Returns:
        [2, n, n] float64 on the CPU, n = (lmax + 1)^2, antisymmetric; rows and columns in m-major order of all orders.
    """
    x, z = torch.zeros(2, 3, 3, dtype=torch.float64, device="cpu")
    x[2, 1], x[1, 2] = 1, -1
    z[1, 0], z[0, 1] = 1, -1
    identity = torch.eye(3, dtype=torch.float64, device="cpu").repeat(2, 1, 1)
    slopes = torch.func.jvp(lambda turn: rotation_blocks(turn, lmax), (identity,), (torch.stack([x, z]),))[1]
    whole = torch.stack([torch.block_diag(*(slope[axis] for slope in slopes)) for axis in range(2)])
    order = list(m_major_order(lmax, lmax))
    return whole[:, order][:, :, order]


@_constant
def packed_entries(lmax: int, mmax: int) -> tuple[int, ...]:
    """Return which entries of a flattened dense rotation the packed one holds, in its order.

    Degree by degree; in a degree the rows m = -min(l, mmax)..min(l, mmax), each with all its 2l + 1 columns. These are
    the only entries that are not zero: 35 of 81 for lmax = mmax = 2.
    """
    row_of = {index: row for row, index in enumerate(m_major_order(lmax, mmax))}
    entries: list[int] = []
    for degree in range(lmax + 1):
        highest = min(degree, mmax)
        for m in range(-highest, highest + 1):
            start = row_of[degree * degree + degree + m] * n_coefficients(lmax) + degree * degree
            entries += range(start, start + 2 * degree + 1)
    return tuple(entries)


def packed_edge_rotations(directions: Tensor, lmax: int, mmax: int) -> Tensor:
    """Build the packed rotations into the edge frame; the same values as `edge_rotations` has in its blocks.

    Args:
        directions: [n_edges, 3] unit vectors from target to source.
        lmax: Largest degree.
        mmax: Largest order kept on edges.

    Returns:
        [n_edges, number of packed entries], in the order of `packed_entries`.
    """
    parts: list[Tensor] = []
    for degree, block in enumerate(rotation_blocks(edge_frames(directions), lmax)):
        highest = min(degree, mmax)
        parts.append(block[:, degree - highest : degree + highest + 1].flatten(1))
    return torch.cat(parts, dim=1)


def grid_matrices(
    lmax: int, mmax: int, resolution: int | None = None, *, on_edges: bool = False
) -> tuple[Tensor, Tensor]:
    """Build the matrices between coefficients and values on a grid of the sphere (MODEL.md section 8.2), float64.

    Args:
        lmax: Largest degree.
        mmax: Largest order.
        resolution: Number of latitudes and of longitudes; None takes 2 (lmax + 1) and one more longitude.
        on_edges: The grid of edge coefficients, which holds orders up to mmax only: columns in m-major order, fewer
            longitudes where mmax < lmax, and the scale that makes up for the dropped orders.

    Returns:
        to_grid and from_grid, both [n_points, n_coefficients].
    """
    n_latitudes = 2 * (lmax + 1) if resolution is None else resolution
    n_longitudes = 2 * (lmax + 1) + 1 if resolution is None else resolution
    if on_edges and mmax < lmax and resolution is None:
        n_longitudes = 2 * mmax + 1
    k = torch.arange(n_latitudes, dtype=torch.float64, device="cpu")
    polar = (k + 0.5) * math.pi / n_latitudes
    azimuth = 2 * math.pi * torch.arange(n_longitudes, dtype=torch.float64, device="cpu") / n_longitudes
    points = torch.stack(
        [
            torch.sin(polar)[:, None] * torch.sin(azimuth),
            torch.cos(polar)[:, None].expand(-1, n_longitudes),
            torch.sin(polar)[:, None] * torch.cos(azimuth),
        ],
        dim=-1,
    ).reshape(-1, 3)
    odd = 2 * torch.arange(n_latitudes // 2, dtype=torch.float64, device="cpu") + 1
    sums = (torch.sin(odd * polar[:, None]) / odd).sum(-1)
    latitude_weights = 4 / n_latitudes * torch.sin(polar) * sums
    weights = (latitude_weights * 2 * math.pi / n_longitudes).repeat_interleave(n_longitudes)
    degrees = degree_index(lmax).to(torch.float64)
    to_grid = spherical_harmonics(points, lmax) * torch.sqrt((2 * degrees + 1) / (4 * math.pi))
    from_grid = to_grid * weights[:, None]
    if on_edges:
        scale = torch.where(degrees > mmax, torch.sqrt((2 * degrees + 1) / (2 * mmax + 1)), torch.ones_like(degrees))
        order = list(m_major_order(lmax, mmax))
        to_grid, from_grid = (to_grid * scale)[:, order], (from_grid * scale)[:, order]
    return to_grid, from_grid
