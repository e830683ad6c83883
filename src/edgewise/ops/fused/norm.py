"""Norms of node features and their adjoint, an atom a program.

The formulas are `reference.norm`: `norm(x) + what the caller adds to the scalars`, `norm(x + update)` that keeps the sum, and
`gradient + norm_adjoint(...)`, of a gradient that may be the scalars' alone, so that nothing of a node's size has to be joined,
added or copied around them.
"""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgewise.ops.fused.shapes import check_rows
from edgewise.ops.launch import width
from edgewise.ops.reference.norm import EPSILON, NormWeights


@dataclass(frozen=True)
class NormTables:
    """The weights of a norm as the kernels read them.

    Attributes:
        groups: [n_coefficients] int32, which coefficients share a scale.
        balance: [n_coefficients] float32.
        weight: [n_coefficients, channels] float32.
        bias: [channels] float32.
        n_groups: Number of groups.
    """

    groups: Tensor
    balance: Tensor
    weight: Tensor
    bias: Tensor
    n_groups: int


def norm_tables(weights: NormWeights) -> NormTables:
    """Lay out the weights of a norm."""
    groups = torch.empty(len(weights.balance), dtype=torch.int32)
    for number, (start, stop) in enumerate(weights.bounds):
        groups[start:stop] = number
    device = weights.weight.device
    return NormTables(
        groups=groups.to(device),
        balance=weights.balance.to(device, torch.float32),
        weight=weights.weight.float().contiguous(),
        bias=weights.bias.float().contiguous(),
        n_groups=len(weights.bounds),
    )


@triton.jit
def _centred(x, row, within, CHANNELS: tl.constexpr):
    """Take the mean over channels off the scalars, the first row; channels beyond the last are and stay zero."""
    mean = tl.sum(x, axis=1)[:, None] / CHANNELS
    return tl.where((row == 0)[:, None] & within[None, :], x - mean, x)


@triton.jit
def _scales(x, group, balance, CHANNELS: tl.constexpr, GROUPS: tl.constexpr, EPSILON: tl.constexpr):
    """Return the scale of each coefficient."""
    squares = tl.sum(x * x, axis=1) * balance
    scale = tl.zeros_like(squares)
    for own in tl.static_range(0, GROUPS):
        variance = tl.sum(tl.where(group == own, squares, 0.0), axis=0) / CHANNELS
        scale = tl.where(group == own, tl.rsqrt(variance + EPSILON), scale)
    return scale


@triton.jit
def _places(COEFFICIENTS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """Return coefficients, channels, which of a tile exist, and where they stand in a table and in this atom's features."""
    row, column = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (row < COEFFICIENTS)[:, None] & (column < CHANNELS)[None, :]
    place = row[:, None] * CHANNELS + column[None, :]
    return row, column, inside, place, tl.program_id(0).to(tl.int64) * (COEFFICIENTS * CHANNELS) + place


@triton.jit
def _norm(
    x, update, summed, groups, balance, weight, bias, added, out,
    COEFFICIENTS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
    GROUPS: tl.constexpr, EPSILON: tl.constexpr, ADDED: tl.constexpr, UPDATE: tl.constexpr,
):  # fmt: skip
    """Normalise one atom."""
    row, column, inside, place, here = _places(COEFFICIENTS, ROWS, CHANNELS, BLOCK)
    within, known = column < CHANNELS, row < COEFFICIENTS
    values = tl.load(x + here, mask=inside, other=0.0)
    if UPDATE:
        values += tl.load(update + here, mask=inside, other=0.0)
        tl.store(summed + here, values, mask=inside)
    values = _centred(values, row, within, CHANNELS)
    group = tl.load(groups + row, mask=known, other=-1)
    scale = _scales(values, group, tl.load(balance + row, mask=known, other=0.0), CHANNELS, GROUPS, EPSILON)
    y = values * scale[:, None] * tl.load(weight + place, mask=inside, other=0.0)
    shift = tl.load(bias + column, mask=within, other=0.0)
    if ADDED:
        shift += tl.load(added + tl.program_id(0).to(tl.int64) * CHANNELS + column, mask=within, other=0.0)
    tl.store(out + here, tl.where((row == 0)[:, None], y + shift[None, :], y), mask=inside)


@triton.jit
def _norm_adjoint(
    x, groups, balance, weight, gradient, base, out,
    COEFFICIENTS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
    GROUPS: tl.constexpr, EPSILON: tl.constexpr, BASE: tl.constexpr, SCALARS: tl.constexpr,
):  # fmt: skip
    """Make the gradient of one atom's features, added to what they have already."""
    row, column, inside, place, here = _places(COEFFICIENTS, ROWS, CHANNELS, BLOCK)
    within, known = column < CHANNELS, row < COEFFICIENTS
    values = _centred(tl.load(x + here, mask=inside, other=0.0), row, within, CHANNELS)
    group = tl.load(groups + row, mask=known, other=-1)
    share = tl.load(balance + row, mask=known, other=0.0)
    scale = _scales(values, group, share, CHANNELS, GROUPS, EPSILON)
    if SCALARS:
        # Rows of scalars alone; the gradient of the other coefficients is zero.
        own = gradient + tl.program_id(0).to(tl.int64) * CHANNELS + place
        given = tl.load(own, mask=inside & (row == 0)[:, None], other=0.0)
    else:
        given = tl.load(gradient + here, mask=inside, other=0.0)
    scaled = given * tl.load(weight + place, mask=inside, other=0.0)
    products = tl.sum(scaled * values, axis=1)
    along = tl.zeros_like(products)
    for own in tl.static_range(0, GROUPS):
        total = tl.sum(tl.where(group == own, products, 0.0), axis=0) / CHANNELS
        along = tl.where(group == own, total, along)
    found = scale[:, None] * scaled - (scale * scale * scale * along * share)[:, None] * values
    found = _centred(found, row, within, CHANNELS)
    if BASE:
        found += tl.load(base + here, mask=inside, other=0.0)
    tl.store(out + here, found, mask=inside)


def _constants(x: Tensor, tables: NormTables) -> dict[str, float]:
    n_coefficients, channels = x.shape[1:]
    return {
        "COEFFICIENTS": n_coefficients,
        "ROWS": width(n_coefficients),
        "CHANNELS": channels,
        "BLOCK": width(channels),
        "GROUPS": tables.n_groups,
        "EPSILON": EPSILON,
    }


def norm(x: Tensor, tables: NormTables, added: Tensor | None = None) -> Tensor:
    """Normalise node features.

    Args:
        x: [n_atoms, n_coefficients, channels] float32.
        tables: Groups and parameters.
        added: [n_atoms, channels], added to the scalars of the result.

    Returns:
        The same shape.

    Raises:
        ValueError: Tensors that do not fit together.
    """
    return _launch_norm(x, tables, None, added)[1]


def norm_of_sum(x: Tensor, update: Tensor, tables: NormTables) -> tuple[Tensor, Tensor]:
    """Add to node features and normalise the sum.

    Args:
        x: [n_atoms, n_coefficients, channels] float32.
        update: The same shape.
        tables: Groups and parameters.

    Returns:
        The sum, and the normalised sum.

    Raises:
        ValueError: Tensors that do not fit together.
    """
    return _launch_norm(x, tables, update, None)


def _launch_norm(x: Tensor, tables: NormTables, update: Tensor | None, added: Tensor | None) -> tuple[Tensor, Tensor]:
    n_atoms, n_coefficients, channels = x.shape
    check_rows("weight", tables.weight, n_coefficients, channels)
    if added is not None:
        check_rows("added", added, n_atoms, channels)
    if update is not None:
        check_rows("update", update, n_atoms, n_coefficients, channels)
    x = x.contiguous()
    out = torch.empty_like(x)
    summed = x if update is None else torch.empty_like(x)
    if n_atoms:
        _norm[(n_atoms,)](
            x, x if update is None else update, summed, tables.groups, tables.balance, tables.weight, tables.bias,
            x if added is None else added, out,
            ADDED=added is not None, UPDATE=update is not None, **_constants(x, tables),
        )  # fmt: skip
    return summed, out


def norm_adjoint(x: Tensor, tables: NormTables, gradient: Tensor, base: Tensor | None = None) -> Tensor:
    """Return the gradient of the features of `norm`, added to `base`.

    Args:
        x: As before.
        tables: As before.
        gradient: [n_atoms, n_coefficients, channels], of the result; or [n_atoms, channels], of its scalars, where that of
            the other coefficients is zero.
        base: What the features' gradient is already; None for nothing.

    Raises:
        ValueError: Tensors that do not fit together.
    """
    n_atoms, n_coefficients, channels = x.shape
    check_rows("weight", tables.weight, n_coefficients, channels)
    scalars = gradient.dim() == 2
    check_rows("gradient", gradient, n_atoms, *(() if scalars else (n_coefficients,)), channels)
    if base is not None:
        check_rows("base", base, n_atoms, n_coefficients, channels)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if n_atoms:
        _norm_adjoint[(n_atoms,)](
            x.contiguous(), tables.groups, tables.balance, tables.weight, gradient, gradient if base is None else base, out,
            BASE=base is not None, SCALARS=scalars, **_constants(x, tables),
        )  # fmt: skip
    return out
