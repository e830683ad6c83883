"""The geometry of edges, and the way back from it to forces and virials.

`edge_geometry` is `reference.edge_steps.edge_geometry` with the same frames. With (a, b, c, d) the quaternion of an edge's
frame, alpha = a + i c and beta = -b + i d, the matrices of degree l are those of SU(2) about the polar axis y:

    W_pq = sigma sum_k (-1)^k c_k alpha^(l+q-k) alpha*^(l-p-k) beta^(p-q+k) beta*^k,
    c_k = sqrt((l+p)! (l-p)! (l+q)! (l-q)!) / ((l+q-k)! k! (p-q+k)! (l-p-k)!),

a power of alpha times a power of beta times a polynomial in |beta|^2. The rows of real harmonics are its real and imaginary
parts, so that every entry is found by itself, whatever the degree. All of it is float64 and rounded once.

`edge_gradient` is `reference.edge_steps.edge_gradient` of the summed tangents; `forces_and_virial` sums it at atoms, plus at
each edge's source and minus at its target, and its products with the vectors at systems. Every sum runs in a fixed order.
"""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgewise.ops.fused.gather_rotate import slice_of_edges
from edgewise.ops.fused.layout import (
    envelope_slope,
    geometry_width,
    highest,
    in_kernels_too,
    rotation,
)
from edgewise.ops.fused.shapes import EdgeTables
from edgewise.ops.launch import check_tensor
from edgewise.ops.reference.edges import MessageShape
from edgewise.so3 import POLE_CHART_WIDTH

EDGES = 64
"""Edges of a program, one for each thread."""

LARGEST_DEGREE = 6
"""Beyond, the polynomials' alternating coefficients would begin to cost digits that float32 has."""

ATOMS_OF_A_SLICE = 512
"""Atoms of a system whose virials one program adds, as long as there are not too many programs."""

MOST_SLICES = 64

_SMALLEST = torch.finfo(torch.float64).eps
_CHART_WIDTH = tl.constexpr(POLE_CHART_WIDTH)
_EPSILON = tl.constexpr(_SMALLEST)


def serves(shape: MessageShape) -> bool:
    """Tell whether the kernels make the rotations of a shape."""
    return 1 <= shape.lmax <= LARGEST_DEGREE


@in_kernels_too
def _polynomial(degree: int, p: int, q: int) -> tuple[float, ...]:
    """Return the coefficients of the polynomial in |beta|^2 that W_pq contains, for p >= 0."""
    factorial = math.factorial
    norm = math.sqrt(math.prod(factorial(degree + m) for m in (p, -p, q, -q)))
    found = [0.0] * (degree + 1)
    for k in range(max(0, q - p), min(degree - p, degree + q) + 1):
        exponents = degree + q - k, k, p - q + k, degree - p - k
        c = (-1) ** (k + p + max(q, 0)) * norm / math.prod(factorial(n) for n in exponents)
        n_alpha, n_beta = min(exponents[0], exponents[3]), min(exponents[1], exponents[2])
        # |alpha|^2 = 1 - |beta|^2.
        for n in range(n_alpha + 1):
            found[n_beta + n] += c * math.comb(n_alpha, n) * (-1) ** n
    while len(found) > 1 and found[-1] == 0:
        found.pop()
    return tuple(found)


@in_kernels_too
def polynomial_degree(degree: int, p: int, q: int) -> int:
    """Return the degree of the polynomial in |beta|^2 that W_pq contains."""
    return len(_polynomial(degree, p, q)) - 1


@in_kernels_too
def polynomial_coefficient(degree: int, p: int, q: int, n: int) -> float:
    """Return one coefficient of the polynomial in |beta|^2 that W_pq contains."""
    return _polynomial(degree, p, q)[n]


@in_kernels_too
def magnitude(n: int) -> int:
    """Return the absolute value."""
    return abs(n)


@in_kernels_too
def root_two_unless(both: bool) -> float:
    """Return what an entry gets on top when just one of its orders is 0."""
    return 1.0 if both else math.sqrt(2.0)


@triton.jit
def _load_vector(vectors, edge, live):
    """Load vectors and return them, their lengths and directions; edges that are not there point along x."""
    x = tl.load(vectors + edge * 3, mask=live, other=1.0)
    y = tl.load(vectors + edge * 3 + 1, mask=live, other=0.0)
    z = tl.load(vectors + edge * 3 + 2, mask=live, other=0.0)
    distance = tl.sqrt(x * x + y * y + z * z)
    return x, y, z, distance


@triton.jit
def _inverse_norm(a, b, c, d):
    """Return what a quaternion is multiplied by to have length 1."""
    return 1 / tl.sqrt(tl.maximum(a * a + b * b + c * c + d * d, _EPSILON))


@triton.jit
def _quaternion(x, y, z):
    """Return the quaternion of the frame of directions, `so3.edge_frames`."""
    # The first chart has no third part, the second none of the first's order: (1 + y, -z, 0, x) and (-z, 1 - y, x, 0).
    plus = _inverse_norm(1 + y, z, 0.0, x)
    minus = _inverse_norm(z, 1 - y, x, 0.0)
    t = (y + _CHART_WIDTH) / (2 * _CHART_WIDTH)
    inside = (t > 0) & (t < 1)
    safe = tl.where(inside, t, 0.5)
    rise = 1 / (1 + tl.exp(-(2 * safe - 1) / (safe * (1 - safe))))
    weight = tl.where(inside, rise, tl.where(t >= 1, 1.0, 0.0))
    # Both signs of a quaternion are the same rotation; blend those that lie on the same side.
    agreement = -(1 + y) * z - z * (1 - y)
    of_plus = weight * plus
    of_minus = (1 - weight) * tl.where(agreement < 0, -minus, minus)
    a = of_plus * (1 + y) - of_minus * z
    b = of_minus * (1 - y) - of_plus * z
    c = of_minus * x
    d = of_plus * x
    scale = _inverse_norm(a, b, c, d)
    return a * scale, b * scale, c * scale, d * scale


@triton.jit
def _powers(re, im, N: tl.constexpr):
    """Return the powers 0..N of complex numbers, real and imaginary parts."""
    res, ims = (re * 0 + 1,), (im * 0,)
    for n in tl.static_range(1, N + 1):
        last_re, last_im = res[n - 1], ims[n - 1]
        res = res + (last_re * re - last_im * im,)  # noqa: RUF005 - Triton joins tuples in this way alone
        ims = ims + (last_re * im + last_im * re,)  # noqa: RUF005
    return res, ims


@triton.jit
def _matrix_entry(alpha, beta, squared, DEGREE: tl.constexpr, P: tl.constexpr, Q: tl.constexpr):
    """Return W_pq, real and imaginary part; `alpha` and `beta` are the powers."""
    TOP: tl.constexpr = polynomial_degree(DEGREE, P, Q)
    value = squared * 0 + polynomial_coefficient(DEGREE, P, Q, TOP)
    for n in tl.static_range(0, TOP):
        value = value * squared + polynomial_coefficient(DEGREE, P, Q, TOP - 1 - n)
    a_re, a_im = alpha[0][magnitude(P + Q)], alpha[1][magnitude(P + Q)]
    b_re, b_im = beta[0][magnitude(P - Q)], beta[1][magnitude(P - Q)]
    # Negative exponents stand for powers of the conjugate.
    if P + Q < 0:
        a_im = -a_im
    if P < Q:
        b_im = -b_im
    return value * (a_re * b_re - a_im * b_im), value * (a_re * b_im + a_im * b_re)


@triton.jit
def _store_entry(out, entry, live, DEGREE: tl.constexpr, ROW: tl.constexpr, COLUMN: tl.constexpr, MMAX: tl.constexpr):
    """Store one entry of the rotation of a degree between real harmonics."""
    tl.store(out + rotation(DEGREE, ROW, MMAX) + DEGREE + COLUMN, entry.to(tl.float32), mask=live)


@triton.jit
def _store_entries(
    out, alpha, beta, squared, live, DEGREE: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, MMAX: tl.constexpr
):  # fmt: skip
    """Make and store the entries of a degree in the rows +-P and the columns +-Q."""
    re, im = _matrix_entry(alpha, beta, squared, DEGREE, P, Q)
    if P == 0 or Q == 0:
        # Harmonics of order 0 have no partner, which the others share their length with.
        scale: tl.constexpr = root_two_unless(P == Q)
        _store_entry(out, scale * re, live, DEGREE, P, Q, MMAX)
        if P > 0:
            _store_entry(out, scale * im, live, DEGREE, -P, Q, MMAX)
        if Q > 0:
            _store_entry(out, -scale * im, live, DEGREE, P, -Q, MMAX)
    else:
        other_re, other_im = _matrix_entry(alpha, beta, squared, DEGREE, P, -Q)
        _store_entry(out, re + other_re, live, DEGREE, P, Q, MMAX)
        _store_entry(out, re - other_re, live, DEGREE, -P, -Q, MMAX)
        _store_entry(out, im + other_im, live, DEGREE, -P, Q, MMAX)
        _store_entry(out, other_im - im, live, DEGREE, P, -Q, MMAX)


@triton.jit
def _edge_geometry(
    vectors, geometry, distances, n_live,
    CUTOFF: tl.constexpr, LMAX: tl.constexpr, MMAX: tl.constexpr, GEOMETRY: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Do one degree of a tile of edges; the first one brings everything else."""
    edge = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    degree = tl.program_id(1) + 1
    n_edges = tl.load(n_live)
    if tl.program_id(0) * ROWS < n_edges:
        live = edge < n_edges
        x, y, z, distance = _load_vector(vectors, edge, live)
        out = geometry + edge * GEOMETRY
        if degree == 1:
            tl.store(distances + edge, distance.to(tl.float32), mask=live)
            u = distance / CUTOFF
            u4 = u * u * u * u
            envelope = tl.where(u < 1, 1 - u4 * u * (21 - u * (35 - 15 * u)), 0.0)
            slope = tl.where(u < 1, -105 * u4 * (1 - u) * (1 - u) / CUTOFF, 0.0)
            tl.store(out, envelope.to(tl.float32), mask=live)
            tl.store(out + envelope_slope(LMAX, MMAX), slope.to(tl.float32), mask=live)
            for place in tl.static_range(envelope_slope(LMAX, MMAX) + 1, GEOMETRY):
                tl.store(out + place, tl.zeros([ROWS], dtype=tl.float32), mask=live)
        a, b, c, d = _quaternion(x / distance, y / distance, z / distance)
        squared = b * b + d * d
        for own in tl.static_range(1, LMAX + 1):
            if degree == own:
                alpha, beta = _powers(a, c, 2 * own), _powers(-b, d, 2 * own)
                for p in tl.static_range(0, highest(own, MMAX) + 1):
                    for q in tl.static_range(0, own + 1):
                        _store_entries(out, alpha, beta, squared, live, own, p, q, MMAX)


@triton.jit
def _edge_gradient(
    vectors, of_ends, of_sums, gradient, n_live, n_edges,
    ENDS: tl.constexpr, SUMS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Do a tile of edges; the frame is made anew, which costs less than loading it."""
    edge = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = edge < tl.load(n_live)
    if tl.program_id(0) * ROWS < tl.load(n_live):
        torque_x = tl.zeros([ROWS], dtype=tl.float64)
        torque_z, slope = torque_x, torque_x
        for task in tl.static_range(0, ENDS + SUMS):
            if task < ENDS:
                own = of_ends + (task * n_edges + edge) * 3
            else:
                own = of_sums + ((task - ENDS) * n_edges + edge) * 3
            torque_x += tl.load(own, mask=live, other=0.0).to(tl.float64)
            torque_z += tl.load(own + 1, mask=live, other=0.0).to(tl.float64)
            slope += tl.load(own + 2, mask=live, other=0.0).to(tl.float64)
        x, y, z, distance = _load_vector(vectors, edge, live)
        x, y, z = x / distance, y / distance, z / distance
        a, b, c, d = _quaternion(x, y, z)
        # In the frame the direction is y, and moving its end by dv turns it by (y x dv) / d; the frame's second row is the
        # direction itself.
        along_x, along_z = torque_z / distance, -torque_x / distance
        out = gradient + edge * 3
        to_x = (1 - 2 * (c * c + d * d)) * along_x + x * slope + 2 * (b * d - a * c) * along_z
        to_y = 2 * (b * c - a * d) * along_x + y * slope + 2 * (c * d + a * b) * along_z
        to_z = 2 * (b * d + a * c) * along_x + z * slope + (1 - 2 * (b * b + c * c)) * along_z
        tl.store(out, to_x, mask=live)
        tl.store(out + 1, to_y, mask=live)
        tl.store(out + 2, to_z, mask=live)


@triton.jit
def _sums_at_atoms(
    gradient, vectors, target_starts, by_source, source_starts, to_positions, virials, ROWS: tl.constexpr
):  # fmt: skip
    """Sum the gradients of the edges out of an atom less those into it, and the virials of those into it."""
    atom = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, ROWS)
    zero = tl.zeros([ROWS], dtype=tl.float64)
    in_x, in_y, in_z = zero, zero, zero
    xx, xy, xz, yx, yy, yz, zx, zy, zz = zero, zero, zero, zero, zero, zero, zero, zero, zero
    stop = tl.load(target_starts + atom + 1)
    for first in range(tl.load(target_starts + atom), stop, ROWS):
        edge = (first + lane).to(tl.int64)
        live = edge < stop
        x = tl.load(gradient + edge * 3, mask=live, other=0.0)
        y = tl.load(gradient + edge * 3 + 1, mask=live, other=0.0)
        z = tl.load(gradient + edge * 3 + 2, mask=live, other=0.0)
        along_x = tl.load(vectors + edge * 3, mask=live, other=0.0)
        along_y = tl.load(vectors + edge * 3 + 1, mask=live, other=0.0)
        along_z = tl.load(vectors + edge * 3 + 2, mask=live, other=0.0)
        in_x, in_y, in_z = in_x + x, in_y + y, in_z + z
        xx, xy, xz = xx + x * along_x, xy + x * along_y, xz + x * along_z
        yx, yy, yz = yx + y * along_x, yy + y * along_y, yz + y * along_z
        zx, zy, zz = zx + z * along_x, zy + z * along_y, zz + z * along_z
    out_x, out_y, out_z = zero, zero, zero
    stop = tl.load(source_starts + atom + 1)
    for first in range(tl.load(source_starts + atom), stop, ROWS):
        live = first + lane < stop
        edge = tl.load(by_source + first + lane, mask=live, other=0).to(tl.int64)
        out_x += tl.load(gradient + edge * 3, mask=live, other=0.0)
        out_y += tl.load(gradient + edge * 3 + 1, mask=live, other=0.0)
        out_z += tl.load(gradient + edge * 3 + 2, mask=live, other=0.0)
    tl.store(to_positions + atom * 3, tl.sum(out_x - in_x, axis=0))
    tl.store(to_positions + atom * 3 + 1, tl.sum(out_y - in_y, axis=0))
    tl.store(to_positions + atom * 3 + 2, tl.sum(out_z - in_z, axis=0))
    own = virials + atom * 9
    tl.store(own, tl.sum(xx, axis=0))
    tl.store(own + 1, tl.sum(xy, axis=0))
    tl.store(own + 2, tl.sum(xz, axis=0))
    tl.store(own + 3, tl.sum(yx, axis=0))
    tl.store(own + 4, tl.sum(yy, axis=0))
    tl.store(own + 5, tl.sum(yz, axis=0))
    tl.store(own + 6, tl.sum(zx, axis=0))
    tl.store(own + 7, tl.sum(zy, axis=0))
    tl.store(own + 8, tl.sum(zz, axis=0))


@triton.jit
def _sums_at_systems(virials, atom_starts, parts, SLICES: tl.constexpr, ROWS: tl.constexpr):
    """Sum the virials of a slice of a system's atoms, [rows, 16] with 9 columns in use."""
    system, part = tl.program_id(0), tl.program_id(1)
    row, column = tl.arange(0, ROWS), tl.arange(0, 16)
    begin, end = slice_of_edges(atom_starts, system, part, SLICES)
    total = tl.zeros([ROWS, 16], dtype=tl.float64)
    for first in range(begin, end, ROWS):
        inside = (first + row < end)[:, None] & (column < 9)[None, :]
        total += tl.load(virials + (first + row)[:, None] * 9 + column[None, :], mask=inside, other=0.0)
    tl.store(parts + (system * SLICES + part) * 9 + column, tl.sum(total, axis=0), mask=column < 9)


def edge_geometry(
    edge_vec: Tensor, n_live: Tensor, cutoff: float, shape: MessageShape, geometry: Tensor, distance: Tensor
) -> None:
    """Compute distances, envelopes and rotations of edges (MODEL.md sections 4 and 5).

    Args:
        edge_vec: [capacity, 3], Å, from target to source; float64.
        n_live: [1] int32 on the device, the number of edges.
        cutoff: Å.
        shape: Sizes; `serves` tells which.
        geometry: [capacity, width] float32, receives the rows of `layout`. Their places from 1 to 9 are the frame.
        distance: [capacity] float32, Å, receives the distances.

    Raises:
        ValueError: Degrees that are not served, or tensors that do not fit together.
    """
    if not serves(shape):
        message = f"lmax is {shape.lmax}; the kernel of edge geometry serves 1 to {LARGEST_DEGREE}"
        raise ValueError(message)
    capacity, n_columns = edge_vec.shape[0], geometry_width(shape.lmax, shape.mmax)
    check("edge_vec", edge_vec, (capacity, 3), torch.float64)
    check("n_live", n_live, (1,), torch.int32)
    check("geometry", geometry, (capacity, n_columns), torch.float32)
    check("distance", distance, (capacity,), torch.float32)
    if capacity:
        _edge_geometry[(triton.cdiv(capacity, EDGES), shape.lmax)](
            edge_vec, geometry, distance, n_live,
            CUTOFF=cutoff, LMAX=shape.lmax, MMAX=shape.mmax, GEOMETRY=n_columns, ROWS=EDGES, num_warps=EDGES // 32,
        )  # fmt: skip


def edge_gradient(edge_vec: Tensor, n_live: Tensor, of_ends: Tensor, of_sums: Tensor, gradient: Tensor) -> Tensor:
    """Compute dE/d(edge_vec) from the tangents that all tasks have left.

    Args:
        edge_vec: [capacity, 3], Å; float64.
        n_live: [1] int32 on the device, the number of edges.
        of_ends: [n_tasks, capacity, 3] float32, (T_x, T_z, dE/dd) of the operations on ends.
        of_sums: [n_tasks, capacity, 3] float32, of the others.
        gradient: [capacity, 3] float64, written up to the last edge there is, and returned.

    Raises:
        ValueError: Tensors that do not fit together.
    """
    capacity = edge_vec.shape[0]
    check("edge_vec", edge_vec, (capacity, 3), torch.float64)
    check("n_live", n_live, (1,), torch.int32)
    check("of_ends", of_ends, (None, capacity, 3), torch.float32)
    check("of_sums", of_sums, (None, capacity, 3), torch.float32)
    check("gradient", gradient, (capacity, 3), torch.float64)
    if capacity:
        _edge_gradient[(triton.cdiv(capacity, EDGES),)](
            edge_vec, of_ends, of_sums, gradient, n_live, capacity,
            ENDS=of_ends.shape[0], SUMS=of_sums.shape[0], ROWS=EDGES, num_warps=EDGES // 32,
        )  # fmt: skip
    return gradient


def forces_and_virial(
    gradient: Tensor, edge_vec: Tensor, edges: EdgeTables, atom_starts: Tensor
) -> tuple[Tensor, Tensor]:
    """Sum the gradients of edges at atoms and at systems (MODEL.md section 10).

    Args:
        gradient: [capacity, 3], dE/d(edge_vec); float64.
        edge_vec: [capacity, 3], Å; float64.
        edges: The edges of each atom, as a target and as a source.
        atom_starts: [n_systems + 1] int32, where the atoms of each system begin, and the end.

    Returns:
        dE/d(positions) [n_atoms, 3], and sum_e dE/dv_e (x) v_e [n_systems, 3, 3]; float64. An edge belongs to the system of
        its target.

    Raises:
        ValueError: Tensors that do not fit together.
    """
    n_atoms, n_systems = edges.target_starts.shape[0] - 1, atom_starts.shape[0] - 1
    for name, tensor in (("gradient", gradient), ("edge_vec", edge_vec)):
        check(name, tensor, (edges.capacity, 3), torch.float64)
    check("atom_starts", atom_starts, (n_systems + 1,), torch.int32)
    check("source_starts", edges.source_starts, (n_atoms + 1,), torch.int32)
    to_positions, virials = (torch.empty(n_atoms, n, dtype=torch.float64, device=gradient.device) for n in (3, 9))
    n_slices = max(1, min(MOST_SLICES, n_atoms // (ATOMS_OF_A_SLICE * max(1, n_systems))))
    parts = torch.empty(n_systems, n_slices, 9, dtype=torch.float64, device=gradient.device)
    if n_atoms:
        _sums_at_atoms[(n_atoms,)](
            gradient, edge_vec, edges.target_starts, edges.by_source, edges.source_starts, to_positions, virials,
            ROWS=32, num_warps=1,
        )  # fmt: skip
    if n_systems:
        _sums_at_systems[(n_systems, n_slices)](virials, atom_starts, parts, SLICES=n_slices, ROWS=64, num_warps=4)
    return to_positions, parts.sum(1).unflatten(1, (3, 3))


def check(name: str, tensor: Tensor, shape: tuple[int | None, ...], dtype: torch.dtype) -> None:
    """Make sure that a kernel reads inside a tensor, whose values have to stand one after the other."""
    check_tensor(name, tensor, shape, dtype)
    if not tensor.is_contiguous():
        message = f"the values of {name} do not stand one after the other; give a contiguous tensor"
        raise ValueError(message)
