"""Feed-forward networks by kernels, and their adjoint, against the reference in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from edgewise.ops.fused.feed_forward import ATOMS, SpectralTables, feed_forward, feed_forward_adjoint, spectral_tables
from edgewise.ops.reference import feed_forward as reference
from edgewise.so3 import degree_index
from tests import tolerances
from tests.ops.fused.problems import poisoned
from tests.ops.kernel_problems import DEVICE

pytestmark = pytest.mark.kernels

SIZES = [(0, 4, 4), (1, 4, 6), (7, 16, 16), (ATOMS + 1, 20, 5)] + ([(1009, 128, 128)] if DEVICE == "cuda" else [])
"""Atoms, channels and hidden channels: none, one, a prime, one past a tile, widths that are powers of two and not."""


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, device=DEVICE)


def network(lmax: int, channels: int, hidden: int) -> reference.SpectralWeights:
    """Return random weights, the same for the coefficients of a degree; each layer keeps the size of what it reads."""
    degrees = degree_index(lmax).to(DEVICE)
    return reference.SpectralWeights(
        gate=random(lmax * hidden, channels) / channels**0.5,
        gate_bias=random(lmax * hidden),
        first=(random(lmax + 1, hidden, channels) / channels**0.5)[degrees],
        first_bias=random(hidden),
        second=(random(lmax + 1, channels, hidden) / hidden**0.5)[degrees],
        second_bias=random(channels),
        degrees=degrees[1:] - 1,
    )


def run(h: Tensor, base: Tensor, gradient: Tensor, tables: SpectralTables) -> tuple[Tensor, Tensor]:
    """Return the result and the gradient of `h`; all memory is NaN before."""
    n_atoms, n, _ = h.shape
    kept, before_gate = poisoned(n_atoms, n, tables.hidden), poisoned(n_atoms, tables.lmax, tables.hidden)
    found = feed_forward(h.float(), tables, base.float(), kept, before_gate, poisoned(*h.shape))
    to_h = poisoned(*h.shape)
    feed_forward_adjoint(gradient.float(), tables, kept, before_gate, poisoned(*kept.shape), to_h)
    return found, to_h


@pytest.mark.parametrize("lmax", [1, 2, 4])
@pytest.mark.parametrize(("n_atoms", "channels", "hidden"), SIZES)
def test_spectral_and_adjoint(lmax: int, n_atoms: int, channels: int, hidden: int) -> None:
    n, weights = (lmax + 1) ** 2, network(lmax, channels, hidden)
    h, base, gradient = (random(n_atoms, n, channels) for _ in range(3))
    found, to_h = run(h, base, gradient, spectral_tables(weights))
    expected = base + reference.feed_forward(h, weights)
    torch.testing.assert_close(found.double(), expected, **tolerances.FUSED)
    torch.testing.assert_close(
        to_h.double(), reference.feed_forward_adjoint(h, weights, gradient), **tolerances.FUSED_SUMS
    )


def test_errors_are_those_of_float32() -> None:
    """Sums of products of two parts lose no more than float32's own products do."""
    weights = network(2, 64, 64)
    h, base, gradient = random(33, 9, 64), torch.zeros(33, 9, 64, dtype=torch.float64, device=DEVICE), random(33, 9, 64)
    single = reference.SpectralWeights(
        **{name: value.float() if value.is_floating_point() else value for name, value in vars(weights).items()}
    )
    found = run(h, base, gradient, spectral_tables(weights))
    # Weights and features that float32 holds exactly leave the rounding of products and sums alone.
    exact = reference.SpectralWeights(
        **{name: value.double() if value.is_floating_point() else value for name, value in vars(single).items()}
    )
    h, gradient = h.float(), gradient.float()
    plain = reference.feed_forward(h, single), reference.feed_forward_adjoint(h, single, gradient)
    best = (
        reference.feed_forward(h.double(), exact),
        reference.feed_forward_adjoint(h.double(), exact, gradient.double()),
    )
    for ours, theirs, right in zip(found, plain, best, strict=True):
        error, error_plain = ((item.double() - right).norm() / right.norm() for item in (ours, theirs))
        assert error <= 2 * error_plain, f"{float(error):.1e} beside {float(error_plain):.1e}"


def test_gradients_of_any_size_keep_their_digits() -> None:
    """Each row is scaled by a power of two on its way to float16."""
    weights = network(2, 16, 16)
    h, base, gradient = random(5, 9, 16), random(5, 9, 16), random(5, 9, 16)
    _, expected = run(h, base, gradient, spectral_tables(weights))
    for power in (-40, 40):
        _, found = run(h, base, gradient * 2.0**power, spectral_tables(weights))
        assert torch.equal(found * 2.0**-power, expected)
    _, found = run(h, base, 0 * gradient, spectral_tables(weights))
    assert torch.equal(found, torch.zeros_like(found))


def test_tensors_that_do_not_fit_are_refused() -> None:
    tables = spectral_tables(network(2, 16, 20))
    x, kept, gates = poisoned(3, 9, 16), poisoned(3, 9, 20), poisoned(3, 2, 20)
    with pytest.raises(ValueError, match="base has shape"):
        feed_forward(x, tables, x[:2], kept, gates, x)
    with pytest.raises(ValueError, match="kept has shape"):
        feed_forward(x, tables, x, x, gates, x)
    with pytest.raises(ValueError, match="before_gate has shape"):
        feed_forward_adjoint(x, tables, kept, gates[:, :1], kept, x)
    wide = poisoned(3, 9, 40)
    with pytest.raises(ValueError, match="h has 40 channels; the network has up to 16"):
        feed_forward(wide, tables, wide, kept, gates, wide)
