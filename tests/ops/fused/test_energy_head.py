"""The energy head and its gradient by a kernel, with sets of weights for some atoms, against the reference in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from edgewise.ops.fused.energy_head import ATOMS, HeadTables, energy_head, head_tables
from edgewise.ops.reference.feed_forward import scalar_network, scalar_network_adjoint
from tests import tolerances
from tests.ops.fused.problems import poisoned
from tests.ops.kernel_problems import DEVICE

pytestmark = pytest.mark.kernels

TILES = [[], [(0, 1, 0)], [(0, ATOMS, 1), (ATOMS, ATOMS + 1, 1)], [(0, 5, 2), (5, 7, 0), (7, 20, 2)]]
"""No atom, one, one past a tile, runs of several sets."""


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, device=DEVICE)


def head(channels: int, hidden: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return three sets of weights and the biases that they share."""
    layers = [random(3, hidden, channels), random(3, hidden, hidden), random(3, 1, hidden)]
    return [layer / layer.shape[2] ** 0.5 for layer in layers], [random(hidden), random(hidden), random(1)]


def run(x: Tensor, tiles: list[tuple[int, int, int]], tables: HeadTables) -> tuple[Tensor, Tensor]:
    energy, gradient = poisoned(x.shape[0]), poisoned(x.shape[0], x.shape[2])
    table = torch.tensor(tiles, dtype=torch.int32, device=DEVICE).reshape(-1, 3)
    energy_head(x.float(), table, tables, energy, gradient)
    alone = poisoned(x.shape[0])
    energy_head(x.float(), table, tables, alone, None)
    # Without gradients it is another program, in which a compiler may round sums of products once more or less.
    torch.testing.assert_close(alone, energy, rtol=2e-6, atol=2e-6, equal_nan=True)
    return energy, gradient


@pytest.mark.parametrize("tiles", TILES, ids=str)
@pytest.mark.parametrize(("channels", "hidden"), [(4, 4), (16, 20), (23, 32)])
def test_energies_and_gradients(tiles: list[tuple[int, int, int]], channels: int, hidden: int) -> None:
    layers, biases = head(channels, hidden)
    x = random(tiles[-1][1] if tiles else 0, 4, channels)
    energy, gradient = run(x, tiles, head_tables(layers, biases))
    for start, stop, number in tiles:
        own, scalars = [layer[number] for layer in layers], x[start:stop, 0]
        expected = scalar_network(scalars, own, biases)[:, 0]
        torch.testing.assert_close(energy[start:stop].double(), expected, **tolerances.FUSED)
        to_energy = torch.ones(stop - start, 1, dtype=torch.float64, device=DEVICE)
        expected = scalar_network_adjoint(scalars, own, biases, to_energy)
        torch.testing.assert_close(gradient[start:stop].double(), expected, **tolerances.FUSED)


def test_last_layers_of_any_size_keep_the_digits_of_gradients() -> None:
    layers, biases = head(16, 16)
    x, tiles = random(5, 4, 16), [(0, 5, 0)]
    _, expected = run(x, tiles, head_tables(layers, biases))
    layers[2] = layers[2] * 2.0**-40
    _, found = run(x, tiles, head_tables(layers, biases))
    assert torch.equal(found * 2.0**40, expected)


def test_atoms_of_no_tile_are_left_alone() -> None:
    energy, gradient = run(random(7, 4, 16), [(2, 5, 1)], head_tables(*head(16, 16)))
    assert energy.isnan().tolist() == [True, True, False, False, False, True, True]
    assert torch.equal(gradient.isnan(), energy.isnan()[:, None].expand(-1, 16))


def test_tensors_that_do_not_fit_are_refused() -> None:
    tables, x = head_tables(*head(16, 20)), poisoned(3, 4, 16)
    tiles = torch.zeros(1, 3, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match="energy has shape"):
        energy_head(x, tiles, tables, poisoned(2), None)
    with pytest.raises(ValueError, match="gradient has shape"):
        energy_head(x, tiles, tables, poisoned(3), poisoned(3, 20))
    with pytest.raises(ValueError, match="features have 40 channels; the head has up to 16"):
        energy_head(poisoned(3, 4, 40), tiles, tables, poisoned(3), None)
