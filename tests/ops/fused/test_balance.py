"""Balance of charge and spin in place, and its adjoint: one system and several, against the reference in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from edgewise.ops.fused import balance as kernel
from edgewise.ops.fused.balance import balance, balance_adjoint
from edgewise.ops.reference import balance as reference
from tests import tolerances
from tests.ops.kernel_problems import DEVICE

pytestmark = pytest.mark.kernels

CHANNELS = [((0, 1, 2), ()), ((), (3,)), ((0, 1), (2, 3, 4)), ((1, 2), (2, 3)), ((0,), (5,)), ((), ())]
"""Of charge and of spin: as published, alone, both, both at once, far apart, none."""

COUNTS = [[], [1], [5], [3, 1, 7], [40, 29]]


def problem(counts: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return features with channels enough, starts, system of each atom, charge and spin."""
    n_atoms = torch.tensor(counts, dtype=torch.int64, device=DEVICE)
    starts = torch.nn.functional.pad(n_atoms.cumsum(0), (1, 0)).int()
    generator = torch.Generator().manual_seed(len(counts))
    x = torch.randn(sum(counts), 4, 6, dtype=torch.float64, generator=generator).float().double().to(DEVICE)
    charge, spin = (torch.randint(-3, 4, (len(counts),), generator=generator).to(DEVICE) for _ in range(2))
    return x, starts, n_atoms, charge, spin


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize(("of_charge", "of_spin"), CHANNELS, ids=str)
def test_balance_and_adjoint(
    counts: list[int], of_charge: tuple[int, ...], of_spin: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Systems that are larger than what a program holds at a time are among these.
    monkeypatch.setattr(kernel, "VALUES", 64)
    x, starts, n_atoms, charge, spin = problem(counts)
    systems = torch.repeat_interleave(torch.arange(len(counts), device=DEVICE), n_atoms), n_atoms
    given = x.float()
    found = balance(given, of_charge, of_spin, starts, charge, spin)
    assert found is given, "in place"
    expected = reference.balance(x, of_charge, charge, *systems)
    expected = reference.balance(expected, of_spin, spin - 1, *systems)
    torch.testing.assert_close(found.double(), expected, **tolerances.FUSED)
    found = balance_adjoint(x.float(), of_charge, of_spin, starts)
    expected = reference.balance_adjoint(x, of_spin, *systems)
    expected = reference.balance_adjoint(expected, of_charge, *systems)
    torch.testing.assert_close(found.double(), expected, **tolerances.FUSED)
    rest = sorted(set(range(6)) - set(of_charge) - set(of_spin))
    assert torch.equal(found[:, 1:].double(), x[:, 1:]), "coefficients above the scalars stay to the bit"
    assert torch.equal(found[:, 0, rest].double(), x[:, 0, rest]), "and so do other channels"


def test_tensors_that_do_not_fit_are_refused() -> None:
    x, starts, _, charge, spin = problem([3, 1])
    with pytest.raises(ValueError, match="charge has shape"):
        balance(x.float(), (0,), (), starts, charge[:1], spin)
    with pytest.raises(ValueError, match="channels 5 to 6 are balanced; there are 6"):
        balance(x.float(), (5, 6), (), starts, charge, spin)
    with pytest.raises(ValueError, match="do not stand one after the other"):
        balance_adjoint(x.float().transpose(0, 1).contiguous().transpose(0, 1), (0,), (), starts)
