"""Norms of node features by kernels, and the adjoint: all kinds and degrees, against the reference in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from edgewise.ops.fused.norm import norm, norm_adjoint, norm_of_sum, norm_tables
from edgewise.ops.reference import norm as reference
from tests import tolerances
from tests.ops.kernel_problems import DEVICE

pytestmark = pytest.mark.kernels

SIZES = [(0, 4), (1, 4), (5, 6)] + ([(1009, 128)] if DEVICE == "cuda" else [])


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, device=DEVICE)


@pytest.mark.parametrize("kind", reference.KINDS)
@pytest.mark.parametrize("lmax", [1, 2, 4])
@pytest.mark.parametrize(("n_atoms", "channels"), SIZES)
@pytest.mark.parametrize("with_more", [False, True], ids=["alone", "added to"])
def test_norm_and_adjoint(kind: str, lmax: int, n_atoms: int, channels: int, with_more: bool) -> None:
    n = (lmax + 1) ** 2
    bounds, balance = reference.groups(kind, lmax)
    weights = reference.NormWeights(bounds, balance.to(DEVICE), random(n, channels), random(channels))
    x, gradient, base, added = random(n_atoms, n, channels), random(n_atoms, n, channels), random(n_atoms, n, channels), random(n_atoms, channels)  # fmt: skip
    tables = norm_tables(weights)
    found = norm(x.float(), tables, added.float() if with_more else None)
    expected = reference.norm(x, weights)
    if with_more:
        expected[:, 0] += added
    torch.testing.assert_close(found.double(), expected, **tolerances.FUSED)
    found = norm_adjoint(x.float(), tables, gradient.float(), base.float() if with_more else None)
    expected = reference.norm_adjoint(x, weights, gradient)
    torch.testing.assert_close(found.double(), expected + base if with_more else expected, **tolerances.FUSED_SUMS)


@pytest.mark.parametrize("kind", reference.KINDS)
@pytest.mark.parametrize(("n_atoms", "channels"), SIZES)
def test_norm_of_a_sum_and_adjoint_for_scalars(kind: str, n_atoms: int, channels: int) -> None:
    bounds, balance = reference.groups(kind, 2)
    weights = reference.NormWeights(bounds, balance.to(DEVICE), random(9, channels), random(channels))
    x, update, to_scalars = random(n_atoms, 9, channels), random(n_atoms, 9, channels), random(n_atoms, channels)
    tables = norm_tables(weights)
    summed, normed = norm_of_sum(x.float(), update.float(), tables)
    assert torch.equal(summed, x.float() + update.float())
    torch.testing.assert_close(normed.double(), reference.norm(x + update, weights), **tolerances.FUSED)
    found = norm_adjoint(x.float(), tables, to_scalars.float())
    gradient = torch.nn.functional.pad(to_scalars[:, None], (0, 0, 0, 8))
    expected = reference.norm_adjoint(x, weights, gradient)
    torch.testing.assert_close(found.double(), expected, **tolerances.FUSED_SUMS)


def test_tensors_that_do_not_fit_are_refused() -> None:
    bounds, balance = reference.groups("rms_norm_sh", 2)
    tables = norm_tables(reference.NormWeights(bounds, balance.to(DEVICE), random(9, 4), random(4)))
    with pytest.raises(ValueError, match="weight has shape"):
        norm(random(3, 9, 5).float(), tables)
    with pytest.raises(ValueError, match="added has shape"):
        norm(random(3, 9, 4).float(), tables, random(2, 4).float())
    with pytest.raises(ValueError, match="gradient has shape"):
        norm_adjoint(random(3, 9, 4).float(), tables, random(2, 9, 4).float())
    with pytest.raises(ValueError, match="update has shape"):
        norm_of_sum(random(3, 9, 4).float(), random(2, 9, 4).float(), tables)
    with pytest.raises(ValueError, match="base has shape"):
        norm_adjoint(random(3, 9, 4).float(), tables, random(3, 4).float(), random(3, 4).float())
    across = random(9, 3, 4).float().transpose(0, 1)
    with pytest.raises(ValueError, match="rows of update do not stand one after the other"):
        norm_of_sum(random(3, 9, 4).float(), across, tables)
    with pytest.raises(ValueError, match="rows of gradient do not stand one after the other"):
        norm_adjoint(random(3, 9, 4).float(), tables, across)
