"""Norms: the scale of each group, and the adjoint against autograd."""

from __future__ import annotations

import pytest
import torch

from edgewise.ops.reference.norm import EPSILON, KINDS, NormWeights, groups, norm, norm_adjoint
from tests import tolerances


def weights_of(kind: str, lmax: int, channels: int = 7) -> NormWeights:
    made = torch.Generator().manual_seed(0)
    bounds, balance = groups(kind, lmax)
    weight = torch.randn((lmax + 1) ** 2, channels, generator=made, dtype=torch.float64)
    return NormWeights(bounds, balance, weight, torch.randn(channels, generator=made, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_atoms", [0, 1, 5])
@pytest.mark.parametrize("lmax", [1, 2, 4])
def test_the_adjoint_is_that_of_autograd(kind: str, n_atoms: int, lmax: int) -> None:
    weights = weights_of(kind, lmax)
    x = torch.randn(n_atoms, (lmax + 1) ** 2, 7, dtype=torch.float64, requires_grad=True)
    y = norm(x, weights)
    gradient = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, gradient)
    torch.testing.assert_close(norm_adjoint(x.detach(), weights, gradient), expected, **tolerances.WRITTEN_OUT)


@pytest.mark.parametrize("kind", KINDS)
def test_every_degree_of_a_group_counts_the_same(kind: str) -> None:
    """The balanced mean square of each group is 1 after a norm without weights, but for epsilon."""
    bounds, balance = groups(kind, 2)
    plain = NormWeights(bounds, balance, torch.ones(9, 7, dtype=torch.float64), torch.zeros(7, dtype=torch.float64))
    x = 10 * torch.randn(3, 9, 7, dtype=torch.float64)
    y = norm(x, plain)
    for start, stop in bounds:
        found = (y[:, start:stop].square() * balance[start:stop, None]).sum((1, 2)) / 7
        torch.testing.assert_close(found, torch.ones(3, dtype=torch.float64), rtol=10 * EPSILON, atol=0)
    torch.testing.assert_close(y[:, 0].mean(1), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-14)
