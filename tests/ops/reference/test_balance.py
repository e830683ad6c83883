"""Balance of charge and spin: sums reach their targets, and the adjoint is that of autograd."""

from __future__ import annotations

import torch

from edgewise.ops.reference.balance import balance, balance_adjoint

SYSTEM = torch.tensor([0, 0, 0, 1, 2, 2])
N_ATOMS = torch.tensor([3, 1, 2])
TARGET = torch.tensor([1, 0, -2])


def test_each_channel_sums_to_its_target_and_nothing_else_changes() -> None:
    x = torch.randn(6, 4, 5, dtype=torch.float64)
    y = balance(x, (1, 2), TARGET, SYSTEM, N_ATOMS)
    sums = torch.zeros(3, 5, dtype=torch.float64).index_add(0, SYSTEM, y[:, 0])
    torch.testing.assert_close(sums[:, 1:3], TARGET[:, None].expand(3, 2).to(torch.float64))
    assert torch.equal(y[:, 1:], x[:, 1:])
    assert torch.equal(y[:, 0, [0, 3, 4]], x[:, 0, [0, 3, 4]])


def test_no_channels_change_nothing() -> None:
    x = torch.randn(6, 4, 5)
    assert balance(x, (), TARGET, SYSTEM, N_ATOMS) is x
    assert balance_adjoint(x, (), SYSTEM, N_ATOMS) is x


def test_the_adjoint_is_that_of_autograd() -> None:
    x = torch.randn(6, 4, 5, dtype=torch.float64, requires_grad=True)
    y = balance(x, (1, 2), TARGET, SYSTEM, N_ATOMS)
    gradient = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, gradient)
    torch.testing.assert_close(balance_adjoint(gradient, (1, 2), SYSTEM, N_ATOMS), expected)
