"""Node -> edge: gather both ends, rotate them into the edge's frame and scale them by the radial factors, and the adjoint.

The formulas are `edge_steps.gather_rotate` and `gather_rotate_adjoint`. With y = D x a rotated end, r its radial factors, g
the gradient of r y and b = r g: the node gets D^T b, the torque is <b, L_k y>, and dE/dd is <g y, r'>. In Triton the share of
an edge's source is written as a row, and summed by `segment_sum`; that of its target is summed by the program that owns the
atom. Gradients of edges carry the power of two of their target (`EdgeTables.scales`), so that float16 can hold them.
"""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgewise.ops.fused.cuda import gather_rotate as cuda
from edgewise.ops.fused.layout import coefficient, coupling, highest, radial_factor, rotation, tile_rows
from edgewise.ops.fused.operands import parts, store_operand
from edgewise.ops.fused.row_format import RowFormat, format_of
from edgewise.ops.fused.segment_sum import segment_sum, sum_of_slices
from edgewise.ops.fused.shapes import EdgeTables, check_rows, tile_constants
from edgewise.ops.launch import empty
from edgewise.ops.reference.edges import MessageShape


@triton.jit
def rotation_row(geometry, row, inside_row, DEGREE: tl.constexpr, ORDER: tl.constexpr, MMAX: tl.constexpr):
    """Load the row of a coefficient's rotation, as a column of a tile."""
    return tl.load(geometry + rotation(DEGREE, ORDER, MMAX) + row, mask=inside_row, other=0.0)[:, None]


@triton.jit
def degree_tile(nodes, row, inside, DEGREE: tl.constexpr, CHANNELS: tl.constexpr, column):
    """Load the coefficients of one degree of a node, [tile rows, channels]."""
    return tl.load(nodes + (DEGREE * DEGREE + row)[:, None] * CHANNELS + column[None, :], mask=inside, other=0.0).to(
        tl.float32
    )


@triton.jit
def load_channels(pointer, column, within):
    """Load the channels of one coefficient, in float32."""
    return tl.load(pointer + column, mask=within, other=0.0).to(tl.float32)


@triton.jit
def load_factor(radial, column, within, DEGREE: tl.constexpr, M: tl.constexpr, LMAX: tl.constexpr, C: tl.constexpr):
    """Load the radial factors of the orders +-M of a degree."""
    return load_channels(radial + radial_factor(DEGREE, M, LMAX) * (2 * C), column, within)


@triton.jit
def load_edge(rows, column, within, DEGREE: tl.constexpr, ORDER: tl.constexpr, LMAX: tl.constexpr, C: tl.constexpr):
    """Load one coefficient of an edge, at the columns of one of its ends."""
    return load_channels(rows + coefficient(DEGREE, ORDER, LMAX) * (2 * C), column, within)


@triton.jit
def _forward_degree(
    nodes, geometry, radial, out, column, within,
    DEGREE: tl.constexpr, LMAX: tl.constexpr, MMAX: tl.constexpr, CHANNELS: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """Rotate and scale one degree of one end of an edge; the pointers stand at the end's columns."""
    C2: tl.constexpr = 2 * CHANNELS
    if DEGREE == 0:
        factor = load_channels(radial, column, within)
        y = load_channels(nodes, column, within)
        store_operand(out + column, y * factor, within, 0, 0, LMAX, 0, C2, FORMAT)
    else:
        row = tl.arange(0, tile_rows(DEGREE))
        inside_row = row < 2 * DEGREE + 1
        x = degree_tile(nodes, row, inside_row[:, None] & within[None, :], DEGREE, CHANNELS, column)
        for m in tl.static_range(0, min(DEGREE, MMAX) + 1):
            factor = load_factor(radial, column, within, DEGREE, m, LMAX, CHANNELS)
            y = tl.sum(rotation_row(geometry, row, inside_row, DEGREE, m, MMAX) * x, axis=0)
            store_operand(out + column, y * factor, within, coefficient(DEGREE, m, LMAX), m, LMAX, 0, C2, FORMAT)
            if m > 0:
                y = tl.sum(rotation_row(geometry, row, inside_row, DEGREE, -m, MMAX) * x, axis=0)
                store_operand(out + column, y * factor, within, coefficient(DEGREE, -m, LMAX), m, LMAX, 0, C2, FORMAT)


@triton.jit
def _gather_rotate(
    nodes, ends, geometry, radial, out, n_live, n_edges,
    LMAX: tl.constexpr, MMAX: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
    COEFFICIENTS: tl.constexpr, FACTORS: tl.constexpr, GEOMETRY: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """Do one end of an edge for one degree."""
    edge = tl.program_id(0).to(tl.int64)
    end = tl.program_id(1) % 2
    degree = tl.program_id(1) // 2
    if edge < tl.load(n_live):
        column = tl.arange(0, BLOCK)
        within = column < CHANNELS
        x = nodes + tl.load(ends + end * n_edges + edge).to(tl.int64) * ((LMAX + 1) * (LMAX + 1) * CHANNELS)
        here = end * CHANNELS
        r = radial + edge * (FACTORS * 2 * CHANNELS) + here
        o = out + edge * (parts(FORMAT) * COEFFICIENTS * 2 * CHANNELS) + here
        for own in tl.static_range(0, LMAX + 1):
            if degree == own:
                _forward_degree(x, geometry + edge * GEOMETRY, r, o, column, within, own, LMAX, MMAX, CHANNELS, FORMAT)


@triton.jit
def torque_of_pair(
    torque_x, torque_z, b_plus, b_minus, y_plus, y_minus, b_plus_, b_minus_, y_plus_, y_minus_,
    DEGREE: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Add what the orders +-M (b, y) and +-(M + 1) (b_, y_) give to the torque; M = 0 has one order on its side."""
    c = coupling(DEGREE, M)
    if M == 0:
        torque_x += c * (b_plus_ * y_plus - b_plus * y_plus_)
        torque_z += c * (b_plus * y_minus_ - b_minus_ * y_plus)
    else:
        torque_x += c * (b_plus_ * y_plus - b_plus * y_plus_ + b_minus_ * y_minus - b_minus * y_minus_)
        torque_z += c * (b_plus_ * y_minus - b_minus * y_plus_ + b_plus * y_minus_ - b_minus_ * y_plus)
    return torque_x, torque_z


@triton.jit
def _adjoint_degree(
    nodes, geometry, radial, radial_slope, gradient, column, within,
    DEGREE: tl.constexpr, LMAX: tl.constexpr, MMAX: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Return the node's share D^T b, [tile rows, channels], and each channel's share of torque and slope."""
    row = tl.arange(0, tile_rows(DEGREE))
    inside_row = row < 2 * DEGREE + 1
    x = degree_tile(nodes, row, inside_row[:, None] & within[None, :], DEGREE, CHANNELS, column)
    to_node = tl.zeros_like(x)
    torque_x = tl.zeros([column.shape[0]], dtype=tl.float32)
    torque_z, slope = torque_x, torque_x
    b_plus, b_minus, y_plus, y_minus = torque_x, torque_x, torque_x, torque_x
    for m in tl.static_range(0, highest(DEGREE, MMAX) + 1):
        b_plus_, b_minus_, y_plus_, y_minus_ = b_plus, b_minus, y_plus, y_minus
        if DEGREE == 0:
            plus = tl.full([1, 1], 1.0, dtype=tl.float32)
        else:
            plus = rotation_row(geometry, row, inside_row, DEGREE, m, MMAX)
        y_plus = tl.sum(plus * x, axis=0)
        y_minus = y_plus
        if m <= MMAX:
            factor = load_factor(radial, column, within, DEGREE, m, LMAX, CHANNELS)
            factor_slope = load_factor(radial_slope, column, within, DEGREE, m, LMAX, CHANNELS)
            g = load_edge(gradient, column, within, DEGREE, m, LMAX, CHANNELS)
            slope += g * y_plus * factor_slope
            b_plus = g * factor
            b_minus = b_plus
            to_node += plus * b_plus[None, :]
        else:
            b_plus = tl.zeros_like(slope)
            b_minus = b_plus
        if m > 0:
            minus = rotation_row(geometry, row, inside_row, DEGREE, -m, MMAX)
            y_minus = tl.sum(minus * x, axis=0)
            if m <= MMAX:
                g = load_edge(gradient, column, within, DEGREE, -m, LMAX, CHANNELS)
                slope += g * y_minus * factor_slope
                b_minus = g * factor
                to_node += minus * b_minus[None, :]
            torque_x, torque_z = torque_of_pair(
                torque_x, torque_z, b_plus_, b_minus_, y_plus_, y_minus_, b_plus, b_minus, y_plus, y_minus, DEGREE, m - 1
            )  # fmt: skip
    return to_node, torque_x, torque_z, slope


@triton.jit
def add_tangents(tangents, torque_x, torque_z, slope, factor, DEGREE: tl.constexpr):
    """Add the sums over channels, times a factor, to the three numbers of an edge that this task owns."""
    if DEGREE > 0:  # scalars have no torque
        tl.store(tangents, tl.load(tangents) + factor * tl.sum(torque_x, axis=0))
        tl.store(tangents + 1, tl.load(tangents + 1) + factor * tl.sum(torque_z, axis=0))
    tl.store(tangents + 2, tl.load(tangents + 2) + factor * tl.sum(slope, axis=0))


@triton.jit
def _gather_rotate_to_source(
    nodes, ends, scales, geometry, radial, radial_slope, gradient, rows, tangents, n_live, n_edges,
    LMAX: tl.constexpr, MMAX: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
    COEFFICIENTS: tl.constexpr, FACTORS: tl.constexpr, GEOMETRY: tl.constexpr,
):  # fmt: skip
    """Write the source's share of an edge as a row, for one degree."""
    edge = tl.program_id(0).to(tl.int64)
    degree = tl.program_id(1)
    N: tl.constexpr = (LMAX + 1) * (LMAX + 1)
    if edge < tl.load(n_live):
        column = tl.arange(0, BLOCK)
        within = column < CHANNELS
        x = nodes + tl.load(ends + edge).to(tl.int64) * (N * CHANNELS)
        factors = edge * (FACTORS * 2 * CHANNELS)
        own_tangents = tangents + (degree * n_edges + edge) * 3
        unscaled = 1 / tl.load(scales + tl.load(ends + n_edges + edge))
        for own in tl.static_range(0, LMAX + 1):
            if degree == own:
                to_node, torque_x, torque_z, slope = _adjoint_degree(
                    x, geometry + edge * GEOMETRY, radial + factors, radial_slope + factors,
                    gradient + edge * (COEFFICIENTS * 2 * CHANNELS), column, within, own, LMAX, MMAX, CHANNELS,
                )  # fmt: skip
                row = tl.arange(0, tile_rows(own))
                place = (own * own + row)[:, None] * CHANNELS + column[None, :]
                inside = (row < 2 * own + 1)[:, None] & within[None, :]
                tl.store(rows + edge * (N * CHANNELS) + place, to_node, mask=inside)
                add_tangents(own_tangents, torque_x, torque_z, slope, unscaled, own)


@triton.jit
def slice_of_edges(starts, atom, part, SLICES: tl.constexpr):
    """Return where one of the slices of an atom's edges begins and ends."""
    start, stop = tl.load(starts + atom).to(tl.int64), tl.load(starts + atom + 1).to(tl.int64)
    return start + (stop - start) * part // SLICES, start + (stop - start) * (part + 1) // SLICES


@triton.jit
def _gather_rotate_to_target(
    nodes, starts, scales, geometry, radial, radial_slope, gradient, to_nodes, tangents, n_edges, n_atoms,
    LMAX: tl.constexpr, MMAX: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
    COEFFICIENTS: tl.constexpr, FACTORS: tl.constexpr, GEOMETRY: tl.constexpr, SLICES: tl.constexpr,
):  # fmt: skip
    """Sum the targets' shares of a slice of an atom's edges, for one degree."""
    atom = tl.program_id(0).to(tl.int64)
    degree = tl.program_id(1)
    part = tl.program_id(2)
    N: tl.constexpr = (LMAX + 1) * (LMAX + 1)
    column = tl.arange(0, BLOCK)
    within = column < CHANNELS
    begin, end = slice_of_edges(starts, atom, part, SLICES)
    unscaled = 1 / tl.load(scales + atom)
    for own in tl.static_range(0, LMAX + 1):
        if degree == own:
            row = tl.arange(0, tile_rows(own))
            total = tl.zeros([tile_rows(own), BLOCK], dtype=tl.float32)
            for edge in range(begin, end):
                factors = edge * (FACTORS * 2 * CHANNELS) + CHANNELS
                to_node, torque_x, torque_z, slope = _adjoint_degree(
                    nodes + atom * (N * CHANNELS), geometry + edge * GEOMETRY, radial + factors, radial_slope + factors,
                    gradient + edge * (COEFFICIENTS * 2 * CHANNELS) + CHANNELS, column, within, own, LMAX, MMAX, CHANNELS,
                )  # fmt: skip
                total += to_node
                own_tangents = tangents + ((LMAX + 1 + own) * n_edges + edge) * 3
                add_tangents(own_tangents, torque_x, torque_z, slope, unscaled, own)
            place = (own * own + row)[:, None] * CHANNELS + column[None, :]
            inside = (row < 2 * own + 1)[:, None] & within[None, :]
            tl.store(to_nodes + (part * n_atoms + atom) * (N * CHANNELS) + place, total * unscaled, mask=inside)


def _constants(shape: MessageShape) -> dict[str, int]:
    return {**tile_constants(shape), "FACTORS": sum(shape.sizes)}


def gather_rotate(
    nodes: Tensor,
    edges: EdgeTables,
    radial: Tensor,
    shape: MessageShape,
    out: Tensor,
    *,
    row_format: RowFormat | None = None,
    in_cuda: bool = False,
) -> Tensor:
    """Gather both ends of each edge, rotate them into its frame and scale them.

    Args:
        nodes: [n_atoms, n_coefficients, channels] float32.
        edges: Ends, geometry and number of the edges.
        radial: [capacity, sum of n_m * 2 * channels].
        shape: Sizes.
        out: [capacity, n_edge_coefficients * 2 * channels], in the parts of the format, written up to the last edge there is.
        row_format: How `out` is written; see `format_of`.
        in_cuda: Take the kernels in CUDA C++ in place of Triton's; `cuda.missing` tells where they cannot serve.

    Raises:
        ValueError: Tensors that do not fit together, or with `in_cuda` what there are no such kernels for.
        ModeUnavailableError: With `in_cuda`, kernels that cannot be compiled or launched.
    """
    constants, channels = _constants(shape), shape.channels
    check_rows("radial", radial, edges.capacity, constants["FACTORS"] * 2 * channels)
    row_format = format_of(out, constants["COEFFICIENTS"] * 2 * channels, row_format)
    check_rows("out", out, edges.capacity, row_format.parts * constants["COEFFICIENTS"] * 2 * channels)
    check_rows("nodes", nodes.flatten(1), nodes.shape[0], (shape.lmax + 1) ** 2 * channels)
    if in_cuda:
        cuda.gather_rotate(nodes, edges, radial, shape, out, row_format)
    elif edges.capacity:
        _gather_rotate[(edges.capacity, 2 * (shape.lmax + 1))](
            nodes,
            edges.ends,
            edges.geometry,
            radial,
            out,
            edges.n_live,
            edges.capacity,
            FORMAT=row_format.name,
            **constants,
        )
    return out


def gather_rotate_adjoint(
    gradient: Tensor,
    nodes: Tensor,
    edges: EdgeTables,
    radial: Tensor,
    radial_slope: Tensor,
    shape: MessageShape,
    to_nodes: Tensor,
    tangents: Tensor,
    *,
    in_cuda: bool = False,
) -> Tensor:
    """Adjoint of `gather_rotate`.

    Args:
        gradient: [capacity, n_edge_coefficients * 2 * channels], of what `gather_rotate` made, times the target's scale.
        nodes: As before.
        edges: As before.
        radial: As before.
        radial_slope: Derivatives of the factors with respect to the distance, 1/Å.
        shape: As before.
        to_nodes: [n_slices, n_atoms, n_coefficients, channels] float32, is written to: the edges of an atom are cut into slices,
            so that few atoms keep a GPU busy.
        tangents: [2 (lmax + 1), capacity, 3] float32, added to: (T_x, T_z, dE/dd) by end and degree. Kernels that do several
            degrees at once add to the place of the first.
        in_cuda: As before.

    Returns:
        [n_atoms, n_coefficients, channels] float32, the gradient of the nodes.

    Raises:
        ValueError: Tensors that do not fit together, or with `in_cuda` what there are no such kernels for.
        ModeUnavailableError: With `in_cuda`, kernels that cannot be compiled or launched.
    """
    constants, channels, n_atoms = _constants(shape), shape.channels, nodes.shape[0]
    n_coefficients = (shape.lmax + 1) ** 2
    for name, tensor in (("radial", radial), ("radial_slope", radial_slope)):
        check_rows(name, tensor, edges.capacity, constants["FACTORS"] * 2 * channels)
    check_rows("gradient", gradient, edges.capacity, constants["COEFFICIENTS"] * 2 * channels)
    check_rows("nodes", nodes.flatten(1), n_atoms, n_coefficients * channels)
    check_rows("to_nodes", to_nodes.flatten(2).flatten(0, 1), to_nodes.shape[0] * n_atoms, n_coefficients * channels)
    check_rows("tangents", tangents.flatten(0, 1), 2 * (shape.lmax + 1) * edges.capacity, 3)
    if in_cuda:
        cuda.gather_rotate_adjoint(gradient, nodes, edges, radial, radial_slope, shape, to_nodes, tangents)
        return sum_of_slices(to_nodes)
    inputs = (edges.geometry, radial, radial_slope, gradient)
    # Each source's share, times the target's scale.
    rows = empty(gradient, edges.capacity, n_coefficients, channels)
    if edges.capacity:
        _gather_rotate_to_source[(edges.capacity, shape.lmax + 1)](
            nodes, edges.ends, edges.scales, *inputs, rows, tangents, edges.n_live, edges.capacity, **constants
        )
    if n_atoms:
        _gather_rotate_to_target[(n_atoms, shape.lmax + 1, to_nodes.shape[0])](
            nodes, edges.target_starts, edges.scales, *inputs, to_nodes, tangents, edges.capacity, n_atoms,
            SLICES=to_nodes.shape[0], **constants,
        )  # fmt: skip
    return segment_sum(rows, to_nodes, edges, torch.empty_like(nodes))
