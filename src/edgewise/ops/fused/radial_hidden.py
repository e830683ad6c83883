"""Radial networks up to their last layer, values and slopes, all networks of a model in one kernel.

The formula is `radial_network.hidden_with_slope`, from the distance on: gaussians, first layer by tables of the elements,
layer norm, SiLU, linear, layer norm, SiLU (MODEL.md section 5). What comes later in the network amplifies errors made here,
and the work is small, so products are as good as float32: each operand is the sum of two float16, x = high + low / 2^11, and
of the four products the three that matter are summed in float32. The kernel in CUDA C++ reads the same weights less their means
over columns, so that its layer norms need no means.
"""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from edgewise.ops.fused.cuda import radial_hidden as cuda
from edgewise.ops.fused.cuda._radial_form import ArrangedWeights, arranged
from edgewise.ops.fused.operands import store_parts, to_tf32
from edgewise.ops.fused.row_format import CONSTANTS, RowFormat, high_and_low, plain_format
from edgewise.ops.fused.shapes import EdgeTables, check_rows
from edgewise.ops.launch import check_tensor, width
from edgewise.ops.reference.radial_network import EPSILON, HiddenWeights

EDGES = 32
"""Edges of a program: with more, compilers run out of registers on some GPUs."""

LARGEST = 128
"""Widest networks and most gaussians: a matrix and the rows that it multiplies have to fit on a multiprocessor."""

SMALLEST_SUM = 16
"""Matrix units sum over at least this many values."""


@dataclass(frozen=True)
class RadialStack:
    """The networks of a model, one behind the other; unused rows and columns are zero.

    Attributes:
        basis: [n_networks, 2, basis rows, columns] float16, high and low parts of the first layer, transposed.
        tables: [n_networks, 2, n_elements, columns] float32, of sources and of targets; the latter hold the bias.
        linear: [n_networks, 2, columns, columns] float16, high and low parts of the middle layer, transposed.
        vectors: [n_networks, 5, columns] float32: first scale and shift, bias, second scale and shift.
        n_hidden: Width of the networks.
        n_basis: Number of gaussians.
        arranged: The same for the kernel in CUDA C++; None for sizes that it does not have.
    """

    basis: Tensor
    tables: Tensor
    linear: Tensor
    vectors: Tensor
    n_hidden: int
    n_basis: int
    arranged: ArrangedWeights | None


def serves(n_hidden: int, n_basis: int) -> bool:
    """Tell whether there are kernels for networks of a width on so many gaussians."""
    return max(n_hidden, n_basis) <= LARGEST


def radial_stack(
    basis: Sequence[Tensor], source: Sequence[Tensor], target: Sequence[Tensor], hidden: Sequence[HiddenWeights]
) -> RadialStack:
    """Lay out networks of the same width.

    Args:
        basis: [n_hidden, n_basis] of each network, the part of the first layer that reads the gaussians.
        source: [n_elements, n_hidden], the part that reads the source.
        target: [n_elements, n_hidden], the part that reads the target, with the bias.
        hidden: The layers between the first and the last.
    """
    n_hidden, n_basis = basis[0].shape
    columns, rows = width(max(n_hidden, SMALLEST_SUM)), width(max(n_basis, SMALLEST_SUM))
    vectors = [
        torch.stack([item.first_scale, item.first_shift, item.bias, item.second_scale, item.second_shift])
        for item in hidden
    ]
    tables = [torch.stack(pair) for pair in zip(source, target, strict=True)]
    return RadialStack(
        basis=torch.stack([torch.stack(high_and_low(padded(item.T, rows, columns))) for item in basis]),
        tables=torch.stack([padded(item, item.shape[1], columns) for item in tables]).float().contiguous(),
        linear=torch.stack([torch.stack(high_and_low(padded(item.linear.T, columns, columns))) for item in hidden]),
        vectors=torch.stack([padded(item, 5, columns) for item in vectors]).float().contiguous(),
        n_hidden=n_hidden,
        n_basis=n_basis,
        arranged=arranged(basis, source, target, hidden),
    )


def padded(x: Tensor, rows: int, columns: int) -> Tensor:
    """Return matrices with zeros behind them, so that kernels read tiles."""
    return functional.pad(x, (0, columns - x.shape[-1], 0, rows - x.shape[-2]))


@triton.jit
def product(x, high, low):
    """Return x times a matrix given in two parts; x is taken in two parts as well."""
    x_high = x.to(tl.float16)
    x_low = ((x - x_high.to(tl.float32)) * 2048.0).to(tl.float16)
    small = tl.dot(x_low, high)
    small = tl.dot(x_high, low, small)
    return tl.dot(x_high, high) + small * (1 / 2048.0)


@triton.jit
def _norm_and_silu(x, slope, scale, shift, inside, WIDTH: tl.constexpr, EPSILON: tl.constexpr):
    """Apply layer norm and SiLU to values and slopes; columns beyond the width are and stay zero."""
    centred = tl.where(inside, x - tl.sum(x, axis=1)[:, None] / WIDTH, 0.0)
    slope = tl.where(inside, slope - tl.sum(slope, axis=1)[:, None] / WIDTH, 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, axis=1) / WIDTH + EPSILON)[:, None]
    normed = centred * inverse
    slope = (slope - normed * (tl.sum(normed * slope, axis=1)[:, None] / WIDTH)) * inverse * scale[None, :]
    y = normed * scale[None, :] + shift[None, :]
    s = tl.sigmoid(y)
    return y * s, slope * s * (1 + y * (1 - s))


@triton.jit
def _store(
    rows, column, x, live, inside, constant,
    FORMAT: tl.constexpr, WRITTEN: tl.constexpr, WIDTH: tl.constexpr, CONSTANTS: tl.constexpr,
):  # fmt: skip
    """Store values as `RowFormat.hidden` lays them out; `constant` multiplies the bias."""
    pointer = rows[:, None] + column[None, :]
    inside = live[:, None] & inside
    if FORMAT == "split":
        store_parts(pointer + WIDTH, pointer, x, inside)
        tl.store(pointer + 2 * WIDTH, x, mask=inside)
        place = tl.arange(0, CONSTANTS)
        constants = tl.where(place < 2, constant, 0.0)
        to_constants = rows[:, None] + 3 * WIDTH + place[None, :]
        tl.store(to_constants, tl.broadcast_to(constants[None, :], to_constants.shape), mask=live[:, None])
    elif FORMAT == "tf32":
        high = to_tf32(x)
        tl.store(pointer, high, mask=inside)
        tl.store(pointer + WIDTH, to_tf32(x - high), mask=inside)
    elif FORMAT == "float16" and WRITTEN == 2 * WIDTH:
        tl.store(pointer, x, mask=inside)
        tl.store(pointer + WIDTH, x - x.to(tl.float16).to(tl.float32), mask=inside)
    else:
        tl.store(pointer, x, mask=inside)


@triton.jit
def _radial_hidden(
    distance, ends, numbers, basis, tables, linear, vectors, value_out, slope_out, n_live, n_edges, step, first,
    ELEMENTS: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, BASIS: tl.constexpr, BASIS_ROWS: tl.constexpr,
    ROWS: tl.constexpr, EPSILON: tl.constexpr, FORMAT: tl.constexpr,
    WRITTEN: tl.constexpr, OF_SLOPE: tl.constexpr, CONSTANTS: tl.constexpr,
):  # fmt: skip
    """Evaluate one network for a tile of edges."""
    own = tl.program_id(1).to(tl.int64)
    network = first + own
    edge = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = edge < tl.load(n_live)
    column = tl.arange(0, COLUMNS)
    inside = (column < WIDTH)[None, :]
    k = tl.arange(0, BASIS_ROWS)
    d = tl.load(distance + edge, mask=live, other=0.0)
    offset = (d[:, None] - k[None, :] * step) / (2 * step)
    gaussians = tl.where((k < BASIS)[None, :], tl.exp(-0.5 * offset * offset), 0.0)
    slopes = gaussians * offset * (-1 / (2 * step))
    here = basis + network * (2 * BASIS_ROWS * COLUMNS) + k[:, None] * COLUMNS + column[None, :]
    high, low = tl.load(here), tl.load(here + BASIS_ROWS * COLUMNS)
    x = product(gaussians, high, low)
    slope = product(slopes, high, low)
    of_source = tl.load(numbers + tl.load(ends + edge, mask=live, other=0)).to(tl.int64)
    of_target = tl.load(numbers + tl.load(ends + n_edges + edge, mask=live, other=0)).to(tl.int64)
    table = tables + network * (2 * ELEMENTS * COLUMNS) + column[None, :]
    x += tl.load(table + of_source[:, None] * COLUMNS) + tl.load(table + (ELEMENTS + of_target)[:, None] * COLUMNS)
    vector = vectors + network * (5 * COLUMNS) + column
    x, slope = _norm_and_silu(x, slope, tl.load(vector), tl.load(vector + COLUMNS), inside, WIDTH, EPSILON)
    row = tl.arange(0, COLUMNS)
    here = linear + network * (2 * COLUMNS * COLUMNS) + row[:, None] * COLUMNS + column[None, :]
    high, low = tl.load(here), tl.load(here + COLUMNS * COLUMNS)
    x = product(x, high, low) + tl.load(vector + 2 * COLUMNS)[None, :]
    slope = product(slope, high, low)
    x, slope = _norm_and_silu(
        x, slope, tl.load(vector + 3 * COLUMNS), tl.load(vector + 4 * COLUMNS), inside, WIDTH, EPSILON
    )
    out = own * n_edges + edge
    _store(value_out + out * WRITTEN, column, x, live, inside, 1.0, FORMAT, WRITTEN, WIDTH, CONSTANTS)
    _store(slope_out + out * OF_SLOPE, column, slope, live, inside, 0.0, FORMAT, OF_SLOPE, WIDTH, CONSTANTS)


def radial_hidden(
    distance: Tensor,
    numbers: Tensor,
    edges: EdgeTables,
    cutoff: float,
    stack: RadialStack,
    values: Tensor,
    slopes: Tensor,
    *,
    first: int = 0,
    row_format: RowFormat | None = None,
    in_cuda: bool = False,
) -> None:
    """Evaluate networks up to their last layer.

    Args:
        distance: [capacity] float32, Å.
        numbers: [n_atoms] int32, atomic numbers.
        edges: Ends and number of the edges.
        cutoff: Å; the centres of the gaussians lie evenly from 0 to it.
        stack: The networks.
        values: [n_evaluated, capacity, columns], receives the values as `RowFormat.hidden` lays them out.
        slopes: The same, receives their derivatives with respect to the distance, 1/Å.
        first: The first of the networks that are evaluated.
        row_format: How values and slopes are written; None for the plain format of their type.
        in_cuda: Take the kernel in CUDA C++ in place of Triton's; `cuda.radial_hidden.missing` tells where it cannot serve.

    Raises:
        ValueError: Tensors that do not fit together, or with `in_cuda` what there is no such kernel for.
        ModeUnavailableError: With `in_cuda`, a kernel that cannot be compiled or launched.
    """
    n_networks, (_, _, basis_rows, columns) = values.shape[0], stack.basis.shape
    if not 0 <= first <= stack.basis.shape[0] - n_networks:
        message = f"networks {first} to {first + n_networks - 1} of {stack.basis.shape[0]}"
        raise ValueError(message)
    row_format = plain_format(values.dtype) if row_format is None else row_format
    written, of_slope = (row_format.hidden_columns(stack.n_hidden, constant=item) for item in (True, False))
    for name, tensor, n_columns in (("values", values, written), ("slopes", slopes, of_slope)):
        check_tensor(name, tensor, (n_networks, edges.capacity, n_columns), row_format.operands)
        check_rows(name, tensor.flatten(0, 1), n_networks * edges.capacity, n_columns)
    check_rows("distance", distance[None], 1, edges.capacity)
    spacing = cutoff / (stack.n_basis - 1)
    if in_cuda:
        cuda.radial_hidden(distance, numbers, edges, spacing, stack.arranged, values, slopes, first, row_format)
    elif edges.capacity:
        _radial_hidden[(triton.cdiv(edges.capacity, EDGES), n_networks)](
            distance, edges.ends, numbers, stack.basis, stack.tables, stack.linear, stack.vectors, values, slopes,
            edges.n_live, edges.capacity, spacing, first,
            ELEMENTS=stack.tables.shape[2], WIDTH=stack.n_hidden, COLUMNS=columns, BASIS=stack.n_basis,
            BASIS_ROWS=basis_rows, ROWS=EDGES, EPSILON=EPSILON, FORMAT=row_format.name,
            WRITTEN=written, OF_SLOPE=of_slope, CONSTANTS=CONSTANTS, num_warps=8,
        )  # fmt: skip
