"""Feed-forward networks "spectral" of the nodes, and their adjoint, each coefficient of a tile of atoms a program.

The formula is `base + reference.feed_forward(h)`. A coefficient goes through both of its maps and the gate between them
without leaving the program; the gate, a product that reads the scalars, is made again for every coefficient. The values before
the gate are kept for the adjoint: 4 (n_coefficients + lmax) hidden bytes an atom, a few percent of what its edges keep.

Bytes an atom: forward, 3 features read, of which the second and third time from caches, the base read, two features written;
adjoint, gradient and kept values read, gradient and products with the kept values written and read again. Products: forward 3
for each coefficient, adjoint 2 and one for each gate, each of three parts (`split_kernels`).
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
    padded_rows,
    silu_slope,
    split_matrices,
)
from edgewise.ops.reference.feed_forward import SpectralWeights

ATOMS = 32
"""Atoms of a program that maps a coefficient."""

WARPS = 16
"""Warps of such a program: it has a multiprocessor to itself, and with fewer each would need more registers than there are."""

GATE_ATOMS = 16
"""Atoms of a program that maps gates: there are fewer of these."""

GATE_WARPS = 8


@dataclass(frozen=True)
class SpectralTables:
    """The weights of a network as the kernels read them; matrices in two parts (`split_kernels`), padded with zeros.

    Attributes:
        gate: [lmax, 2, hidden, channels] float16.
        first: [lmax + 1, 2, hidden, channels] float16.
        second: [lmax + 1, 2, channels, hidden] float16.
        gate_bias: [lmax, hidden] float32.
        first_bias: [1, hidden] float32.
        second_bias: [1, channels] float32.
        hidden: Width between the maps.
        lmax: Largest degree.
    """

    gate: Tensor
    first: Tensor
    second: Tensor
    gate_bias: Tensor
    first_bias: Tensor
    second_bias: Tensor
    hidden: int
    lmax: int


def spectral_tables(weights: SpectralWeights) -> SpectralTables:
    """Lay out the weights of a network."""
    n_coefficients, hidden, _ = weights.first.shape
    lmax = round(n_coefficients**0.5) - 1
    return SpectralTables(
        gate=split_matrices(weights.gate.unflatten(0, (lmax, hidden)).unbind()),
        first=split_matrices([weights.first[degree**2] for degree in range(lmax + 1)]),
        second=split_matrices([weights.second[degree**2] for degree in range(lmax + 1)]),
        gate_bias=padded_rows(weights.gate_bias.unflatten(0, (lmax, hidden))),
        first_bias=padded_rows(weights.first_bias[None]),
        second_bias=padded_rows(weights.second_bias[None]),
        hidden=hidden,
        lmax=lmax,
    )


@triton.jit
def _degree(coefficient, LMAX: tl.constexpr):
    """Return the degree of a coefficient."""
    degree = 0
    for own in tl.static_range(1, LMAX + 1):
        degree += (coefficient >= own * own).to(tl.int32)
    return degree


@triton.jit
def _feed_forward(
    h, base, gate, first, second, gate_bias, first_bias, second_bias, kept, before_gate, out, n_atoms,
    LMAX: tl.constexpr, CHANNELS: tl.constexpr, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Map one coefficient of a tile of atoms."""
    COEFFICIENTS: tl.constexpr = (LMAX + 1) * (LMAX + 1)
    coefficient = tl.program_id(1)
    degree = _degree(coefficient, LMAX)
    # Tiles begin at 64 bits; inside a tile 32 are enough, and take half the registers.
    begin = tl.program_id(0).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)
    live = (row < n_atoms - begin)[:, None]
    column, wide = tl.arange(0, COLUMNS), tl.arange(0, WIDE)
    inside, inside_wide = live & (column < CHANNELS)[None, :], live & (wide < HIDDEN)[None, :]
    of_tile = begin * (COEFFICIENTS * CHANNELS)
    scalars = row[:, None] * (COEFFICIENTS * CHANNELS) + column[None, :]
    here = scalars + coefficient * CHANNELS
    hidden = forward_product(tl.load(h + of_tile + here, mask=inside, other=0.0), first, degree, WIDE, COLUMNS)
    if coefficient == 0:
        hidden += tl.load(first_bias + wide)[None, :]
        gated = hidden * tl.sigmoid(hidden)
    else:
        before = forward_product(
            tl.load(h + of_tile + scalars, mask=inside, other=0.0), gate, degree - 1, WIDE, COLUMNS
        )
        before += tl.load(gate_bias + (degree - 1) * WIDE + wide)[None, :]
        gated = hidden * tl.sigmoid(before * tl.sigmoid(before))
        if coefficient == degree * degree:
            to = before_gate + begin * (LMAX * HIDDEN) + (degree - 1) * HIDDEN
            tl.store(to + row[:, None] * (LMAX * HIDDEN) + wide[None, :], before, mask=inside_wide)
    to = kept + begin * (COEFFICIENTS * HIDDEN) + coefficient * HIDDEN
    tl.store(to + row[:, None] * (COEFFICIENTS * HIDDEN) + wide[None, :], hidden, mask=inside_wide)
    y = forward_product(gated, second, degree, COLUMNS, WIDE)
    y += tl.load(base + of_tile + here, mask=inside, other=0.0)
    if coefficient == 0:
        y += tl.load(second_bias + column)[None, :]
    tl.store(out + of_tile + here, y, mask=inside)


@triton.jit
def _feed_forward_adjoint(
    gradient, first, second, kept, before_gate, products, out, n_atoms,
    LMAX: tl.constexpr, CHANNELS: tl.constexpr, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Take the gradient of one coefficient back through both maps; leave what the gate's gradient is made of."""
    COEFFICIENTS: tl.constexpr = (LMAX + 1) * (LMAX + 1)
    coefficient = tl.program_id(1)
    degree = _degree(coefficient, LMAX)
    # Tiles begin at 64 bits; inside a tile 32 are enough, and take half the registers.
    begin = tl.program_id(0).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)
    live = (row < n_atoms - begin)[:, None]
    column, wide = tl.arange(0, COLUMNS), tl.arange(0, WIDE)
    inside, inside_wide = live & (column < CHANNELS)[None, :], live & (wide < HIDDEN)[None, :]
    of_tile = begin * (COEFFICIENTS * CHANNELS) + coefficient * CHANNELS
    here = row[:, None] * (COEFFICIENTS * CHANNELS) + column[None, :]
    to_gated = adjoint_product(
        tl.load(gradient + of_tile + here, mask=inside, other=0.0), second, degree, COLUMNS, WIDE
    )
    of_hidden = begin * (COEFFICIENTS * HIDDEN) + coefficient * HIDDEN
    here_wide = row[:, None] * (COEFFICIENTS * HIDDEN) + wide[None, :]
    hidden = tl.load(kept + of_hidden + here_wide, mask=inside_wide, other=0.0)
    if coefficient == 0:
        to_hidden = to_gated * silu_slope(hidden)
    else:
        tl.store(products + of_hidden + here_wide, to_gated * hidden, mask=inside_wide)
        own = before_gate + begin * (LMAX * HIDDEN) + (degree - 1) * HIDDEN
        before = tl.load(own + row[:, None] * (LMAX * HIDDEN) + wide[None, :], mask=inside_wide, other=0.0)
        to_hidden = to_gated * tl.sigmoid(before * tl.sigmoid(before))
    tl.store(out + of_tile + here, adjoint_product(to_hidden, first, degree, WIDE, COLUMNS), mask=inside)


@triton.jit
def _gates_adjoint(
    gate, before_gate, products, out, n_atoms,
    LMAX: tl.constexpr, CHANNELS: tl.constexpr, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Add what a tile of atoms gets through the gates to the gradient of the scalars."""
    COEFFICIENTS: tl.constexpr = (LMAX + 1) * (LMAX + 1)
    # Tiles begin at 64 bits; inside a tile 32 are enough, and take half the registers.
    begin = tl.program_id(0).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)
    live = (row < n_atoms - begin)[:, None]
    column, wide = tl.arange(0, COLUMNS), tl.arange(0, WIDE)
    inside, inside_wide = live & (column < CHANNELS)[None, :], live & (wide < HIDDEN)[None, :]
    here = out + begin * (COEFFICIENTS * CHANNELS) + row[:, None] * (COEFFICIENTS * CHANNELS) + column[None, :]
    total = tl.load(here, mask=inside, other=0.0)
    of_hidden = products + begin * (COEFFICIENTS * HIDDEN) + row[:, None] * (COEFFICIENTS * HIDDEN) + wide[None, :]
    for degree in tl.static_range(1, LMAX + 1):
        to_gate = tl.zeros([ROWS, WIDE], dtype=tl.float32)
        for coefficient in tl.static_range(degree * degree, (degree + 1) * (degree + 1)):
            to_gate += tl.load(of_hidden + coefficient * HIDDEN, mask=inside_wide, other=0.0)
        own = before_gate + begin * (LMAX * HIDDEN) + (degree - 1) * HIDDEN
        before = tl.load(own + row[:, None] * (LMAX * HIDDEN) + wide[None, :], mask=inside_wide, other=0.0)
        gates = tl.sigmoid(before * tl.sigmoid(before))
        total += adjoint_product(
            to_gate * gates * (1 - gates) * silu_slope(before), gate, degree - 1, WIDE, COLUMNS
        )  # fmt: skip
    tl.store(here, total, mask=inside)


def _constants(tables: SpectralTables, channels: int) -> dict[str, int]:
    return {
        "LMAX": tables.lmax,
        "CHANNELS": channels,
        "HIDDEN": tables.hidden,
        "COLUMNS": columns_of(channels),
        "WIDE": columns_of(tables.hidden),
    }


def feed_forward(
    h: Tensor, tables: SpectralTables, base: Tensor, kept: Tensor, before_gate: Tensor, out: Tensor
) -> Tensor:
    """Apply a feed-forward network and add features.

    Args:
        h: [n_atoms, n_coefficients, channels] float32.
        tables: The network.
        base: Features that the result is added to.
        kept: [n_atoms, n_coefficients, hidden], receives the values after the first map.
        before_gate: [n_atoms, lmax, hidden], receives the gates before their functions.
        out: Receives the result.

    Raises:
        ValueError: Tensors that do not fit together.
    """
    n_atoms, _, channels = h.shape
    for name, tensor in (("h", h), ("base", base), ("out", out)):
        _check_features(name, tensor, n_atoms, channels, tables)
    _check_kept(kept, before_gate, n_atoms, tables)
    if n_atoms:
        _feed_forward[(triton.cdiv(n_atoms, ATOMS), (tables.lmax + 1) ** 2)](
            h, base, tables.gate, tables.first, tables.second, tables.gate_bias, tables.first_bias, tables.second_bias,
            kept, before_gate, out, n_atoms, ROWS=ATOMS, num_warps=WARPS, **_constants(tables, channels),
        )  # fmt: skip
    return out


def feed_forward_adjoint(
    gradient: Tensor, tables: SpectralTables, kept: Tensor, before_gate: Tensor, products: Tensor, out: Tensor
) -> Tensor:
    """Return the gradient of `h` for that of the result.

    Args:
        gradient: [n_atoms, n_coefficients, channels] float32.
        tables: As before.
        kept: What `feed_forward` has left there.
        before_gate: What `feed_forward` has left there.
        products: [n_atoms, n_coefficients, hidden], for numbers in between.
        out: Receives the gradient of `h`.

    Raises:
        ValueError: Tensors that do not fit together.
    """
    n_atoms, _, channels = gradient.shape
    for name, tensor in (("gradient", gradient), ("out", out)):
        _check_features(name, tensor, n_atoms, channels, tables)
    _check_kept(kept, before_gate, n_atoms, tables)
    check_rows("products", products, n_atoms, (tables.lmax + 1) ** 2, tables.hidden)
    if n_atoms:
        constants = _constants(tables, channels)
        _feed_forward_adjoint[(triton.cdiv(n_atoms, ATOMS), (tables.lmax + 1) ** 2)](
            gradient, tables.first, tables.second, kept, before_gate, products, out, n_atoms,
            ROWS=ATOMS, num_warps=WARPS, **constants,
        )  # fmt: skip
        _gates_adjoint[(triton.cdiv(n_atoms, GATE_ATOMS),)](
            tables.gate, before_gate, products, out, n_atoms, ROWS=GATE_ATOMS, num_warps=GATE_WARPS, **constants
        )
    return out


def _check_features(name: str, tensor: Tensor, n_atoms: int, channels: int, tables: SpectralTables) -> None:
    check_rows(name, tensor, n_atoms, (tables.lmax + 1) ** 2, channels)
    if columns_of(channels) != tables.first.shape[-1]:
        message = f"{name} has {channels} channels; the network has up to {tables.first.shape[-1]}"
        raise ValueError(message)


def _check_kept(kept: Tensor, before_gate: Tensor, n_atoms: int, tables: SpectralTables) -> None:
    check_rows("kept", kept, n_atoms, (tables.lmax + 1) ** 2, tables.hidden)
    check_rows("before_gate", before_gate, n_atoms, tables.lmax, tables.hidden)
