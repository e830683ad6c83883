"""Steps whose number of edges the host guesses: results never depend on a guess."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from ase import Atoms

from edgewise.engine.fused.kernel_runner import KernelRunner
from edgewise.engine.fused.system_steps import SystemSteps
from edgewise.potential import Potential
from tests import tolerances
from tests.cases import potential
from tests.engine.fused.test_kernel_runner import fused, same_bits

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.filterwarnings("ignore::edgewise.errors.EdgewiseWarning"),
]


def steps_of(model: Potential) -> SystemSteps:
    assert isinstance(model._runner, KernelRunner)
    return model._runner._steps


def helium(spacing: float, seed: int = 0) -> Atoms:
    """Return eight atoms in a box that does not depend on how far apart they are, so that all have the same search."""
    places = spacing * np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], dtype=float)
    atoms = Atoms("He8", places, cell=[40, 40, 40], pbc=True)
    atoms.rattle(0.05, seed=seed)
    return atoms


def guesses(steps: SystemSteps, monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Return a list that fills with the guesses of the calls to come."""
    made: list[int | None] = []
    guess = steps._guess

    def noted(*given: object) -> int | None:
        made.append(guess(*given))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(steps, "_guess", noted)
    return made


def assert_right(model: Potential, structures: Sequence[Atoms]) -> None:
    """Compare with a model that never guesses, to the bit, and with mode general."""
    for atoms in structures:
        found = model.predict(atoms, "omol")
        assert same_bits(found, fused(precision="float32").predict(atoms, "omol"))
        tolerances.assert_close(found[0], potential().predict(atoms, "omol")[0], tolerances.T32)


def test_two_steps_of_the_same_capacity_suggest_a_third(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fused(precision="float32")
    made = guesses(steps_of(model), monkeypatch)
    assert_right(model, [helium(1.2, seed) for seed in range(4)])
    assert made == [None, None, 64, 64]


@pytest.mark.parametrize("spacing", [30.0, 4.0], ids=["none", "fewer"])
def test_a_wrong_guess_is_made_good(spacing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more edges than there was room for, and with fewer."""
    for first, second in ((spacing, 1.2), (1.2, spacing)):
        model = fused(precision="float32")
        made = guesses(steps_of(model), monkeypatch)
        assert_right(model, [helium(first), helium(first, 1), helium(second), helium(first)])
        assert made[2] is not None
        assert made[3] is None, "after a change nothing is guessed"


def test_a_guess_while_neighbours_need_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fused(precision="float32")
    steps = steps_of(model)
    steps._room = 4
    made = guesses(steps, monkeypatch)
    assert_right(model, [helium(30.0), helium(30.0, 1), helium(1.2)])
    assert made == [None, None, 16, None]
    assert steps._room == 8
