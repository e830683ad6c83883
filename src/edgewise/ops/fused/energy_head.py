"""The energy head and its adjoint in one kernel, a tile of atoms that share their weights a program (MODEL.md section 9).

The formulas are `reference.scalar_network` and `scalar_network_adjoint` for three layers and a single output, whose gradient is
one. Nothing but scalars is read, and nothing in between is stored.
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

from edgewise.ops.fused.shapes import check_rows
from edgewise.ops.fused.split_kernels import (
    adjoint_product,
    columns_of,
    forward_product,
    padded_rows,
    silu_slope,
    split_matrices,
)

ATOMS = 16
"""Most atoms of a tile: the fewest rows that matrix units take, since there are few tiles."""

WARPS = 16
"""Warps of a program: with fewer, each would need more registers than leave room for others."""


@dataclass(frozen=True)
class HeadTables:
    """Sets of weights as the kernel reads them; matrices in two parts (`split_kernels`), padded with zeros.

    Attributes:
        first: [n_sets, 2, hidden, channels] float16.
        second: [n_sets, 2, hidden, hidden] float16.
        last: [n_sets, hidden] float32.
        biases: [2, hidden] float32, of the first and the second layer.
        last_bias: [1] float32.
        hidden: Width of the network.
    """

    first: Tensor
    second: Tensor
    last: Tensor
    biases: Tensor
    last_bias: Tensor
    hidden: int


def head_tables(layers: Sequence[Tensor], biases: Sequence[Tensor]) -> HeadTables:
    """Lay out the weights of a head.

    Args:
        layers: [n_sets, hidden, channels], [n_sets, hidden, hidden] and [n_sets, 1, hidden].
        biases: [hidden], [hidden] and [1].
    """
    first, second, last = layers
    return HeadTables(
        first=split_matrices(first.unbind()),
        second=split_matrices(second.unbind()),
        last=padded_rows(last[:, 0]),
        biases=padded_rows(torch.stack([biases[0], biases[1]])),
        last_bias=biases[2].float().contiguous(),
        hidden=first.shape[1],
    )


@triton.jit
def _energy_head(
    features, tiles, first, second, last, biases, last_bias, energy, gradient,
    STRIDE: tl.constexpr, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    GRADIENT: tl.constexpr,
):  # fmt: skip
    """Do one tile."""
    tile = tiles + tl.program_id(0) * 3
    number = tl.load(tile + 2)
    begin, row = tl.load(tile), tl.arange(0, ROWS)
    live = row < tl.load(tile + 1) - begin
    # Tiles begin at 64 bits; inside a tile 32 are enough.
    begin = begin.to(tl.int64)
    column, wide = tl.arange(0, COLUMNS), tl.arange(0, WIDE)
    inside = live[:, None] & (column < CHANNELS)[None, :]
    x = tl.load(features + begin * STRIDE + row[:, None] * STRIDE + column[None, :], mask=inside, other=0.0)
    before_1 = forward_product(x, first, number, WIDE, COLUMNS) + tl.load(biases + wide)[None, :]
    after = before_1 * tl.sigmoid(before_1)
    before_2 = forward_product(after, second, number, WIDE, WIDE) + tl.load(biases + WIDE + wide)[None, :]
    weight = tl.load(last + number * WIDE + wide)[None, :]
    total = tl.sum(before_2 * tl.sigmoid(before_2) * weight, axis=1) + tl.load(last_bias)
    tl.store(energy + begin + row, total, mask=live)
    if GRADIENT:
        to_after = adjoint_product(weight * silu_slope(before_2), second, number, WIDE, WIDE)
        found = adjoint_product(to_after * silu_slope(before_1), first, number, WIDE, COLUMNS)
        here = gradient + begin * CHANNELS + row[:, None] * CHANNELS + column[None, :]
        tl.store(here, found, mask=inside)


def energy_head(features: Tensor, tiles: Tensor, tables: HeadTables, energy: Tensor, gradient: Tensor | None) -> None:
    """Compute node energies, and the gradient of their sum for the scalars.

    Args:
        features: [n_atoms, n_coefficients, channels] float32, of which the scalars are read.
        tiles: [n_tiles, 3] int32: start and stop of a run of at most `ATOMS` atoms, and number of its set of weights.
        tables: The sets of weights.
        energy: [n_atoms], receives the energies of the atoms of all tiles.
        gradient: [n_atoms, channels], receives their gradients; None for none.

    Raises:
        ValueError: Tensors that do not fit together.
    """
    n_atoms, n_coefficients, channels = features.shape
    check_rows("features", features, n_atoms, n_coefficients, channels)
    check_rows("tiles", tiles, tiles.shape[0], 3)
    check_rows("energy", energy, n_atoms)
    if gradient is not None:
        check_rows("gradient", gradient, n_atoms, channels)
    columns = columns_of(channels)
    if columns != tables.first.shape[-1]:
        message = f"features have {channels} channels; the head has up to {tables.first.shape[-1]}"
        raise ValueError(message)
    if tiles.shape[0]:
        _energy_head[(tiles.shape[0],)](
            features, tiles, tables.first, tables.second, tables.last, tables.biases, tables.last_bias, energy,
            energy if gradient is None else gradient,
            STRIDE=n_coefficients * channels, CHANNELS=channels, COLUMNS=columns, WIDE=columns_of(tables.hidden),
            ROWS=ATOMS, GRADIENT=gradient is not None, num_warps=WARPS,
        )  # fmt: skip
