"""Feed-forward networks "grid" of the nodes, and their adjoint, an atom a program.

The formula is `base + reference.feed_forward(h)`. Linear maps of channels and the way to the grid commute, so that the first and
the last layer act on coefficients, of which there are fewer than points; the values on the grid never leave the program.

Bytes an atom: features read, base read, features written; adjoint, features and gradient read, gradient written. Products at
every point: one forward, two adjoint, each of three parts (`split_kernels`).
"""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from edgewise.ops.fused.shapes import check_rows
from edgewise.ops.fused.split_kernels import (
    adjoint_product,
    columns_of,
    forward_product,
    grid_product,
    scaled_product,
    silu_slope,
    split_matrices,
)
from edgewise.ops.reference.feed_forward import GridWeights

POINTS = 16
"""Points of the grid that a program holds at a time: the fewest that matrix units take, since weights fill the memory."""

WARPS = 16

ADJOINT_WARPS = 8
"""Warps of the adjoint; with more, each would have too few registers."""


@dataclass(frozen=True)
class GridTables:
    """The weights of a network as the kernels read them; matrices in two parts (`split_kernels`), padded with zeros.

    Attributes:
        to_grid: [n_tiles, 2, points, coefficients] float16.
        from_grid: [n_tiles, 2, points, coefficients] float16.
        first: [1, 2, hidden, channels] float16.
        second: [1, 2, hidden, hidden] float16.
        third: [1, 2, channels, hidden] float16.
        n_coefficients: Coefficients of a node.
        hidden: Width of the network.
    """

    to_grid: Tensor
    from_grid: Tensor
    first: Tensor
    second: Tensor
    third: Tensor
    n_coefficients: int
    hidden: int


def grid_tables(weights: GridWeights) -> GridTables:
    """Lay out the weights of a network."""
    first, second, third = weights.layers
    return GridTables(
        to_grid=_tiles(weights.to_grid),
        from_grid=_tiles(weights.from_grid),
        first=split_matrices([first]),
        second=split_matrices([second]),
        third=split_matrices([third]),
        n_coefficients=weights.to_grid.shape[1],
        hidden=first.shape[0],
    )


def _tiles(grid: Tensor) -> Tensor:
    """Cut the points of [n_points, n_coefficients] into tiles."""
    whole = grid.new_zeros(triton.cdiv(grid.shape[0], POINTS) * POINTS, grid.shape[1])
    whole[: grid.shape[0]] = grid
    return split_matrices(whole.unflatten(0, (-1, POINTS)).unbind())


@triton.jit
def _grid(matrices, tile, row, column, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    """Return both parts of a tile of a grid, the points along the rows or the columns."""
    here = matrices + tile * (2 * PARTS) + row * WIDTH + column
    return tl.load(here), tl.load(here + PARTS)


@triton.jit
def _grid_feed_forward(
    h, base, to_grid, from_grid, first, second, third, out,
    COEFFICIENTS: tl.constexpr, CHANNELS: tl.constexpr, TILES: tl.constexpr, POINTS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Do one atom."""
    row, column, point = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, POINTS)
    inside = (row < COEFFICIENTS)[:, None] & (column < CHANNELS)[None, :]
    begin = tl.program_id(0).to(tl.int64) * (COEFFICIENTS * CHANNELS)
    here = row[:, None] * CHANNELS + column[None, :]
    x = forward_product(tl.load(h + begin + here, mask=inside, other=0.0), first, 0, WIDE, COLUMNS)
    total = tl.zeros([ROWS, WIDE], dtype=tl.float32)
    for tile in range(TILES):
        high, low = _grid(to_grid, tile, point[:, None], row[None, :], POINTS * ROWS, ROWS)
        values = grid_product(high, low, x)
        values = forward_product(values * tl.sigmoid(values), second, 0, WIDE, WIDE)
        high, low = _grid(from_grid, tile, point[None, :], row[:, None], POINTS * ROWS, ROWS)
        total += grid_product(high, low, values * tl.sigmoid(values))
    y = forward_product(total, third, 0, COLUMNS, WIDE) + tl.load(base + begin + here, mask=inside, other=0.0)
    tl.store(out + begin + here, y, mask=inside)


@triton.jit
def _grid_feed_forward_adjoint(
    h, gradient, to_grid, from_grid, first, second, third, out,
    COEFFICIENTS: tl.constexpr, CHANNELS: tl.constexpr, TILES: tl.constexpr, POINTS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Do one atom; the values on the grid are computed again."""
    row, column, point = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, POINTS)
    inside = (row < COEFFICIENTS)[:, None] & (column < CHANNELS)[None, :]
    begin = tl.program_id(0).to(tl.int64) * (COEFFICIENTS * CHANNELS)
    here = row[:, None] * CHANNELS + column[None, :]
    x = forward_product(tl.load(h + begin + here, mask=inside, other=0.0), first, 0, WIDE, COLUMNS)
    to_values = adjoint_product(tl.load(gradient + begin + here, mask=inside, other=0.0), third, 0, COLUMNS, WIDE)
    total = tl.zeros([ROWS, WIDE], dtype=tl.float32)
    # One copy for both directions, which stays on the multiprocessor.
    wide = tl.arange(0, WIDE)
    second_here = second + wide[:, None] * WIDE + wide[None, :]
    second_high, second_low = tl.load(second_here), tl.load(second_here + WIDE * WIDE)
    for tile in range(TILES):
        high, low = _grid(to_grid, tile, point[:, None], row[None, :], POINTS * ROWS, ROWS)
        before = grid_product(high, low, x)
        values = scaled_product(before * tl.sigmoid(before), tl.trans(second_high), tl.trans(second_low))
        high, low = _grid(from_grid, tile, point[:, None], row[None, :], POINTS * ROWS, ROWS)
        found = grid_product(high, low, to_values) * silu_slope(values)
        found = scaled_product(found, second_high, second_low) * silu_slope(before)
        high, low = _grid(to_grid, tile, point[None, :], row[:, None], POINTS * ROWS, ROWS)
        total += grid_product(high, low, found)
    tl.store(out + begin + here, adjoint_product(total, first, 0, WIDE, COLUMNS), mask=inside)


def _constants(tables: GridTables, channels: int) -> dict[str, int]:
    n_tiles, _, points, rows = tables.to_grid.shape
    return {
        "COEFFICIENTS": tables.n_coefficients,
        "CHANNELS": channels,
        "TILES": n_tiles,
        "POINTS": points,
        "ROWS": rows,
        "COLUMNS": columns_of(channels),
        "WIDE": columns_of(tables.hidden),
    }


def grid_feed_forward(h: Tensor, tables: GridTables, base: Tensor, out: Tensor) -> Tensor:
    """Apply a feed-forward network and add features.

    Args:
        h: [n_atoms, n_coefficients, channels] float32.
        tables: The network.
        base: Features that the result is added to.
        out: Receives the result.

    Raises:
        ValueError: Tensors that do not fit together.
    """
    _check(tables, h=h, base=base, out=out)
    if h.shape[0]:
        _grid_feed_forward[(h.shape[0],)](
            h, base, tables.to_grid, tables.from_grid, tables.first, tables.second, tables.third, out,
            num_warps=WARPS, **_constants(tables, h.shape[2]),
        )  # fmt: skip
    return out


def grid_feed_forward_adjoint(h: Tensor, tables: GridTables, gradient: Tensor, out: Tensor) -> Tensor:
    """Return the gradient of `h` for that of the result; `out` receives it.

    Raises:
        ValueError: Tensors that do not fit together.
    """
    _check(tables, h=h, gradient=gradient, out=out)
    if h.shape[0]:
        _grid_feed_forward_adjoint[(h.shape[0],)](
            h, gradient, tables.to_grid, tables.from_grid, tables.first, tables.second, tables.third, out,
            num_warps=ADJOINT_WARPS, **_constants(tables, h.shape[2]),
        )  # fmt: skip
    return out


def _check(tables: GridTables, **features: Tensor) -> None:
    n_atoms, _, channels = features["h"].shape
    for name, tensor in features.items():
        check_rows(name, tensor, n_atoms, tables.n_coefficients, channels)
    if columns_of(channels) != tables.first.shape[-1]:
        message = f"h has {channels} channels; the network has up to {tables.first.shape[-1]}"
        raise ValueError(message)
