"""Balance of charge and spin: the sum of a scalar channel over a system is set to a target, and the adjoint (MODEL.md 8.3)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def balance(x: Tensor, channels: tuple[int, ...], target: Tensor, system_idx: Tensor, n_atoms: Tensor) -> Tensor:
    """Shift scalar channels of all atoms of a system by the same amount, so that each sums to the target.

    Args:
        x: [n_atoms, n_coefficients, channels].
        channels: Numbers of the balanced channels, a run without gaps; empty for none.
        target: [n_systems].
        system_idx: [n_atoms], the system of each atom.
        n_atoms: [n_systems].
    """
    if not channels:
        return x
    sums = _sums(x, channels, system_idx, n_atoms)
    return _shifted(x, channels, ((sums - target[:, None].to(x.dtype)) / n_atoms[:, None])[system_idx])


def balance_adjoint(gradient: Tensor, channels: tuple[int, ...], system_idx: Tensor, n_atoms: Tensor) -> Tensor:
    """Return the gradient of the input of `balance` for that of its output: balanced channels lose their mean."""
    if not channels:
        return gradient
    sums = _sums(gradient, channels, system_idx, n_atoms)
    return _shifted(gradient, channels, (sums / n_atoms[:, None])[system_idx])


def _sums(x: Tensor, channels: tuple[int, ...], system_idx: Tensor, n_atoms: Tensor) -> Tensor:
    values = x[:, 0, channels[0] : channels[-1] + 1]
    if n_atoms.shape[0] == 1:
        # In a fixed order, unlike `index_add` on GPUs.
        return values.sum(0, keepdim=True)
    return values.new_zeros(n_atoms.shape[0], len(channels)).index_add(0, system_idx, values)


def _shifted(x: Tensor, channels: tuple[int, ...], excess: Tensor) -> Tensor:
    shift = functional.pad(excess, (channels[0], x.shape[2] - channels[-1] - 1))
    return torch.cat([x[:, :1] - shift[:, None], x[:, 1:]], dim=1)
