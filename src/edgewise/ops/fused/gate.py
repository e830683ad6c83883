"""The gate activation between the two SO(2) maps, and its adjoint.

The formulas are `reference.gate` and `edge_steps.gate_adjoint`: SiLU of the scalars, every other value of degree l times
s_l = sigmoid(a_l). A row before the gate begins with the gate scalars a_1 .. a_lmax; values follow in m-major order. The bias
of the map in front, which belongs to the gate scalars and to m = 0, is added here.
"""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from edgewise.ops.fused.layout import coefficient, n_edge_coefficients
from edgewise.ops.fused.operands import parts, store_operand
from edgewise.ops.fused.row_format import RowFormat, format_of
from edgewise.ops.fused.shapes import EdgeTables, check_rows
from edgewise.ops.launch import width
from edgewise.ops.reference.edges import MessageShape

EDGES = 8
"""Edges of a program."""


@triton.jit
def _tile(pointer, inside):
    return tl.load(pointer, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _with_bias(pointer, bias, column, inside, PLACE: tl.constexpr, HIDDEN: tl.constexpr):
    """Load the values at one place before the gate and add their bias."""
    b = tl.load(bias + PLACE * HIDDEN + column, mask=column < HIDDEN, other=0.0)
    return _tile(pointer + PLACE * HIDDEN, inside) + b[None, :]


@triton.jit
def _place(ROWS: tl.constexpr, LMAX: tl.constexpr):
    """Return the edges and the degree of a program: all degrees of the last edges first, which products have just written."""
    program, n_programs = tl.program_id(0), tl.num_programs(0)
    tile = (n_programs - 1 - program) // (LMAX + 1)
    return tile.to(tl.int64) * ROWS + tl.arange(0, ROWS), program % (LMAX + 1)


@triton.jit
def _gate(
    before, bias, out, n_live,
    LMAX: tl.constexpr, MMAX: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    COEFFICIENTS: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """Activate one degree of a few edges."""
    edge, degree = _place(ROWS, LMAX)
    column = tl.arange(0, BLOCK)
    inside = (edge < tl.load(n_live))[:, None] & (column < HIDDEN)[None, :]
    source = before + edge[:, None] * ((LMAX + COEFFICIENTS) * HIDDEN) + column[None, :]
    values = source + LMAX * HIDDEN
    target = out + edge[:, None] * (parts(FORMAT) * COEFFICIENTS * HIDDEN) + column[None, :]
    for own in tl.static_range(0, LMAX + 1):
        if degree == own:
            v = _with_bias(source, bias, column, inside, LMAX + own, HIDDEN)
            if own == 0:
                store_operand(target, v * tl.sigmoid(v), inside, 0, 0, LMAX, 0, HIDDEN, FORMAT)
            else:
                s = tl.sigmoid(_with_bias(source, bias, column, inside, own - 1, HIDDEN))
                store_operand(target, v * s, inside, own, 0, LMAX, 0, HIDDEN, FORMAT)
                for m in tl.static_range(1, min(own, MMAX) + 1):
                    v = _tile(values + coefficient(own, m, LMAX) * HIDDEN, inside)
                    store_operand(target, v * s, inside, coefficient(own, m, LMAX), m, LMAX, 0, HIDDEN, FORMAT)
                    v = _tile(values + coefficient(own, -m, LMAX) * HIDDEN, inside)
                    store_operand(target, v * s, inside, coefficient(own, -m, LMAX), m, LMAX, 0, HIDDEN, FORMAT)


@triton.jit
def _gated_value(
    v, gradient, out, s, inside,
    PLACE: tl.constexpr, ORDER: tl.constexpr, LMAX: tl.constexpr, HIDDEN: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """Do one gated coefficient with value v; return its share of the gate's gradient."""
    g = _tile(gradient + PLACE * HIDDEN, inside)
    store_operand(out, g * s, inside, LMAX + PLACE, ORDER, LMAX, LMAX, HIDDEN, FORMAT)
    return g * v


@triton.jit
def _gate_adjoint(
    before, bias, gradient, out, n_live,
    LMAX: tl.constexpr, MMAX: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    COEFFICIENTS: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """Make the gradients of one degree of a few edges, before the gate."""
    edge, degree = _place(ROWS, LMAX)
    column = tl.arange(0, BLOCK)
    inside = (edge < tl.load(n_live))[:, None] & (column < HIDDEN)[None, :]
    row = edge[:, None] * ((LMAX + COEFFICIENTS) * HIDDEN) + column[None, :]
    values = before + row + LMAX * HIDDEN
    target = out + edge[:, None] * (parts(FORMAT) * (LMAX + COEFFICIENTS) * HIDDEN) + column[None, :]
    g = gradient + edge[:, None] * (COEFFICIENTS * HIDDEN) + column[None, :]
    for own in tl.static_range(0, LMAX + 1):
        if degree == own:
            if own == 0:
                v = _with_bias(before + row, bias, column, inside, LMAX, HIDDEN)
                s = tl.sigmoid(v)
                to_first = _tile(g, inside) * s * (1 + v * (1 - s))
                store_operand(target, to_first, inside, LMAX, 0, LMAX, LMAX, HIDDEN, FORMAT)
            else:
                s = tl.sigmoid(_with_bias(before + row, bias, column, inside, own - 1, HIDDEN))
                v = _with_bias(before + row, bias, column, inside, LMAX + own, HIDDEN)
                total = _gated_value(v, g, target, s, inside, own, 0, LMAX, HIDDEN, FORMAT)
                for m in tl.static_range(1, min(own, MMAX) + 1):
                    v = _tile(values + coefficient(own, m, LMAX) * HIDDEN, inside)
                    total += _gated_value(v, g, target, s, inside, coefficient(own, m, LMAX), m, LMAX, HIDDEN, FORMAT)
                    v = _tile(values + coefficient(own, -m, LMAX) * HIDDEN, inside)
                    total += _gated_value(v, g, target, s, inside, coefficient(own, -m, LMAX), m, LMAX, HIDDEN, FORMAT)
                store_operand(target, total * s * (1 - s), inside, own - 1, 0, LMAX, LMAX, HIDDEN, FORMAT)


def _constants(shape: MessageShape) -> dict[str, int]:
    return {
        "LMAX": shape.lmax,
        "MMAX": shape.mmax,
        "HIDDEN": shape.hidden,
        "BLOCK": width(shape.hidden),
        "ROWS": EDGES,
        "COEFFICIENTS": n_edge_coefficients(shape.lmax, shape.mmax),
    }


def _grid(edges: EdgeTables, shape: MessageShape) -> tuple[int]:
    return (-(-edges.capacity // EDGES) * (shape.lmax + 1),)


def gate(
    before: Tensor,
    bias: Tensor,
    edges: EdgeTables,
    shape: MessageShape,
    out: Tensor,
    *,
    row_format: RowFormat | None = None,
) -> Tensor:
    """Apply the gate activation.

    Args:
        before: [capacity, (lmax + n_edge_coefficients) * hidden], gate scalars in front.
        bias: [(2 lmax + 1) * hidden] float32, of the gate scalars and m = 0.
        edges: Number of the edges.
        shape: Sizes.
        out: [capacity, n_edge_coefficients * hidden], in the parts of the format.
        row_format: How `out` is written; see `format_of`.

    Raises:
        ValueError: Tensors that do not fit together.
    """
    constants = _constants(shape)
    check_rows("before", before, edges.capacity, (shape.lmax + constants["COEFFICIENTS"]) * shape.hidden)
    row_format = format_of(out, constants["COEFFICIENTS"] * shape.hidden, row_format)
    check_rows("out", out, edges.capacity, row_format.parts * constants["COEFFICIENTS"] * shape.hidden)
    check_rows("bias", bias[None], 1, (2 * shape.lmax + 1) * shape.hidden)
    if edges.capacity:
        _gate[_grid(edges, shape)](before, bias, out, edges.n_live, FORMAT=row_format.name, **constants)
    return out


def gate_adjoint(
    gradient: Tensor,
    before: Tensor,
    bias: Tensor,
    edges: EdgeTables,
    shape: MessageShape,
    out: Tensor,
    *,
    row_format: RowFormat | None = None,
) -> Tensor:
    """Adjoint of `gate`.

    Args:
        gradient: [capacity, n_edge_coefficients * hidden], of the gated values.
        before: What was gated.
        bias: As before.
        edges: As before.
        shape: As before.
        out: Like `before`, in the parts of the format, receives its gradient.
        row_format: How `out` is written; see `format_of`.

    Raises:
        ValueError: Tensors that do not fit together.
    """
    constants = _constants(shape)
    n_before = (shape.lmax + constants["COEFFICIENTS"]) * shape.hidden
    row_format = format_of(out, n_before, row_format)
    check_rows("before", before, edges.capacity, n_before)
    check_rows("out", out, edges.capacity, row_format.parts * n_before)
    check_rows("gradient", gradient, edges.capacity, constants["COEFFICIENTS"] * shape.hidden)
    check_rows("bias", bias[None], 1, (2 * shape.lmax + 1) * shape.hidden)
    if edges.capacity:
        _gate_adjoint[_grid(edges, shape)](
            before, bias, gradient, out, edges.n_live, FORMAT=row_format.name, **constants
        )
    return out
