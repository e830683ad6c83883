"""Balance of charge and spin in one kernel, in place, and its adjoint: a system a program.

The formula is `reference.balance`. Sums run in a fixed order for any number of systems. Where a channel is balanced to both
charge and spin, the latter comes last, so it alone counts.
"""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from edgewise.ops.fused.shapes import check_rows
from edgewise.ops.launch import width

VALUES = 4096
"""Values that a program holds at a time."""


@triton.jit
def _balance(
    x, starts, charge, spin,
    STRIDE: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    CHARGE_START: tl.constexpr, CHARGE_STOP: tl.constexpr, SPIN_START: tl.constexpr, SPIN_STOP: tl.constexpr,
    ADJOINT: tl.constexpr,
):  # fmt: skip
    """Sum the channels of one system and shift them."""
    system = tl.program_id(0)
    start, stop = tl.load(starts + system), tl.load(starts + system + 1)
    channel = FIRST + tl.arange(0, BLOCK)
    to_charge = (channel >= CHARGE_START) & (channel < CHARGE_STOP)
    to_spin = (channel >= SPIN_START) & (channel < SPIN_STOP)
    balanced = to_charge | to_spin
    row = tl.arange(0, ROWS)
    sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for begin in range(start, stop, ROWS):
        atom = begin + row
        here = x + atom.to(tl.int64)[:, None] * STRIDE + channel[None, :]
        sums += tl.load(here, mask=(atom < stop)[:, None] & balanced[None, :], other=0.0)
    excess = tl.sum(sums, axis=0)
    if not ADJOINT:
        target = tl.where(to_spin, tl.load(spin + system) - 1, tl.load(charge + system))
        excess -= target.to(tl.float32)
    excess = excess / tl.maximum(stop - start, 1).to(tl.float32)
    for begin in range(start, stop, ROWS):
        atom = begin + row
        here = x + atom.to(tl.int64)[:, None] * STRIDE + channel[None, :]
        inside = (atom < stop)[:, None] & balanced[None, :]
        tl.store(here, tl.load(here, mask=inside, other=0.0) - excess[None, :], mask=inside)


def balance(
    x: Tensor,
    charge_channels: tuple[int, ...],
    spin_channels: tuple[int, ...],
    starts: Tensor,
    charge: Tensor,
    spin: Tensor,
) -> Tensor:
    """Set the sums of scalar channels over each system to its charge, or to its multiplicity - 1, in place.

    Args:
        x: [n_atoms, n_coefficients, channels] float32, changed in place.
        charge_channels: Numbers of the channels, a run without gaps; empty for none.
        spin_channels: The same for spin.
        starts: [n_systems + 1] int32, where each system's atoms begin, and the end.
        charge: [n_systems], whole numbers.
        spin: [n_systems], whole numbers.

    Returns:
        The features themselves.

    Raises:
        ValueError: Tensors that do not fit together.
    """
    return _launch(x, charge_channels, spin_channels, starts, charge, spin, adjoint=False)


def balance_adjoint(
    gradient: Tensor, charge_channels: tuple[int, ...], spin_channels: tuple[int, ...], starts: Tensor
) -> Tensor:
    """Take the mean over each system off the balanced channels of a gradient, in place; arguments as for `balance`."""
    return _launch(gradient, charge_channels, spin_channels, starts, starts[1:], starts[1:], adjoint=True)


def _launch(
    x: Tensor,
    charge_channels: tuple[int, ...],
    spin_channels: tuple[int, ...],
    starts: Tensor,
    charge: Tensor,
    spin: Tensor,
    *,
    adjoint: bool,
) -> Tensor:
    n_atoms, n_coefficients, channels = x.shape
    check_rows("x", x, n_atoms, n_coefficients, channels)
    n_systems = starts.shape[0] - 1
    for name, tensor in (("charge", charge), ("spin", spin)):
        check_rows(name, tensor[None], 1, n_systems)
    both = charge_channels + spin_channels
    if both and (min(both) < 0 or max(both) >= channels):
        message = f"channels {min(both)} to {max(both)} are balanced; there are {channels}"
        raise ValueError(message)
    if both and n_atoms:
        block = width(max(both) - min(both) + 1)
        _balance[(n_systems,)](
            x, starts, charge, spin,
            STRIDE=n_coefficients * channels, FIRST=min(both), BLOCK=block, ROWS=max(1, VALUES // block),
            CHARGE_START=_start(charge_channels), CHARGE_STOP=_start(charge_channels) + len(charge_channels),
            SPIN_START=_start(spin_channels), SPIN_STOP=_start(spin_channels) + len(spin_channels),
            ADJOINT=adjoint, num_warps=8,
        )  # fmt: skip
    return x


def _start(channels: tuple[int, ...]) -> int:
    return channels[0] if channels else 0
