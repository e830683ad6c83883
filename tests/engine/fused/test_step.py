"""The written-out step in float64 against autograd through the network (mode general), for every option of the family."""

from __future__ import annotations

import numpy as np
import pytest
from ase import Atoms

import edgewise
from edgewise.engine.fused.runner import FusedRunner
from edgewise.potential import Potential
from tests.cases import ARCHITECTURES, copper_cube, potential, salt, slab, water
from tests.model.test_options import SERVED, open_variant

pytestmark = pytest.mark.filterwarnings("ignore::edgewise.errors.EdgewiseWarning")

BOUND = 1e-10
"""Of the largest entry, at least 1e-3 eV/Å; for energies per atom."""


def written_out(general: Potential) -> Potential:
    """Return the same potential with its steps written out, in plain PyTorch."""
    made = general.allowing(charge_spin=True, lone_atoms=True)
    runner = general._runner
    made._runner = FusedRunner(runner.network, general._scales, general.settings, runner.device, runner.precision)
    return made


def assert_equal(found: edgewise.potential.Results, expected: edgewise.potential.Results) -> None:
    for one, other in zip(found, expected, strict=True):
        assert abs(one.energy - other.energy) <= BOUND * len(other.forces)
        assert np.abs(one.forces - other.forces).max() <= BOUND * max(1e-3, np.abs(other.forces).max())
        assert np.array_equal(np.isnan(one.stress), np.isnan(other.stress))
        scale = max(1e-3, float(np.nanmax(np.abs(other.stress), initial=0)))
        assert np.nanmax(np.abs(one.stress - other.stress), initial=0) <= BOUND * scale


def structures() -> list[Atoms]:
    """Molecules with charge and spin, crystals, a slab, an atom without neighbours; edges of 0 to 312."""
    ion = water()
    ion.info = {"charge": -1, "spin": 2}
    made = [ion, copper_cube(), Atoms("Na"), salt(), slab(), water()]
    for seed, atoms in enumerate(made):
        # Some of the small networks know elements up to 19 only.
        atoms.numbers = atoms.numbers % 19
        # Where symmetry makes l > 0 vanish, the norms of single degrees multiply rounding by 1e10.
        atoms.rattle(0.1, seed=seed)
    return made


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_mixed_batch_equals_general(architecture: str) -> None:
    general = potential(architecture).allowing(charge_spin=True, lone_atoms=True)
    found = written_out(general)
    for task in general.tasks:
        assert_equal(found.predict(structures(), task), general.predict(structures(), task))


@pytest.mark.parametrize("name", [name for name in SERVED if "s2" not in name])
def test_every_option_equals_general(name: str) -> None:
    general = open_variant(name)
    assert general.config.activation == "gate"
    tasks = [general.tasks[number % len(general.tasks)] for number in range(len(structures()))]
    assert_equal(written_out(general).predict(structures(), tasks), general.predict(structures(), tasks))


def test_prepared_weights_are_kept_as_long_as_their_mixtures() -> None:
    model = written_out(potential())
    runner = model._runner
    assert isinstance(runner, FusedRunner)
    for atoms in (water(), salt(), water(), salt()):
        model.predict([atoms], "omat")
    assert len(runner._kept) == runner.mixtures.n_kept == 2
    before = [made for _, made in runner._kept]
    model.predict([water()], "omat")
    assert [made for _, made in runner._kept] == before
