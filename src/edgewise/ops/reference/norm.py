"""Equivariant norms of node features, and their adjoint (MODEL.md section 8.1): one formula for all three kinds.

With x the features after the scalars are centred, the coefficients fall into groups that share a scale:

    y[i, c] = x[i, c] (v + eps)^(-1/2) weight[i, c] + (bias[c] for i = 0),   v = 1/C sum over the group of balance[i] x[i, c]^2.

The kinds differ in their groups, and in how much a degree counts inside its group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.so3 import degree_index, n_coefficients

EPSILON = 1e-5

KINDS = ("rms_norm_sh", "layer_norm", "layer_norm_sh")


@dataclass(frozen=True, eq=False)
class NormWeights:
    """Everything that a norm reads beside the features.

    Attributes:
        bounds: Start and stop of each group of coefficients; the first begins with the scalars.
        balance: [n_coefficients], how much a coefficient counts inside its group.
        weight: [n_coefficients, channels].
        bias: [channels], added to the scalars.
    """

    bounds: tuple[tuple[int, int], ...]
    balance: Tensor
    weight: Tensor
    bias: Tensor


def groups(kind: str, lmax: int) -> tuple[tuple[tuple[int, int], ...], Tensor]:
    """Return the bounds of the groups of a kind of norm, and the balance of all coefficients, float64 on the CPU."""
    degrees = degree_index(lmax).to(torch.float64)
    balance, n = 1 / (2 * degrees + 1), n_coefficients(lmax)
    if kind == "rms_norm_sh":
        return ((0, n),), balance / (lmax + 1)
    if kind == "layer_norm":
        return tuple((degree**2, (degree + 1) ** 2) for degree in range(lmax + 1)), balance
    return ((0, 1), (1, n)), torch.where(degrees > 0, balance / lmax, balance)


def _parts(x: Tensor, weights: NormWeights) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield for each group its coefficients, their values with the scalars centred, and the scale [n_atoms, 1, 1]."""
    for start, stop in weights.bounds:
        part = x[:, start:stop]
        if start == 0:
            scalars = part[:, :1] - part[:, :1].mean(-1, keepdim=True)
            part = scalars if stop == 1 else torch.cat([scalars, part[:, 1:]], dim=1)
        # Plain sums: as a contraction it would be a batch of products with a single column, which is slow on GPUs.
        balance = weights.balance[start:stop].to(x.dtype)
        variance = (part.square() * balance[:, None]).sum((1, 2)) / x.shape[2]
        yield slice(start, stop), part, (variance + EPSILON).rsqrt()[:, None, None]


def norm(x: Tensor, weights: NormWeights) -> Tensor:
    """Normalise node features.

    Args:
        x: [n_atoms, n_coefficients, channels].
        weights: Groups and parameters.

    Returns:
        The same shape.
    """
    parts = [part * scale * weights.weight[rows] for rows, part, scale in _parts(x, weights)]
    y = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    return torch.cat([y[:, :1] + weights.bias, y[:, 1:]], dim=1)


def norm_adjoint(x: Tensor, weights: NormWeights, gradient: Tensor) -> Tensor:
    """Return the gradient of the features, [n_atoms, n_coefficients, channels], for the gradient of `norm(x)`."""
    parts: list[Tensor] = []
    for rows, part, scale in _parts(x, weights):
        scaled = gradient[:, rows] * weights.weight[rows]
        along = (scaled * part).sum((1, 2), keepdim=True) / x.shape[2]
        found = scale * scaled - scale**3 * along * weights.balance[rows].to(x.dtype)[:, None] * part
        if rows.start == 0:
            scalars = found[:, :1] - found[:, :1].mean(-1, keepdim=True)
            found = torch.cat([scalars, found[:, 1:]], dim=1)
        parts.append(found)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
