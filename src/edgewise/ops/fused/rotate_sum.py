"""Edge -> node: rotate edge features back, scale them by the envelope and sum them at the targets, and the adjoint.

The formulas are `edge_steps.rotate_sum` and `rotate_sum_adjoint`. With z the features of an edge, G = D g the rotated
gradient at its target and env the envelope: the target gets the sum of env D^T z; the features get env G, the torque is
env <z, L_k G>, and dE/dd is env' <G, z>. The degree embedding has m = 0 alone, and its features depend on the distance by
themselves, which adds env <G, dz/dd>. The bias of the map in front, which belongs to m = 0, is added here.
"""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from edgewise.ops.fused.cuda import rotate_sum as cuda
from edgewise.ops.fused.gather_rotate import (
    add_tangents,
    degree_tile,
    load_channels,
    rotation_row,
    slice_of_edges,
    torque_of_pair,
)
from edgewise.ops.fused.layout import (
    coefficient,
    envelope_slope,
    highest,
    tile_rows,
)
from edgewise.ops.fused.operands import parts, store_operand
from edgewise.ops.fused.row_format import RowFormat, format_of, plain_format
from edgewise.ops.fused.shapes import EdgeTables, check_rows, tile_constants
from edgewise.ops.reference.edges import MessageShape


@triton.jit
def _load_feature(
    rows, bias, column, within, DEGREE: tl.constexpr, ORDER: tl.constexpr, LMAX: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """Load one coefficient of an edge and add its bias."""
    z = load_channels(rows + coefficient(DEGREE, ORDER, LMAX) * C, column, within)
    if ORDER == 0:
        z += load_channels(bias + DEGREE * C, column, within)
    return z


@triton.jit
def _back(
    features, bias, geometry, column, within,
    DEGREE: tl.constexpr, LMAX: tl.constexpr, MMAX: tl.constexpr, ORDERS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Return one degree of an edge's message without the envelope, [tile rows, channels]."""
    row = tl.arange(0, tile_rows(DEGREE))
    inside_row = row < 2 * DEGREE + 1
    z = _load_feature(features, bias, column, within, DEGREE, 0, LMAX, CHANNELS)
    if DEGREE == 0:
        message = z[None, :]
    else:
        message = rotation_row(geometry, row, inside_row, DEGREE, 0, MMAX) * z[None, :]
        for m in tl.static_range(1, min(DEGREE, ORDERS) + 1):
            z = _load_feature(features, bias, column, within, DEGREE, m, LMAX, CHANNELS)
            message += rotation_row(geometry, row, inside_row, DEGREE, m, MMAX) * z[None, :]
            z = _load_feature(features, bias, column, within, DEGREE, -m, LMAX, CHANNELS)
            message += rotation_row(geometry, row, inside_row, DEGREE, -m, MMAX) * z[None, :]
    return message


@triton.jit
def _rotate_sum(
    features, bias, starts, geometry, nodes, n_atoms,
    LMAX: tl.constexpr, MMAX: tl.constexpr, ORDERS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
    COEFFICIENTS: tl.constexpr, GEOMETRY: tl.constexpr, SLICES: tl.constexpr,
):  # fmt: skip
    """Sum a slice of the edges into an atom, for one degree."""
    atom = tl.program_id(0).to(tl.int64)
    degree = tl.program_id(1)
    part = tl.program_id(2)
    column = tl.arange(0, BLOCK)
    within = column < CHANNELS
    begin, end = slice_of_edges(starts, atom, part, SLICES)
    for own in tl.static_range(0, LMAX + 1):
        if degree == own:
            row = tl.arange(0, tile_rows(own))
            total = tl.zeros([tile_rows(own), BLOCK], dtype=tl.float32)
            for edge in range(begin, end):
                of_edge = geometry + edge * GEOMETRY
                message = _back(
                    features + edge * (COEFFICIENTS * CHANNELS), bias, of_edge, column, within,
                    own, LMAX, MMAX, ORDERS, CHANNELS,
                )  # fmt: skip
                total += tl.load(of_edge) * message
            place = (own * own + row)[:, None] * CHANNELS + column[None, :]
            inside = (row < 2 * own + 1)[:, None] & within[None, :]
            out = nodes + (part * n_atoms + atom) * ((LMAX + 1) * (LMAX + 1) * CHANNELS)
            tl.store(out + place, total, mask=inside)


@triton.jit
def _adjoint_degree(
    gradient, features, bias, features_slope, geometry, out, scale, column, within,
    DEGREE: tl.constexpr, LMAX: tl.constexpr, MMAX: tl.constexpr, ORDERS: tl.constexpr, CHANNELS: tl.constexpr,
    EMBEDDING: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """Write the gradients of one degree's features; return each channel's share of torque and slope."""
    row = tl.arange(0, tile_rows(DEGREE))
    inside_row = row < 2 * DEGREE + 1
    g = degree_tile(gradient, row, inside_row[:, None] & within[None, :], DEGREE, CHANNELS, column)
    envelope, slope_of_envelope = tl.load(geometry), tl.load(geometry + envelope_slope(LMAX, MMAX))
    torque_x = tl.zeros([column.shape[0]], dtype=tl.float32)
    torque_z, slope = torque_x, torque_x
    z_plus, z_minus, y_plus, y_minus = torque_x, torque_x, torque_x, torque_x
    for m in tl.static_range(0, min(highest(DEGREE, MMAX), ORDERS + 1) + 1):
        z_plus_, z_minus_, y_plus_, y_minus_ = z_plus, z_minus, y_plus, y_minus
        if DEGREE == 0:
            plus = tl.full([1, 1], 1.0, dtype=tl.float32)
        else:
            plus = rotation_row(geometry, row, inside_row, DEGREE, m, MMAX)
        y_plus = tl.sum(plus * g, axis=0)
        y_minus = y_plus
        if m <= ORDERS:
            z_plus = _load_feature(features, bias, column, within, DEGREE, m, LMAX, CHANNELS)
            slope += slope_of_envelope * y_plus * z_plus
            if EMBEDDING:
                slope += (
                    envelope
                    * y_plus
                    * load_channels(features_slope + coefficient(DEGREE, m, LMAX) * CHANNELS, column, within)
                )
            else:
                store_operand(
                    out + column, envelope * scale * y_plus, within,
                    coefficient(DEGREE, m, LMAX), m, LMAX, 0, CHANNELS, FORMAT,
                )  # fmt: skip
        else:
            z_plus = tl.zeros_like(slope)
        z_minus = z_plus
        if m > 0:
            y_minus = tl.sum(rotation_row(geometry, row, inside_row, DEGREE, -m, MMAX) * g, axis=0)
            if m <= ORDERS:
                z_minus = _load_feature(features, bias, column, within, DEGREE, -m, LMAX, CHANNELS)
                slope += slope_of_envelope * y_minus * z_minus
                store_operand(
                    out + column, envelope * scale * y_minus, within,
                    coefficient(DEGREE, -m, LMAX), m, LMAX, 0, CHANNELS, FORMAT,
                )  # fmt: skip
            torque_x, torque_z = torque_of_pair(
                torque_x, torque_z, z_plus_, z_minus_, y_plus_, y_minus_, z_plus, z_minus, y_plus, y_minus, DEGREE, m - 1
            )  # fmt: skip
    return envelope * torque_x, envelope * torque_z, slope


@triton.jit
def _rotate_sum_to_edges(
    gradient, ends, scales, geometry, features, bias, features_slope, out, tangents, n_live, n_edges,
    LMAX: tl.constexpr, MMAX: tl.constexpr, ORDERS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
    COEFFICIENTS: tl.constexpr, GEOMETRY: tl.constexpr, EMBEDDING: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """Do one edge for one degree."""
    edge = tl.program_id(0).to(tl.int64)
    degree = tl.program_id(1)
    if edge < tl.load(n_live):
        column = tl.arange(0, BLOCK)
        within = column < CHANNELS
        target = tl.load(ends + n_edges + edge).to(tl.int64)
        g = gradient + target * ((LMAX + 1) * (LMAX + 1) * CHANNELS)
        here = edge * (COEFFICIENTS * CHANNELS)
        for own in tl.static_range(0, LMAX + 1):
            if degree == own:
                torque_x, torque_z, slope = _adjoint_degree(
                    g, features + here, bias, features_slope + here, geometry + edge * GEOMETRY,
                    out + parts(FORMAT) * here, tl.load(scales + target), column, within,
                    own, LMAX, MMAX, ORDERS, CHANNELS, EMBEDDING, FORMAT,
                )  # fmt: skip
                add_tangents(tangents + (own * n_edges + edge) * 3, torque_x, torque_z, slope, 1.0, own)


def _constants(shape: MessageShape, *, embedding: bool) -> dict[str, int]:
    orders = 0 if embedding else shape.mmax
    return {**tile_constants(shape, orders=orders), "ORDERS": orders}


def rotate_sum(
    features: Tensor,
    bias: Tensor,
    edges: EdgeTables,
    shape: MessageShape,
    nodes: Tensor,
    *,
    embedding: bool = False,
    in_cuda: bool = False,
) -> Tensor:
    """Rotate edge features back, scale them by the envelope and sum them at each edge's target.

    Args:
        features: [capacity, coefficients * channels], in m-major order.
        bias: [(lmax + 1) * channels] float32, of m = 0.
        edges: Targets and geometry.
        shape: Sizes.
        nodes: [n_slices, n_atoms, n_coefficients, channels], receives the sums; the edges of an atom are cut into slices,
            so that few atoms keep a GPU busy.
        embedding: The features have m = 0 alone.
        in_cuda: Take the kernels in CUDA C++ in place of Triton's; `cuda.missing` tells where they cannot serve.

    Raises:
        ValueError: Tensors that do not fit together, or with `in_cuda` what there are no such kernels for.
        ModeUnavailableError: With `in_cuda`, kernels that cannot be compiled or launched.
    """
    constants = _constants(shape, embedding=embedding)
    n_slices, n_atoms = nodes.shape[:2]
    check_rows("features", features, edges.capacity, constants["COEFFICIENTS"] * shape.channels)
    check_rows("nodes", nodes.flatten(2).flatten(0, 1), n_slices * n_atoms, (shape.lmax + 1) ** 2 * shape.channels)
    check_rows("bias", bias[None], 1, (shape.lmax + 1) * shape.channels)
    if in_cuda:
        cuda.rotate_sum(features, bias, edges, shape, nodes, embedding=embedding)
    elif n_atoms:
        _rotate_sum[(n_atoms, shape.lmax + 1, n_slices)](
            features, bias, edges.target_starts, edges.geometry, nodes, n_atoms, SLICES=n_slices, **constants
        )
    return nodes


def rotate_sum_adjoint(
    gradient: Tensor,
    features: Tensor,
    bias: Tensor,
    edges: EdgeTables,
    shape: MessageShape,
    out: Tensor,
    tangents: Tensor,
    *,
    features_slope: Tensor | None = None,
    row_format: RowFormat | None = None,
    in_cuda: bool = False,
) -> None:
    """Adjoint of `rotate_sum`.

    Args:
        gradient: [n_atoms, n_coefficients, channels], of the sums.
        features: As before.
        bias: As before.
        edges: As before.
        shape: As before.
        out: Like the features, in the parts of the format, receives their gradients times the target's scale; not written
            for the embedding, and no part of the features otherwise.
        tangents: [lmax + 1, capacity, 3] float32, added to: (T_x, T_z, dE/dd) by degree. Kernels that do several degrees at
            once add to the place of the first.
        features_slope: Of the embedding: derivatives of the features with respect to the distance, 1/Å.
        row_format: How `out` is written; see `format_of`.
        in_cuda: As before.

    Raises:
        ValueError: Tensors that do not fit together, or with `in_cuda` what there are no such kernels for.
        ModeUnavailableError: With `in_cuda`, kernels that cannot be compiled or launched.
    """
    embedding = features_slope is not None
    constants = _constants(shape, embedding=embedding)
    n_columns = constants["COEFFICIENTS"] * shape.channels
    slope = features if features_slope is None else features_slope
    row_format = plain_format(out.dtype) if embedding else format_of(out, n_columns, row_format)
    for name, tensor in (("features", features), ("features_slope", slope)):
        check_rows(name, tensor, edges.capacity, n_columns)
    check_rows("out", out, edges.capacity, row_format.parts * n_columns)
    check_rows("gradient", gradient.flatten(1), gradient.shape[0], (shape.lmax + 1) ** 2 * shape.channels)
    check_rows("tangents", tangents.flatten(0, 1), (shape.lmax + 1) * edges.capacity, 3)
    check_rows("bias", bias[None], 1, (shape.lmax + 1) * shape.channels)
    if in_cuda:
        cuda.rotate_sum_adjoint(
            gradient, features, bias, edges, shape, out, tangents, slope, row_format, embedding=embedding
        )
    elif edges.capacity:
        _rotate_sum_to_edges[(edges.capacity, shape.lmax + 1)](
            gradient, edges.ends, edges.scales, edges.geometry, features, bias, slope, out, tangents, edges.n_live,
            edges.capacity, EMBEDDING=embedding, FORMAT=row_format.name, **constants,
        )  # fmt: skip
