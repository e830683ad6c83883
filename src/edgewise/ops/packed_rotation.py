"""Rotations of edges as the values of their blocks alone: 1 + 9 + 25 in place of 81 for lmax = mmax = 2."""

from __future__ import annotations

from torch import Tensor

from edgewise.so3 import pack_rotations, packed_entries

SIZES = {mmax: len(packed_entries(2, mmax)) for mmax in (2, 1)}
"""Number of packed values by the largest order: {2: 35, 1: 25}."""


def as_packed(rotations: Tensor) -> Tensor:
    """Return packed rotations for packed or dense ones.

    Args:
        rotations: [n_edges, 35] or [n_edges, 25] (lmax 2; mmax 2 or 1), or dense [n_edges, n_edge_coefficients, 9].

    Raises:
        ValueError: Another shape.
    """
    if rotations.dim() == 3 and tuple(rotations.shape[1:]) in ((9, 9), (7, 9)):
        return pack_rotations(rotations, 2, 2 if rotations.shape[1] == 9 else 1)
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
