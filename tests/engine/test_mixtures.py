"""Merged expert weights: what they depend on, that they are found again, and that their memory is bounded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule

from edgewise.engine.mixtures import Mixtures
from edgewise.systems import batch_from_atoms
from tests.cases import copper_cube, potential, salt, water


def mixtures(architecture: str = "uma-s-tiny", **arguments: object) -> Mixtures:
    network = potential(architecture)._runner.network
    return Mixtures(network, **{"keep": True, **arguments})  # type: ignore[arg-type]


def test_same_ratio_shares_weights_and_everything_else_does_not() -> None:
    store = mixtures()
    cases = [
        (water(), "omol", {}),
        (water() + water(), "omol", {}),
        (molecule("CH4"), "omol", {}),
        (water(), "omol", {"charge": 1}),
        (water(), "omol", {"spin": 3}),
        (water(), "omat", {}),
    ]
    counts = []
    for atoms, task, info in cases:
        atoms.info.update(info)
        store.for_batch(batch_from_atoms([atoms], [task]))
        counts.append(store.n_mixed)
    assert counts == [1, 1, 2, 3, 4, 5]


def test_size_counts_where_the_model_needs_it() -> None:
    store = mixtures("uma-s-1p2-tiny")
    for repeats in (1, 2, 1, 2):
        store.for_batch(batch_from_atoms([copper_cube().repeat((repeats, 1, 1))], ["omat"]))
    assert store.n_mixed == 2


def test_a_batch_names_each_systems_weights() -> None:
    batch = batch_from_atoms([water(), copper_cube(), water()], ["omol", "omat", "omol"])
    weights, numbers = mixtures().for_batch(batch)
    assert len(weights) == 2
    assert numbers == [0, 1, 0]


def test_memory_is_bounded_and_the_least_recently_used_go_first() -> None:
    one = mixtures()
    one.for_batch(batch_from_atoms([water()], ["omol"]))
    store = mixtures(limit_bytes=3 * one.n_bytes)
    structures = [Atoms("H" * n + "O", np.arange(3 * n + 3).reshape(-1, 3)) for n in range(1, 8)]
    for atoms in structures:
        store.for_batch(batch_from_atoms([atoms], ["omol"]))
        store.for_batch(batch_from_atoms([structures[0]], ["omol"]))
        assert store.n_bytes <= 3 * one.n_bytes
    assert store.n_mixed == len(structures)
    tiny = mixtures(limit_bytes=1)
    tiny.for_batch(batch_from_atoms([water()], ["omol"]))
    assert tiny.n_kept == 1


def test_nothing_is_kept_where_merging_is_off() -> None:
    store = mixtures(keep=False)
    for _ in range(2):
        store.for_batch(batch_from_atoms([water()], ["omol"]))
    assert (store.n_mixed, store.n_kept) == (2, 0)


@pytest.mark.parametrize("architecture", ["uma-s-tiny", "esen-tiny"])
def test_float64_is_float64_in_merged_weights(architecture: str) -> None:
    weights, _ = mixtures(architecture).for_batch(batch_from_atoms([water()], ["omol"]))
    for layer in weights[0]:
        assert all(tensor.dtype == torch.float64 for tensor in layer.message.tensors())


def test_the_bits_of_a_mixture_do_not_depend_on_what_came_first() -> None:
    """Supercells share the mixture of their formula, whichever of them was seen first and in whatever order its atoms stand."""
    cells = [salt() * repeats for repeats in ((1, 1, 1), (3, 1, 1), (7, 1, 1))]
    found = [potential(task="omat", precision="float32", execution_mode="general") for _ in cells]
    for model, cell in zip(found, cells, strict=True):
        model.predict([cell[::-1]])
    one, *others = [model.predict([salt()]) for model in found]
    assert all(np.array_equal(one.forces, other.forces) and one.energy == other.energy for other in others)
