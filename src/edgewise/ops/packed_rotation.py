"""Rotations of edges as the values of their blocks alone: 1 + 9 + 25 in place of 81 for lmax = mmax = 2."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from edgewise.so3 import m_major_order, n_coefficients, packed_entries

SIZES = {mmax: len(packed_entries(2, mmax)) for mmax in (2, 1)}
"""Number of packed values by the largest order: {2: 35, 1: 25}."""


def as_packed(rotations: Tensor) -> Tensor:
    """Return packed rotations for packed or dense ones; gradients come back in the given form, zero off the blocks.

    Args:
        rotations: [n_edges, 35] or [n_edges, 25] (lmax 2; mmax 2 or 1), or dense [n_edges, n_edge_coefficients, 9].

    Raises:
        ValueError: Another shape.
    """
    if rotations.dim() == 3 and tuple(rotations.shape[1:]) in ((9, 9), (7, 9)):
        return _pack(rotations)
    if rotations.dim() == 2 and rotations.shape[1] in (SIZES[2], SIZES[1]):
        return rotations
    message = (
        f"rotations have shape {tuple(rotations.shape)}; allowed are [n_edges, 35] and [n_edges, 9, 9] (mmax = 2), "
        "[n_edges, 25] and [n_edges, 7, 9] (mmax = 1)"
    )
    raise ValueError(message)


def mmax_of_packed(rotations: Tensor) -> int:
    """Return the largest order of packed rotations [n_edges, 35] or [n_edges, 25]."""
    return 2 if rotations.shape[1] == SIZES[2] else 1


@functools.cache
def _places(mmax: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return where each packed value stands in a dense rotation, and where each dense one stands among the packed.

    Dense values off the blocks stand behind the packed ones, where a zero is put.
    """
    entries = torch.tensor(packed_entries(2, mmax), device=device)
    n_dense = len(m_major_order(2, mmax)) * n_coefficients(2)
    inverse = torch.full((n_dense,), len(entries), device=device)
    inverse[entries] = torch.arange(len(entries), device=device)
    return entries, inverse


@torch.library.custom_op("edgewise::pack_rotations", mutates_args=())
def _pack(rotations: Tensor) -> Tensor:
    entries, _ = _places(2 if rotations.shape[1] == 9 else 1, rotations.device)
    return rotations.flatten(1).index_select(1, entries)


@_pack.register_fake
def _(rotations: Tensor) -> Tensor:
    return rotations.new_empty(rotations.shape[0], SIZES[2 if rotations.shape[1] == 9 else 1])


@torch.library.custom_op("edgewise::unpack_rotations", mutates_args=())
def unpack(packed: Tensor) -> Tensor:
    """Return dense values [n_edges, n_edge_coefficients, 9] for packed ones, zero off the blocks.

    Both directions gather: the derivative that torch has for indexing adds entry by entry and is many times slower.
    """
    _, inverse = _places(mmax_of_packed(packed), packed.device)
    padded = torch.cat([packed, packed.new_zeros(packed.shape[0], 1)], dim=1)
    return padded.index_select(1, inverse).view(packed.shape[0], -1, 9)


@unpack.register_fake
def _(packed: Tensor) -> Tensor:
    return packed.new_empty(packed.shape[0], 9 if mmax_of_packed(packed) == 2 else 7, 9)


def _nothing(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    """Keep nothing: both maps are linear."""


def _pack_gradient(ctx: Any, gradient: Tensor) -> Tensor:
    return unpack(gradient)


def _unpack_gradient(ctx: Any, gradient: Tensor) -> Tensor:
    return _pack(gradient)


_pack.register_autograd(_pack_gradient, setup_context=_nothing)
unpack.register_autograd(_unpack_gradient, setup_context=_nothing)
