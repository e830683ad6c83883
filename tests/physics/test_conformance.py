"""What any interatomic potential has to obey, on every execution mode that exists and for two architectures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import molecule
from ase.md.velocitydistribution import thermalize_momenta
from ase.md.verlet import VelocityVerlet
from scipy.spatial.transform import Rotation

import edgewise
from edgewise.potential import Potential
from edgewise.results import StructureResult
from tests import tolerances
from tests.cases import copper_cube, potential, salt, slab, water

STEP = 1e-4
STENCIL = {-2: 1 / 12, -1: -8 / 12, 1: 8 / 12, 2: -1 / 12}
"""Central difference of fourth order: offsets in steps (Å, or strain) and their weights."""


def general(architecture: str, **settings: Any) -> Potential:
    """Return a model in mode general and float64."""
    return potential(architecture, execution_mode="general", **settings)


def fast(architecture: str, **settings: Any) -> Potential:
    """Return a model on the kernels of mode umas_fast_gpu, in float64, for which differences of energies are exact."""
    from edgewise.ops.fast import fast_ops

    return general(architecture, device="cuda", **settings).with_ops(fast_ops())


MODELS = [
    pytest.param((general, "uma-s-tiny"), id="general-uma-s-tiny"),
    pytest.param((general, "uma-m-tiny"), id="general-uma-m-tiny"),
    pytest.param((fast, "uma-s-tiny"), id="umas_fast_gpu-uma-s-tiny", marks=pytest.mark.gpu),
]


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Potential:
    make, architecture = request.param
    return make(architecture)


@pytest.fixture(params=MODELS)
def repeatable_model(request: pytest.FixtureRequest) -> Potential:
    """Return a model that gives the same bits every time; kernels that add in any order have to be told to."""
    make, architecture = request.param
    return make(architecture, deterministic=True) if make is fast else make(architecture)


def structures() -> list[tuple[Atoms, str]]:
    ethanol = molecule("CH3CH2OH")
    sheared = salt([(5.64, 0.2, 0), (0, 5.64, 0.1), (0.15, 0, 5.64)])
    return [(water(), "omol"), (ethanol, "omol"), (sheared, "omat"), (slab(), "omat")]


STRUCTURES = pytest.mark.parametrize(("atoms", "task"), structures(), ids=["water", "ethanol", "sheared-salt", "slab"])


def transformed(result: StructureResult, matrix: np.ndarray) -> StructureResult:
    """Return what the results of a structure become when the structure is turned."""
    return StructureResult(result.energy, result.forces @ matrix.T, matrix @ result.stress @ matrix.T)


@STRUCTURES
def test_rotation(model: Potential, atoms: Atoms, task: str) -> None:
    before = model.predict([atoms], task)[0]
    for matrix in Rotation.random(3, rng=5).as_matrix():
        turned = atoms.copy()
        turned.set_cell(atoms.cell[:] @ matrix.T)
        turned.positions = atoms.positions @ matrix.T
        tolerances.assert_close(model.predict([turned], task)[0], transformed(before, matrix), tolerances.T64)


def test_mirror_image_of_an_achiral_molecule(model: Potential) -> None:
    mirror = np.diag([1.0, -1.0, 1.0])
    mirrored = water()
    mirrored.positions = mirrored.positions @ mirror
    before = model.predict([water()], "omol")[0]
    after = model.predict([mirrored], "omol")[0]
    tolerances.assert_close(
        after, StructureResult(before.energy, before.forces @ mirror, before.stress), tolerances.T64
    )


@STRUCTURES
def test_translation_and_whole_cell_shifts(model: Potential, atoms: Atoms, task: str) -> None:
    before = model.predict([atoms], task)[0]
    moved = atoms.copy()
    moved.positions += [0.37, -1.21, 2.05]
    tolerances.assert_close(model.predict([moved], task)[0], before, tolerances.T64)
    shifted = atoms.copy()
    for axis in np.flatnonzero(atoms.pbc):
        shifted.positions[0] += 3 * atoms.cell[axis]
        shifted.positions[-1] -= 2 * atoms.cell[axis]
    tolerances.assert_close(model.predict([shifted], task)[0], before, tolerances.T64)


@STRUCTURES
def test_permutation(model: Potential, atoms: Atoms, task: str) -> None:
    order = np.random.default_rng(0).permutation(len(atoms))
    before = model.predict([atoms], task)[0]
    expected = StructureResult(before.energy, before.forces[order], before.stress)
    tolerances.assert_close(model.predict([atoms[order]], task)[0], expected, tolerances.T64)


@pytest.mark.parametrize("repeats", [(2, 1, 1), (1, 2, 2)])
def test_supercells_are_extensive(model: Potential, repeats: tuple[int, int, int]) -> None:
    atoms = salt()
    n = int(np.prod(repeats))
    before = model.predict([atoms], "omat")[0]
    expected = StructureResult(n * before.energy, np.tile(before.forces, (n, 1)), before.stress)
    tolerances.assert_close(model.predict([atoms.repeat(repeats)], "omat")[0], expected, tolerances.T64)


def test_batched_equals_single(model: Potential) -> None:
    listed = structures()
    results = model.predict([atoms for atoms, _ in listed], [task for _, task in listed])
    for result, (atoms, task) in zip(results, listed, strict=True):
        tolerances.assert_close(result, model.predict([atoms], task)[0], tolerances.T64)


@STRUCTURES
def test_forces_are_minus_the_gradient(model: Potential, atoms: Atoms, task: str) -> None:
    forces = model.predict([atoms], task)[0].forces
    displaced = []
    for atom, axis in np.ndindex(len(atoms), 3):
        for offset in STENCIL:
            item = atoms.copy()
            item.positions[atom, axis] += offset * STEP
            displaced.append(item)
    energy = model.predict(displaced, task).energy.reshape(len(atoms), 3, len(STENCIL))
    numerical = -energy @ list(STENCIL.values()) / STEP
    assert np.abs(numerical - forces).max() <= 1e-5 * max(1e-3, np.abs(forces).max())
    assert np.abs(forces.sum(axis=0)).max() <= 1e-10 * max(1.0, np.abs(forces).max())


@pytest.mark.parametrize("atoms", [structures()[2][0], slab()], ids=["sheared-salt", "slab"])
def test_stress_is_the_strain_derivative(model: Potential, atoms: Atoms) -> None:
    stress = model.predict([atoms], "omat")[0].stress
    numerical = np.zeros((3, 3))
    for a, b in np.ndindex(3, 3):
        strained = []
        for offset in STENCIL:
            strain = np.eye(3)
            strain[a, b] += offset * STEP / 2
            strain[b, a] += offset * STEP / 2
            item = atoms.copy()
            item.set_cell(atoms.cell[:] @ strain, scale_atoms=False)
            item.positions = atoms.positions @ strain
            strained.append(item)
        energy = model.predict(strained, "omat").energy
        numerical[a, b] = energy @ list(STENCIL.values()) / STEP / atoms.get_volume()
    np.testing.assert_array_equal(stress, stress.T)
    assert np.abs(numerical - stress).max() <= 1e-5 * max(1e-4, np.abs(stress).max())


def test_smooth_at_the_cutoff(model: Potential) -> None:
    """Energy and force go to those of separate atoms without a step, also in their first derivative."""
    cutoff = model.cutoff
    separations = cutoff + np.array([-1e-2, -1e-3, -1e-5, 1e-5, 1e-2])
    pairs = [Atoms("OH", [[0, 0, 0], [d, 0.0, 0.0]], info={"spin": 2}) for d in separations]
    results = model.predict(pairs, "omol")
    far = results.energy[-1]
    assert results.energy[3] == pytest.approx(far, abs=1e-10)
    # The envelope vanishes with the third power of the distance to the cutoff.
    assert abs(results.energy[2] - far) < 1e-10
    assert abs(results.energy[1] - far) < 1e-4 * max(1e-8, abs(results.energy[0] - far)) * 100
    assert np.abs(results[2].forces).max() < 1e-6
    assert np.abs(results[4].forces).max() == 0


def test_isolated_atoms(model: Potential) -> None:
    allowed = model.allowing(lone_atoms=True)
    lone = Atoms("O", [[0.3, 0.1, 0.2]], info={"spin": 3})
    moved = Atoms("O", [[100.0, -50.0, 3.0]], info={"spin": 3})
    results = allowed.predict([lone, moved], "omol")
    assert np.isfinite(results.energy).all()
    assert results.energy[0] == pytest.approx(results.energy[1], abs=1e-12)
    assert np.array_equal(results.forces, np.zeros((2, 3)))


@STRUCTURES
def test_inputs_are_not_changed(model: Potential, atoms: Atoms, task: str) -> None:
    atoms = atoms.copy()
    atoms.positions += 40.0
    before = atoms.copy()
    model.predict([atoms], task)
    assert atoms == before
    assert atoms.info == before.info
    assert set(atoms.arrays) == set(before.arrays)


@STRUCTURES
def test_the_same_input_gives_the_same_bits(repeatable_model: Potential, atoms: Atoms, task: str) -> None:
    first, second = (repeatable_model.predict([atoms], task)[0] for _ in range(2))
    assert first.energy == second.energy
    assert np.array_equal(first.forces, second.forces)
    assert np.array_equal(first.stress, second.stress, equal_nan=True)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"precision": "float64"}, id="float64"),
        pytest.param({"precision": "float32"}, id="float32"),
        pytest.param(
            {"execution_mode": "umas_fast_gpu", "precision": "float32", "device": "cuda"},
            id="umas_fast_gpu",
            marks=pytest.mark.gpu,
        ),
    ],
)
def test_energy_is_conserved(settings: dict[str, Any]) -> None:
    """The drift of 60 steps of 1 fs is small against the energy that moves between kinetic and potential."""
    atoms = copper_cube()
    atoms.rattle(0.02, seed=1)
    thermalize_momenta(atoms, temperature_K=300, rng=np.random.default_rng(2))
    atoms.calc = edgewise.Calculator(potential("uma-s-tiny", "omat", **settings))
    dynamics = VelocityVerlet(atoms, timestep=1.0 * units.fs)
    total, kinetic = [], []
    for _ in dynamics.irun(60):
        total.append(atoms.get_total_energy() / len(atoms))
        kinetic.append(atoms.get_kinetic_energy() / len(atoms))
    exchanged = np.ptp(kinetic)
    assert exchanged > 1e-3
    slope = np.polyfit(np.arange(len(total)), total, 1)[0] * len(total)
    assert abs(slope) < 0.02 * exchanged
    assert np.ptp(total) < 0.1 * exchanged
