"""The ASE calculator: conventions, caching, stress, copies, files, relaxations and constant pressure."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.calculator import PropertyNotImplementedError, get_calculator_class
from ase.filters import FrechetCellFilter
from ase.io.trajectory import Trajectory
from ase.md.nose_hoover_chain import MTKNPT
from ase.md.velocitydistribution import thermalize_momenta
from ase.optimize import BFGS

import edgewise
from edgewise.errors import EdgewiseError, InvalidSettingsError, UnknownTaskError
from tests.cases import golden_atoms, potential, salt, slab, water


class Counting(edgewise.Calculator):
    """Counts how often it computes."""

    n_calls = 0

    def calculate(self, *args: Any, **kwargs: Any) -> None:
        self.n_calls += 1
        super().calculate(*args, **kwargs)


def attach(atoms: Atoms, task: str) -> Counting:
    atoms.calc = Counting(potential(), task=task)
    return atoms.calc


def test_one_pass_fills_everything() -> None:
    atoms = salt()
    calculator = attach(atoms, "omat")
    forces = atoms.get_forces()
    energy, free = atoms.get_potential_energy(), atoms.get_potential_energy(force_consistent=True)
    stress = atoms.get_stress()
    assert calculator.n_calls == 1
    assert energy == free
    expected = potential().predict([salt()], "omat")[0]
    assert energy == expected.energy
    assert np.array_equal(forces, expected.forces)
    assert np.array_equal(stress, [expected.stress[i] for i in ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))])
    assert isinstance(energy, float)
    assert forces.dtype == stress.dtype == np.float64


def test_results_are_replaced_not_updated() -> None:
    atoms = salt()
    calculator = attach(atoms, "omat")
    atoms.get_stress()
    first = calculator.results
    atoms.set_cell(atoms.cell * 1.01, scale_atoms=True)
    atoms.get_forces()
    assert calculator.results is not first
    assert not np.allclose(calculator.results["stress"], first["stress"])


@pytest.mark.parametrize("change", ["positions", "numbers", "cell", "pbc", "charge", "spin"])
def test_every_change_that_matters_is_seen(change: str) -> None:
    atoms = salt() if change in {"cell", "pbc"} else water()
    calculator = attach(atoms, "omat" if change in {"cell", "pbc"} else "omol")
    before = atoms.get_potential_energy()
    if change == "positions":
        atoms.positions[0, 0] += 0.1
    elif change == "numbers":
        atoms.numbers[0] = 16
    elif change == "cell":
        atoms.set_cell(atoms.cell * 1.05)
    elif change == "pbc":
        atoms.pbc = (True, True, False)
    else:
        atoms.info[change] = 1 if change == "charge" else 3
    assert atoms.get_potential_energy() != before
    assert calculator.n_calls == 2


def test_other_info_is_neither_read_nor_written() -> None:
    atoms = water()
    atoms.info["unpicklable"] = {"nested": [np.arange(3)]}
    calculator = attach(atoms, "omol")
    atoms.get_potential_energy()
    atoms.info["note"] = "new"
    atoms.get_forces()
    assert calculator.n_calls == 1
    assert set(atoms.info) == {"unpicklable", "note"}


def test_stress_without_a_periodic_axis_is_refused() -> None:
    atoms = water()
    attach(atoms, "omol")
    with pytest.raises(PropertyNotImplementedError, match="no axis is periodic"):
        atoms.get_stress()
    assert np.isfinite(atoms.get_forces()).all()


def test_stress_of_a_slab_is_per_volume_of_the_given_cell() -> None:
    low, high = slab(9.0), slab(18.0)
    attach(low, "omat")
    attach(high, "omat")
    np.testing.assert_allclose(low.get_stress(), 2 * high.get_stress(), rtol=1e-9)


def test_direct_force_models_give_no_stress_and_no_hessian() -> None:
    model = potential("esen-direct-tiny")
    atoms = golden_atoms("mgo_omol")
    atoms.calc = edgewise.Calculator(model)
    assert np.isfinite(atoms.get_forces()).all()
    with pytest.raises(PropertyNotImplementedError, match="gives none"):
        atoms.get_stress()
    with pytest.raises(EdgewiseError, match="predicts forces directly"):
        model.hessian(atoms)


def test_task_is_checked_when_the_calculator_is_made() -> None:
    with pytest.raises(UnknownTaskError, match="oc20, oc22"):
        edgewise.Calculator(potential())
    with pytest.raises(UnknownTaskError, match="'nope'"):
        edgewise.Calculator(potential(), task="nope")
    assert edgewise.Calculator(potential(task="omat")).task == "omat"


def test_copies_and_pickles_compute_the_same() -> None:
    atoms = salt()
    attach(atoms, "omat")
    energy = atoms.get_potential_energy()
    for other in (copy.deepcopy(atoms.calc), pickle.loads(pickle.dumps(edgewise.Calculator(potential(), task="omat")))):
        fresh = salt()
        fresh.calc = other
        assert fresh.get_potential_energy() == energy


def test_files_keep_results_and_the_name(tmp_path: Path) -> None:
    atoms = salt()
    attach(atoms, "omat")
    energy = atoms.get_potential_energy()
    with Trajectory(tmp_path / "a.traj", "w", atoms) as trajectory:
        trajectory.write()
    read = ase.io.read(tmp_path / "a.traj")
    assert read.calc.name == "edgewise"
    assert read.get_potential_energy() == energy
    assert get_calculator_class("edgewise") is edgewise.Calculator


@pytest.mark.parametrize("given", [{"execution_mode": "umas_fast_gpu"}, {"tf32": True}, {"device": "cuda"}])
def test_settings_are_not_swallowed(given: dict[str, object]) -> None:
    with pytest.raises(InvalidSettingsError, match=f"{next(iter(given))} cannot be given to the calculator"):
        edgewise.Calculator(potential(task="omat"), **given)


def test_from_checkpoint() -> None:
    atoms = bulk("Cu")
    atoms.calc = edgewise.Calculator.from_checkpoint("emt-mini", task="emt")
    assert np.isfinite(atoms.get_stress()).all()


def test_relaxation_and_cell_relaxation_need_one_call_a_step() -> None:
    atoms = bulk("Cu", a=3.5, cubic=True)
    atoms.rattle(0.05, seed=1)
    atoms.calc = Counting(edgewise.load("emt-mini"))
    optimizer = BFGS(FrechetCellFilter(atoms), logfile=None)
    assert optimizer.run(fmax=0.02, steps=100)
    assert atoms.calc.n_calls <= optimizer.nsteps + 2
    assert atoms.get_volume() ** (1 / 3) == pytest.approx(3.59, abs=0.03)


def test_constant_pressure_sees_fresh_stress() -> None:
    atoms = bulk("Cu", cubic=True)
    thermalize_momenta(atoms, temperature_K=300, rng=np.random.default_rng(0))
    atoms.calc = Counting(edgewise.load("emt-mini"))
    dynamics = MTKNPT(
        atoms, timestep=1 * units.fs, temperature_K=300, pressure_au=0.0, tdamp=50 * units.fs, pdamp=200 * units.fs
    )
    stresses = [atoms.get_stress()[0] for _ in dynamics.irun(5)]
    assert len(set(stresses)) == len(stresses)


def test_calculate_without_atoms_says_so() -> None:
    with pytest.raises(EdgewiseError, match="no atoms"):
        edgewise.Calculator(potential(), task="omat").calculate()
