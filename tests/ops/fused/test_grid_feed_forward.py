"""Feed-forward networks on a grid by kernels, and their adjoint, against the reference in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from edgewise.ops.fused.grid_feed_forward import (
    POINTS,
    GridTables,
    grid_feed_forward,
    grid_feed_forward_adjoint,
    grid_tables,
)
from edgewise.ops.reference import feed_forward as reference
from edgewise.so3 import grid_matrices
from tests import tolerances
from tests.ops.fused.problems import poisoned
from tests.ops.kernel_problems import DEVICE

pytestmark = pytest.mark.kernels

SIZES = [(0, 4, 4), (1, 4, 6), (5, 16, 20)] + ([(1009, 128, 128)] if DEVICE == "cuda" else [])
"""Atoms, channels and hidden channels: none, one, a prime, widths that are powers of two and not."""


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, device=DEVICE)


def network(lmax: int, channels: int, hidden: int, resolution: int | None = None) -> reference.GridWeights:
    to_grid, from_grid = (item.to(DEVICE) for item in grid_matrices(lmax, lmax, resolution))
    shapes = ((hidden, channels), (hidden, hidden), (channels, hidden))
    return reference.GridWeights(to_grid, from_grid, tuple(random(*shape) / shape[1] ** 0.5 for shape in shapes))


def run(h: Tensor, base: Tensor, gradient: Tensor, tables: GridTables) -> tuple[Tensor, Tensor]:
    found = grid_feed_forward(h.float(), tables, base.float(), poisoned(*h.shape))
    return found, grid_feed_forward_adjoint(h.float(), tables, gradient.float(), poisoned(*h.shape))


@pytest.mark.parametrize(("lmax", "resolution"), [(1, None), (2, None), (2, 10), (4, None)])
@pytest.mark.parametrize(("n_atoms", "channels", "hidden"), SIZES)
def test_grid_and_adjoint(lmax: int, resolution: int | None, n_atoms: int, channels: int, hidden: int) -> None:
    weights = network(lmax, channels, hidden, resolution)
    assert weights.to_grid.shape[0] % POINTS, "the last tile has points that are none"
    h, base, gradient = (random(n_atoms, (lmax + 1) ** 2, channels) for _ in range(3))
    found, to_h = run(h, base, gradient, grid_tables(weights))
    torch.testing.assert_close(found.double(), base + reference.feed_forward(h, weights), **tolerances.FUSED)
    torch.testing.assert_close(
        to_h.double(), reference.feed_forward_adjoint(h, weights, gradient), **tolerances.FUSED_SUMS
    )


def test_errors_are_those_of_float32() -> None:
    """Sums of products of two parts lose about as much as float32's own products do, or what 22 bits leave."""
    weights = network(2, 64, 64)
    single = reference.GridWeights(
        weights.to_grid.float(), weights.from_grid.float(), tuple(layer.float() for layer in weights.layers)
    )
    exact = reference.GridWeights(
        single.to_grid.double(), single.from_grid.double(), tuple(layer.double() for layer in single.layers)
    )
    h, gradient = (random(9, 9, 64).float() for _ in range(2))
    found = run(h, torch.zeros_like(h), gradient, grid_tables(single))
    plain = reference.feed_forward(h, single), reference.feed_forward_adjoint(h, single, gradient)
    best = (
        reference.feed_forward(h.double(), exact),
        reference.feed_forward_adjoint(h.double(), exact, gradient.double()),
    )
    for ours, theirs, right in zip(found, plain, best, strict=True):
        error, error_plain = ((item.double() - right).norm() / right.norm() for item in (ours, theirs))
        assert error <= max(2 * float(error_plain), 2.0**-21), f"{float(error):.1e} beside {float(error_plain):.1e}"


def test_gradients_of_any_size_keep_their_digits() -> None:
    h, base, gradient = (random(3, 9, 16) for _ in range(3))
    tables = grid_tables(network(2, 16, 16))
    _, expected = run(h, base, gradient, tables)
    for power in (-40, 40):
        _, found = run(h, base, gradient * 2.0**power, tables)
        assert torch.equal(found * 2.0**-power, expected)


def test_tensors_that_do_not_fit_are_refused() -> None:
    tables, x, wide = grid_tables(network(2, 16, 20)), poisoned(3, 9, 16), poisoned(3, 9, 40)
    with pytest.raises(ValueError, match="base has shape"):
        grid_feed_forward(x, tables, x[:2], x)
    with pytest.raises(ValueError, match="gradient has shape"):
        grid_feed_forward_adjoint(x, tables, x[:, :4], x)
    with pytest.raises(ValueError, match="h has 40 channels; the network has up to 16"):
        grid_feed_forward(wide, tables, wide, wide)
