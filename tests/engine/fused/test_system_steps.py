"""Steps whose number of edges the host guesses: results never depend on a guess."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from torch import Tensor

from edgewise.engine.fused.kernel_runner import KernelRunner
from edgewise.engine.fused.system_steps import SystemSteps
from edgewise.neighbors import build_edges
from edgewise.ops.fused.neighbor_list import fill_edges
from edgewise.potential import Potential
from edgewise.systems import batch_from_atoms
from tests import tolerances
from tests.cases import potential
from tests.engine.fused.test_kernel_runner import fused, same_bits
from tests.ops.kernel_problems import DEVICE

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.filterwarnings("ignore::edgewise.errors.EdgewiseWarning"),
]

APART, NEAR = 30.0, 1.2
"""Spacings, Å, at which nobody and everybody has neighbours."""


def helium(spacing: float, seed: int = 0) -> Atoms:
    """Return eight atoms in a box that does not depend on how far apart they are, so that all have the same search."""
    places = spacing * np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], dtype=float)
    atoms = Atoms("He8", places, cell=[60, 60, 60], pbc=True)
    atoms.rattle(0.05, seed=seed)
    return atoms


def steps_of(model: Potential) -> SystemSteps:
    assert isinstance(model._runner, KernelRunner)
    return model._runner._steps


def guesses(steps: SystemSteps, monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Return a list that fills with the guesses of the calls to come."""
    made: list[int | None] = []
    guess = steps._guess

    def noted(*given: Any) -> int | None:
        made.append(guess(*given))
        return made[-1]

    monkeypatch.setattr(steps, "_guess", noted)
    return made


def of_edges(steps: SystemSteps, atoms: Any, search: Any, capacity: int, *others: object) -> Tensor:
    """Stand in for the work of a step: count the edges that there is room for, and add up their vectors."""
    del steps, others
    found = fill_edges(atoms.search, search.latest, capacity)
    # Without asking the device for anything, since this may be recorded.
    live = torch.arange(capacity, device=DEVICE) < found.n_live
    total = torch.where(live[:, None], found.edge_vec, 0.0).abs().sum()
    values = total.expand(atoms.values.shape).clone()
    values[0] = found.target_starts[-1]
    atoms.values.copy_(values, non_blocking=True)
    return values


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> SystemSteps:
    """Return steps whose work is that of `of_edges`."""
    found = steps_of(fused(precision="float32"))
    monkeypatch.setattr(found, "_work", partial(of_edges, found))
    return found


def assert_right(steps: SystemSteps, structures: Sequence[Atoms], weights: Any) -> None:
    """Compare with the list of the CPU."""
    for atoms in structures:
        batch = batch_from_atoms([atoms], ["omol"])
        begun = steps.begin(batch, weights)
        assert begun is not None
        found = steps.finish(begun)
        expected = build_edges(batch, steps._network.config.cutoff)
        assert found is not None
        assert found.n_edges == found.energy.item() == expected.edge_index.shape[1]
        total = torch.tensor(float(expected.edge_vec.abs().sum()), dtype=torch.float64)
        torch.testing.assert_close(found.forces, total.expand_as(found.forces))


def test_two_steps_of_the_same_capacity_suggest_a_third(steps: SystemSteps, monkeypatch: pytest.MonkeyPatch) -> None:
    made, weights = guesses(steps, monkeypatch), object()
    assert_right(steps, [helium(NEAR, seed) for seed in range(4)], weights)
    assert made == [None, None, 64, 64]
    assert_right(steps, [helium(NEAR)], object())
    assert made[4] is None, "other weights"


@pytest.mark.parametrize(("first", "second"), [(APART, NEAR), (NEAR, APART)], ids=["too little", "too much"])
def test_a_wrong_guess_is_made_good(
    first: float, second: float, steps: SystemSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = guesses(steps, monkeypatch)
    assert_right(steps, [helium(first), helium(first, 1), helium(second), helium(first)], object())
    room = {APART: 16, NEAR: 64}
    assert made == [None, None, room[first], None], "after a change nothing is guessed"


def test_a_guess_while_neighbours_need_more_room(steps: SystemSteps, monkeypatch: pytest.MonkeyPatch) -> None:
    steps._room = 4
    made = guesses(steps, monkeypatch)
    assert_right(steps, [helium(APART), helium(APART, 1), helium(NEAR)], object())
    assert made == [None, None, 16, None]
    assert steps._room == 8


@pytest.mark.gpu
def test_bits_do_not_depend_on_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole steps: too little room, too much of it, and neighbours that need more of their own."""
    model, exact = fused(precision="float32"), potential()
    steps = steps_of(model)
    steps._room = 4
    made = guesses(steps, monkeypatch)
    for spacing in (APART, APART, APART, NEAR, NEAR, NEAR, APART, NEAR, NEAR, NEAR):
        atoms = helium(spacing, len(made))
        found = model.predict(atoms, "omol")
        assert same_bits(found, fused(precision="float32").predict(atoms, "omol"))
        tolerances.assert_close(found[0], exact.predict(atoms, "omol")[0], tolerances.T32)
    assert {16, 64, None} == set(made)
