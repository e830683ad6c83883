"""Feed-forward networks: the adjoints against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from edgewise.ops.reference.feed_forward import (
    FeedForwardWeights,
    GridWeights,
    SpectralWeights,
    feed_forward,
    feed_forward_adjoint,
    scalar_network,
    scalar_network_adjoint,
    silu_slope,
)
from edgewise.so3 import degree_index, grid_matrices
from tests import tolerances

LMAX, CHANNELS, HIDDEN = 2, 5, 6


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def spectral() -> FeedForwardWeights:
    degrees = degree_index(LMAX)
    return SpectralWeights(
        gate=random(LMAX * HIDDEN, CHANNELS),
        gate_bias=random(LMAX * HIDDEN),
        first=random(LMAX + 1, HIDDEN, CHANNELS)[degrees],
        first_bias=random(HIDDEN),
        second=random(LMAX + 1, CHANNELS, HIDDEN)[degrees],
        second_bias=random(CHANNELS),
        degrees=degrees[1:] - 1,
    )


def grid() -> FeedForwardWeights:
    layers = random(HIDDEN, CHANNELS), random(HIDDEN, HIDDEN), random(CHANNELS, HIDDEN)
    return GridWeights(*grid_matrices(LMAX, LMAX), layers=layers)


@pytest.mark.parametrize("kind", [spectral, grid])
@pytest.mark.parametrize("n_atoms", [0, 1, 5])
def test_the_adjoint_is_that_of_autograd(kind: object, n_atoms: int) -> None:
    assert callable(kind)
    weights = kind()
    x = random(n_atoms, (LMAX + 1) ** 2, CHANNELS).requires_grad_()
    y = feed_forward(x, weights)
    gradient = random(*y.shape)
    (expected,) = torch.autograd.grad(y, x, gradient)
    torch.testing.assert_close(
        feed_forward_adjoint(x.detach(), weights, gradient), expected, **tolerances.WRITTEN_OUT_FIRST
    )


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_the_adjoint_of_a_scalar_network_is_that_of_autograd(n_layers: int) -> None:
    widths = [4, 6, 6, 1][: n_layers + 1]
    layers = [random(widths[i + 1], widths[i]) for i in range(n_layers)]
    biases = [random(widths[i + 1]) for i in range(n_layers)]
    x = random(3, 4).requires_grad_()
    y = scalar_network(x, layers, biases)
    (expected,) = torch.autograd.grad(y, x, torch.ones_like(y))
    found = scalar_network_adjoint(x.detach(), layers, biases, torch.ones_like(y))
    torch.testing.assert_close(found, expected, **tolerances.WRITTEN_OUT)


def test_the_slope_of_silu_is_that_of_autograd() -> None:
    x = torch.linspace(-30, 30, 101, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(torch.nn.functional.silu(x).sum(), x)
    torch.testing.assert_close(silu_slope(x.detach()), expected, **tolerances.ROUNDED64)
