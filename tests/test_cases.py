"""The twelve cases from public bug reports, in every execution mode that exists and at each precision."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from scipy.spatial.transform import Rotation

import edgewise
from edgewise.errors import ChargeSpinTypeError, InvalidSettingsError, OutOfDomainError
from edgewise.potential import Potential
from edgewise.results import StructureResult
from tests import tolerances
from tests.cases import copper_cube, copper_primitive, potential, salt, slab, water
from tests.peak_memory import PeakMemory

PRECISIONS = {"float64": tolerances.T64, "float32": tolerances.T32}
CONFIGURATIONS = [
    pytest.param(("general", "float64"), id="general-float64"),
    pytest.param(("general", "float32"), id="general-float32"),
    pytest.param(("umas_fast_gpu", "float32"), id="umas_fast_gpu-float32", marks=pytest.mark.gpu),
]


class Engine:
    """One way to run, the tolerance that it has to meet, and the plainest path to compare with."""

    def __init__(self, mode: str, precision: str) -> None:
        self.is_general = mode == "general"
        self.settings: dict[str, Any] = {"execution_mode": mode, "precision": precision}
        if not self.is_general:
            self.settings["device"] = "cuda"
        self.tolerance = PRECISIONS[precision]

    def fresh(self, architecture: str = "uma-s-tiny", **settings: Any) -> Potential:
        return potential(architecture, **{**self.settings, **settings})

    def repeatable(self) -> Potential:
        """Return an engine that gives the same bits every time; kernels that add in any order have to be told to."""
        return self.fresh() if self.is_general else self.fresh(deterministic=True)


@pytest.fixture(params=CONFIGURATIONS)
def engine(request: pytest.FixtureRequest) -> Engine:
    return Engine(*request.param)


def reference(architecture: str = "uma-s-tiny") -> Potential:
    """Return REF: experts not merged, double precision, CPU."""
    return potential(architecture, execution_mode="general", merge_mole=False)


def reference_offset(atoms: Atoms, task: str, architecture: str = "uma-s-tiny") -> float:
    """Return the element references of a structure, which are taken off before energies are judged."""
    table = reference(architecture)._scales[task].references
    assert table is not None
    return float(table[atoms.numbers].sum())


def check(engine: Engine, given: StructureResult, expected: StructureResult, atoms: Atoms, task: str) -> None:
    tolerances.assert_close(given, expected, engine.tolerance, energy_offset=reference_offset(atoms, task))


def oxygen(distance: float, spin: int = 3) -> Atoms:
    return Atoms("O2", [[0, 0, 0], [distance, 0, 0]], info={"spin": spin})


def methane() -> Atoms:
    a = 0.6291
    return Atoms("CH4", [[0, 0, 0], [a, a, a], [-a, -a, a], [a, -a, -a], [-a, a, -a]])


class TestG1IsolatedAtoms:
    @pytest.mark.parametrize("warm", [False, True], ids=["first-call", "after-water"])
    def test_lone_atoms(self, engine: Engine, warm: bool) -> None:
        model = engine.fresh()
        if warm:
            model.predict([water()], "omol")
        for atoms in (Atoms("H", info={"spin": 2}), Atoms("Na", info={"charge": 1, "spin": 1})):
            moved = atoms.copy()
            moved.positions += [100, -50, 3]
            result = model.predict([atoms], "omol")[0]
            assert np.isfinite(result.energy)
            assert np.array_equal(result.forces, np.zeros((1, 3)))
            assert model.predict([moved], "omol")[0].energy == result.energy
            check(engine, result, reference().predict([atoms], "omol")[0], atoms, "omol")

    def test_far_pairs_agree_and_a_near_pair_does_not(self, engine: Engine) -> None:
        model = engine.fresh()
        # One by one: in a batch, the rounding of a row in a matrix product can depend on where the row stands.
        far = [model.predict([oxygen(d)], "omol")[0] for d in (6.5, 10.0, 50.0)]
        assert np.ptp([item.energy for item in far]) <= 1e-9
        assert all(np.array_equal(item.forces, np.zeros((2, 3))) for item in far)
        near = model.predict([oxygen(5.5)], "omol")[0]
        assert np.abs(near.forces).max() > 0
        assert near.energy != far[0].energy

    def test_unsupported_lone_atoms_are_refused_with_a_way_out(self, engine: Engine) -> None:
        model = engine.fresh("esen-tiny")
        with pytest.raises(OutOfDomainError, match="lone_atoms=True"):
            model.predict([Atoms("H", info={"spin": 2})], "omol")
        assert np.isfinite(model.allowing(lone_atoms=True).predict([Atoms("H")], "omol").energy).all()
        inside = water() + Atoms("Ar", [[30.0, 0, 0]])
        assert np.array_equal(model.predict([inside], "omol")[0].forces[3], np.zeros(3))


class TestG3OwnImages:
    CELLS = (copper_primitive(), copper_cube(), copper_primitive().repeat(2), copper_cube().repeat(2))

    def test_energy_per_atom_is_the_same_in_any_order(self, engine: Engine) -> None:
        model = engine.fresh()
        for atoms in (*self.CELLS, *reversed(self.CELLS)):
            result = model.predict([atoms], "omat")[0]
            alone = engine.fresh().predict([atoms], "omat")[0]
            expected = reference().predict([self.CELLS[0]], "omat")[0]
            n = len(atoms)
            scaled = StructureResult(n * expected.energy, np.zeros((n, 3)), expected.stress)
            check(engine, result, scaled, atoms, "omat")
            check(engine, result, alone, atoms, "omat")

    def test_one_batch(self, engine: Engine) -> None:
        results = engine.fresh().predict(list(self.CELLS), "omat")
        per_atom = results.energy / results.n_atoms
        assert np.ptp(per_atom) <= 1e-6

    def test_size_counts_for_uma_s_1p2(self, engine: Engine) -> None:
        model = engine.fresh("uma-s-1p2-tiny")
        energies = []
        for atoms in (*self.CELLS, *reversed(self.CELLS)):
            result = model.predict([atoms], "omat")[0]
            expected = reference("uma-s-1p2-tiny").predict([atoms], "omat")[0]
            offset = reference_offset(atoms, "omat", "uma-s-1p2-tiny")
            tolerances.assert_close(result, expected, engine.tolerance, energy_offset=offset)
            energies.append(result.energy / len(atoms))
        assert np.ptp(energies) > 1e-5


class TestG4MoleculeWithACell:
    @staticmethod
    def variants() -> list[Atoms]:
        cells = [np.eye(3), 3 * np.eye(3), np.diag([3.0, 3.0, -3.0]), np.diag([3.0, 0.0, 3.0]), 3 * np.eye(3)]
        variants = [water() for _ in cells]
        for atoms, cell in zip(variants, cells, strict=True):
            atoms.set_cell(cell)
        variants[-1].positions += [50, -20, 7]
        return variants

    def test_the_cell_does_not_count(self, engine: Engine) -> None:
        model = engine.fresh()
        plain = model.predict([water()], "omol")[0]
        for atoms in self.variants():
            tolerances.assert_close(model.predict([atoms], "omol")[0], plain, engine.tolerance)
        for result in model.predict([water(), *self.variants()], "omol"):
            tolerances.assert_close(result, plain, engine.tolerance)


def carbon_dioxide(offset: float = 0.0) -> Atoms:
    return Atoms("CO2", [[offset, 0, 0], [0, 1.16, 0], [0, -1.16, 0]])


class TestG5BondsAlongAxes:
    def test_symmetry_of_forces(self, engine: Engine) -> None:
        model = engine.fresh()
        forces = model.predict([water()], "omol")[0].forces
        assert np.abs(forces[:, 0]).max() <= 1e-4 * np.abs(forces).max()
        forces = model.predict([carbon_dioxide()], "omol")[0].forces
        assert np.abs(forces[:, [0, 2]]).max() <= 1e-4 * np.abs(forces).max()

    @pytest.mark.parametrize("maker", [water, carbon_dioxide], ids=["water", "co2"])
    def test_orientations(self, engine: Engine, maker: Any) -> None:
        model = engine.fresh()
        plain = model.predict([maker()], "omol")[0]
        axes = [np.roll(np.diag(signs), shift, axis=0) for shift in range(3) for signs in ((1, 1, 1), (-1, -1, 1))]
        for matrix in [*Rotation.random(20, rng=7).as_matrix(), *axes]:
            turned = maker()
            turned.positions = turned.positions @ matrix.T
            expected = StructureResult(plain.energy, plain.forces @ matrix.T, plain.stress)
            check(engine, model.predict([turned], "omol")[0], expected, turned, "omol")

    def test_no_jump_near_an_axis(self, engine: Engine) -> None:
        offsets = np.array([0.0, 1e-7, 1e-5, 1e-3])
        results = engine.fresh().predict([carbon_dioxide(offset) for offset in offsets], "omol")
        exact = reference().predict([carbon_dioxide(offset) for offset in offsets], "omol")
        for given, expected, offset in zip(results, exact, offsets, strict=True):
            check(engine, given, expected, carbon_dioxide(offset), "omol")
        assert np.ptp(exact.energy[:3]) < 1e-7

    def test_hessian_is_finite(self, engine: Engine) -> None:
        assert np.isfinite(engine.fresh().hessian(water(), "omol")).all()


class TestG6ChangingComposition:
    def test_every_call_equals_a_fresh_engine(self, engine: Engine) -> None:
        twice = water() + Atoms("OHH", water().positions + np.array([3, 0, 0]))
        boxed = methane()
        boxed.set_cell(12 * np.eye(3))
        boxed.pbc = True
        model = engine.fresh()
        order = [water(), methane(), water(), twice, water(), methane(), *[water()] * 50]
        for atoms in order:
            result = model.predict([atoms], "omol")[0]
        for atoms in order[:7]:
            result = model.predict([atoms], "omol")[0]
            check(engine, result, engine.fresh().predict([atoms], "omol")[0], atoms, "omol")
        check(engine, model.predict([boxed], "omat")[0], engine.fresh().predict([boxed], "omat")[0], boxed, "omat")
        # Water and two waters share a mixture; methane has one, and one more under the other task.
        assert model._runner.mixtures.n_mixed == 3

    def test_results_do_not_depend_on_what_was_merged_before(self, engine: Engine) -> None:
        merged, unmerged = engine.fresh(), engine.fresh(merge_mole=False)
        for atoms in (water(), methane(), water()):
            check(engine, merged.predict([atoms], "omol")[0], unmerged.predict([atoms], "omol")[0], atoms, "omol")
        assert merged._runner.mixtures.n_mixed == 2
        assert unmerged._runner.mixtures.n_mixed == 3


class TestG7ChargeAndSpinEdited:
    @staticmethod
    def hydroxyl() -> Atoms:
        return Atoms("OH", [[0, 0, 0], [0, 0, 0.97]], info={"charge": 0, "spin": 2})

    def test_edits_of_info_are_seen(self, engine: Engine) -> None:
        atoms = self.hydroxyl()
        atoms.calc = edgewise.Calculator(engine.repeatable(), task="omol")
        first = atoms.get_potential_energy()
        atoms.info.update(charge=-1, spin=1)
        second = atoms.get_potential_energy()
        fresh = atoms.copy()
        fresh.calc = edgewise.Calculator(engine.repeatable(), task="omol")
        assert second == fresh.get_potential_energy()
        atoms.info.update(charge=0, spin=2)
        assert atoms.get_potential_energy() == first
        assert abs(second - first) > 1e-4

    def test_numpy_integers_pass_and_other_types_do_not(self, engine: Engine) -> None:
        atoms = self.hydroxyl()
        atoms.calc = edgewise.Calculator(engine.repeatable(), task="omol")
        expected = atoms.get_potential_energy()
        atoms.info.update(charge=np.int64(0), spin=np.int32(2))
        assert atoms.get_potential_energy() == expected
        for info in ({"charge": 0.5}, {"spin": "1"}):
            atoms.info.update(charge=0, spin=2)
            atoms.info.update(info)
            with pytest.raises(ChargeSpinTypeError, match="whole number"):
                atoms.get_potential_energy()

    def test_other_entries_of_info_cost_nothing(self, engine: Engine) -> None:
        atoms = self.hydroxyl()
        atoms.calc = CountingCalculator(engine.fresh(), task="omol")
        atoms.get_potential_energy()
        atoms.info.update(name="hydroxyl", array=np.arange(3), nested={"a": [1]})
        atoms.get_forces()
        assert atoms.calc.n_calls == 1


class CountingCalculator(edgewise.Calculator):
    """Counts how often it computes."""

    n_calls = 0

    def calculate(self, *args: Any, **kwargs: Any) -> None:
        self.n_calls += 1
        super().calculate(*args, **kwargs)


class TestG8MixedBatch:
    STRUCTURES = (Atoms("H", info={}), water(), copper_primitive(), salt(), slab())

    @pytest.mark.parametrize("tasks", [["omat"] * 5, ["omol", "omol", "omat", "omat", "omat"]], ids=["one", "two"])
    @pytest.mark.parametrize("merge", [True, False], ids=["merged", "unmerged"])
    def test_each_equals_its_own_call(self, engine: Engine, tasks: list[str], merge: bool) -> None:
        model = engine.fresh(merge_mole=merge)
        order = [3, 0, 4, 1, 2, 3]
        results = model.predict([self.STRUCTURES[i] for i in order], [tasks[i] for i in order])
        for i, result in zip(order, results, strict=True):
            alone = engine.fresh().predict([self.STRUCTURES[i]], tasks[i])[0]
            check(engine, result, alone, self.STRUCTURES[i], tasks[i])
            check(engine, result, reference().predict([self.STRUCTURES[i]], tasks[i])[0], self.STRUCTURES[i], tasks[i])

    def test_empty_list(self, engine: Engine) -> None:
        results = engine.fresh().predict([], "omat")
        assert len(results) == 0
        assert results.forces.shape == (0, 3)
        assert results.stress.shape == (0, 3, 3)


class TestG9Derivatives:
    """Finite differences in double precision live in the physics tests; here every precision against double."""

    @pytest.mark.parametrize("task", ["omat", "oc20"], ids=["stress-trained", "stress-untrained"])
    def test_forces_and_stress(self, engine: Engine, task: str) -> None:
        sheared = salt([(5.64, 0.2, 0), (0, 5.64, 0.1), (0.15, 0, 5.64)])
        result = engine.repeatable().predict([sheared], task)[0]
        check(engine, result, reference().predict([sheared], task)[0], sheared, task)
        assert np.array_equal(result.stress, result.stress.T)
        sheared.calc = edgewise.Calculator(engine.repeatable(), task=task)
        voigt = sheared.get_stress()
        assert np.array_equal(voigt, result.stress[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]])


class TestG10OptionsAgainstThePlainPath:
    STRUCTURES = ((water(), "omol"), (salt(), "omat"), (slab(), "omat"))

    @pytest.mark.parametrize("chunk", [None, 50])
    @pytest.mark.parametrize("checkpointing", [False, True])
    @pytest.mark.parametrize("merge", [False, True])
    @pytest.mark.parametrize(
        "outer", [None, torch.no_grad, torch.inference_mode], ids=["plain", "no_grad", "inference"]
    )
    def test_combinations(
        self, engine: Engine, chunk: int | None, checkpointing: bool, merge: bool, outer: Any
    ) -> None:
        settings = {"edge_chunk_size": chunk, "activation_checkpointing": checkpointing, "merge_mole": merge}
        if checkpointing and not engine.is_general:
            with pytest.raises(InvalidSettingsError, match="activation_checkpointing=False"):
                engine.fresh(**settings)
            return
        for atoms, task in self.STRUCTURES:
            if outer is None:
                result = engine.fresh(**settings).predict([atoms], task)[0]
            else:
                with outer():
                    result = engine.fresh(**settings).predict([atoms], task)[0]
            assert np.abs(result.forces).max() > 0
            check(engine, result, reference().predict([atoms], task)[0], atoms, task)

    def test_tf32_flags_are_restored(self) -> None:
        before = torch.backends.cuda.matmul.fp32_precision, torch.get_float32_matmul_precision()
        with pytest.warns(edgewise.errors.EdgewiseWarning, match="TF32 exists on CUDA devices only"):
            model = potential(precision=None, base_precision_dtype="float32", tf32=True)
        model.predict([water()], "omol")
        assert (torch.backends.cuda.matmul.fp32_precision, torch.get_float32_matmul_precision()) == before

    def test_float32_is_float32_whatever_the_program_allows(self) -> None:
        expected = potential(precision="float32").predict([salt()], "omat")[0]
        torch.set_float32_matmul_precision("medium")
        try:
            result = potential(precision="float32").predict([salt()], "omat")[0]
            assert torch.get_float32_matmul_precision() == "medium"
        finally:
            torch.set_float32_matmul_precision("highest")
        assert np.array_equal(result.forces, expected.forces)


class TestG11Hessian:
    @pytest.mark.parametrize("vectorised", [True, False], ids=["vmap", "loop"])
    @pytest.mark.parametrize(("atoms", "task"), [(water(), "omol"), (salt(), "omat")], ids=["water", "salt"])
    def test_against_differences_of_forces(self, engine: Engine, atoms: Atoms, task: str, vectorised: bool) -> None:
        hessian = engine.fresh(hessian_vmap=vectorised).hessian(atoms, task)
        step, plain = 1e-4, reference()
        displaced = []
        for i in range(3 * len(atoms)):
            for sign in (1, -1):
                item = atoms.copy()
                item.positions.flat[i] += sign * step
                displaced.append(item)
        forces = plain.predict(displaced, task).forces.reshape(3 * len(atoms), 2, -1)
        numerical = -(forces[:, 0] - forces[:, 1]) / (2 * step)
        largest = np.abs(numerical).max()
        bound = 1e-5 if engine.tolerance is tolerances.T64 else 1e-3
        assert np.abs(hessian - numerical).max() <= bound * largest
        assert np.abs(hessian - hessian.T).max() <= (1e-10 if engine.tolerance is tolerances.T64 else 1e-4) * largest
        block_rows = hessian.reshape(len(atoms), 3, len(atoms), 3).sum(axis=2)
        assert np.abs(block_rows).max() <= (1e-10 if engine.tolerance is tolerances.T64 else 1e-4) * largest

    @pytest.mark.parametrize("vectorised", [True, False], ids=["vmap", "loop"])
    def test_isolated_atoms_have_none(self, engine: Engine, vectorised: bool) -> None:
        model = engine.fresh(hessian_vmap=vectorised)
        assert np.array_equal(model.hessian(Atoms("H", info={"spin": 2}), "omol"), np.zeros((3, 3)))
        assert np.array_equal(model.hessian(oxygen(10.0), "omol"), np.zeros((6, 6)))

    def test_the_loop_uses_less_memory(self, engine: Engine) -> None:
        def peak(n_atoms: int, *, vectorised: bool) -> int:
            chain = Atoms("N" * n_atoms, [[2.6 * i, 0.3 * (-1) ** i, 0] for i in range(n_atoms)])
            model = engine.fresh(hessian_vmap=vectorised)
            model.predict([chain], "omat")
            with PeakMemory() as memory:
                model.hessian(chain, "omat")
            return memory.peak

        small, large = peak(8, vectorised=False), peak(24, vectorised=False)
        # Three times the atoms of a chain have about three times the edges, and one row is kept at a time.
        assert large < 4 * small
        assert peak(24, vectorised=True) > 5 * large

    def test_chunked_and_checkpointed_engines_give_the_same(self, engine: Engine) -> None:
        plain = engine.fresh().hessian(water(), "omol")
        given = engine.fresh(edge_chunk_size=2, activation_checkpointing=engine.is_general).hessian(water(), "omol")
        assert np.abs(given - plain).max() <= 1e-5 * np.abs(plain).max()


class TestG12ChangingEdgeCounts:
    @staticmethod
    def frame(k: int) -> Atoms:
        atoms = salt([5.20 + 0.04 * k] * 3)
        atoms.set_scaled_positions(salt_sites())
        i = np.arange(8)
        phases = [np.sin(1 + 3 * i + k), np.sin(2 + 3 * i + 2 * k), np.sin(3 + 3 * i + 3 * k)]
        atoms.positions += 0.15 * np.stack(phases, axis=1)
        return atoms

    def test_frames(self, engine: Engine) -> None:
        frames = [self.frame(k) for k in range(31)]
        sequence = [*frames, frames[0].repeat(2), frames[0]]
        model = engine.fresh()
        exact = reference().predict(sequence, "omat")
        for atoms, expected in zip(sequence, exact, strict=True):
            check(engine, model.predict([atoms], "omat")[0], expected, atoms, "omat")
        for n in (1, 2, 3):
            for result, expected, atoms in zip(model.predict(frames[:n], "omat"), exact, frames, strict=False):
                check(engine, result, expected, atoms, "omat")
        assert model._runner.mixtures.n_mixed == 1


def salt_sites() -> np.ndarray:
    return np.array(
        [(0, 0, 0), (0.5, 0, 0), (0, 0.5, 0.5), (0.5, 0.5, 0.5), (0.5, 0, 0.5), (0, 0, 0.5), (0.5, 0.5, 0), (0, 0.5, 0)]
    )


def test_neighbour_cap_is_visible_when_it_binds() -> None:
    """A cap that cuts neighbours warns and shows in the description; one that does not stays silent."""
    model = potential()
    squeezed = bulk("Cu", a=2.0, cubic=True)
    with pytest.warns(edgewise.errors.EdgewiseWarning, match="neighbour"):
        model.predict([squeezed], "omat")
    assert "the cap cut the neighbours of 4 atoms" in str(model.describe())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict([copper_cube()], "omat")
    assert "cap cut" not in str(model.describe())


def test_potentials_can_be_copied() -> None:
    model = potential()
    assert copy.deepcopy(model) is model
