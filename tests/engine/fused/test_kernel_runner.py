"""Mode fused as users meet it: choice, precision, retry, repeatability, and captured steps that serve changing systems."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk

import edgewise
from edgewise import errors
from edgewise.engine.fused.capacity import capacity_of
from edgewise.engine.fused.kernel_runner import KernelRunner
from edgewise.engine.plan import make_plan
from edgewise.ops.fused import radial_hidden
from edgewise.potential import Potential
from edgewise.results import Results, joined_results, not_finite
from tests import tolerances
from tests.cases import ARCHITECTURES, copper_primitive, golden_checkpoint, potential, water
from tests.model.test_options import checkpoint as option
from tests.ops.kernel_problems import DEVICE

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.filterwarnings("ignore::edgewise.errors.EdgewiseWarning"),
    # What the interpreter says of infinities, which some tests make on purpose.
    pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning"),
]

ON_A_GPU = DEVICE == "cuda"


def fused(architecture: str = "uma-s-tiny", **settings: Any) -> Potential:
    return potential(architecture, device=DEVICE, **{"execution_mode": "fused", "precision": None, **settings})


def overflowing(factor: float) -> edgewise.weights.Checkpoint:
    """Return a model whose values before the gate are larger by a factor, in a channel that the gate closes little."""
    checkpoint = golden_checkpoint("uma-s-tiny")
    name = next(name for name in checkpoint.weights if "so2_conv_1" in name and "fc_m0" in name and "weight" in name)
    return replace(checkpoint, weights={**checkpoint.weights, name: checkpoint.weights[name] * factor})


def same_bits(one: Results, other: Results) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True)
        for name in ("energy", "forces", "stress")
    )


def test_capacities_depend_on_the_number_of_edges_alone() -> None:
    numbers = [*range(2000), *(2**power + extra for power in range(11, 30) for extra in (-1, 0, 1, 17))]
    for n_edges in numbers:
        room = capacity_of(n_edges) - n_edges
        assert room >= 0
        assert room <= 16 or room <= 0.03 * n_edges
    assert capacity_of(0) == 16
    assert capacity_of(77_940) == 78_848


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_by_name(architecture: str) -> None:
    model = fused(architecture)
    assert isinstance(model._runner, KernelRunner)
    assert model.describe().mode == "fused"
    assert model.describe().precision == "fast"
    task = model.tasks[0]
    found = model.predict([water()], task)
    tolerances.assert_close(found[0], potential(architecture).predict([water()], task)[0], tolerances.FAST)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"edge_chunk_size": 5}, "edge_chunk_size=5 is given"),
        ({"compile": True}, "compile=True is given"),
        ({"merge_mole": False}, "merge_mole=False is given"),
    ],
)
@pytest.mark.parametrize("asked", [{"execution_mode": "fused"}, {"execution_mode": None, "precision": "fast"}])
def test_what_it_does_not_serve_is_refused(settings: dict[str, Any], words: str, asked: dict[str, Any]) -> None:
    with pytest.raises(errors.ModeUnavailableError, match=words):
        fused(**asked, **settings)


def test_precision_fast_asks_for_the_mode() -> None:
    assert fused(execution_mode=None, precision="fast").describe().mode == "fused"


def test_s2_activation_is_refused() -> None:
    name = "esen-s2-tiny"
    checkpoint = golden_checkpoint("esen-tiny")
    config = {**checkpoint.model_config, "backbone": {**checkpoint.model_config["backbone"], "act_type": "s2"}}
    settings = edgewise.InferenceSettings(execution_mode="fused")
    with pytest.raises(errors.ModeUnavailableError, match="gate activation"):
        Potential(replace(checkpoint, name=name, model_config=config), device=DEVICE, settings=settings)


def test_what_the_caller_has_set_does_not_matter() -> None:
    """While weights are mixed, steps are recorded, and recordings are played."""
    expected, model = fused().predict(water(), "omol"), fused()
    with torch.autocast(DEVICE, dtype=torch.bfloat16), torch.inference_mode():
        assert all(same_bits(model.predict(water(), "omol"), expected) for _ in range(2))
    charged = water()
    charged.info["charge"] = 1
    expected = fused().predict(charged, "omol")
    with torch.autocast(DEVICE, dtype=torch.bfloat16), torch.inference_mode():
        assert same_bits(model.predict(charged, "omol"), expected), "the embedding of a charge is made anew"


def test_overflow_is_done_again_in_float32() -> None:
    """Values beyond 65504 do not exist in float16: the results are those of float32, and `describe()` says so."""
    checkpoint = overflowing(3e5)
    model = Potential(checkpoint, device=DEVICE, settings=edgewise.InferenceSettings(execution_mode="fused"))
    exact = Potential(checkpoint, settings=edgewise.InferenceSettings(precision="float64"))
    alone = model._runner.run(_batch(model, [water()]))
    assert not np.isfinite(alone.energy.cpu().numpy()).all(), "the test has to overflow"
    found = model.predict([water()], "omol")
    tolerances.assert_close(found[0], exact.predict([water()], "omol")[0], tolerances.T32)
    assert any("1 batch was done again in float32" in note for note in model.describe().notes)


def test_what_float32_cannot_hold_names_the_structure() -> None:
    checkpoint = overflowing(1e38)
    model = Potential(checkpoint, device=DEVICE, settings=edgewise.InferenceSettings(execution_mode="fused"))
    with pytest.raises(errors.NonFiniteResultError, match="structure 0"):
        model.predict([water(), Atoms("He")], "omol")


def _batch(model: Potential, structures: list[Atoms]) -> edgewise.systems.SystemBatch:
    return model._checked_batch(structures, ["omol"] * len(structures))


def test_tf32_has_the_range_of_float32() -> None:
    """So there is nothing to be done again."""
    model = fused(precision="float32")
    runner = model._runner
    given = runner.network, model._scales, model.settings, runner.device, "tf32"
    assert KernelRunner(*given).redo(_batch(model, [water()])) is None  # type: ignore[arg-type]


def test_stress_that_is_not_finite_is_noticed() -> None:
    """Energies and forces alone do not tell."""
    model, atoms = fused(), copper_primitive()
    batch = _batch(model, [atoms])
    outputs = model._runner.run(batch)
    good = joined_results([outputs], batch)
    assert not not_finite(good, batch, with_stress=True)
    outputs.stress[0, 0, 0] = torch.nan
    assert not_finite(joined_results([outputs], batch), batch, with_stress=True) == [0]


def test_nothing_is_left_of_atoms_that_were_forgotten() -> None:
    """A search reads the tensors of its atoms: others of the same sizes need a search of their own."""
    model = fused(precision="float32")
    runner = model._runner
    assert isinstance(runner, KernelRunner)
    # In a box, so that both are searched with the same bins; the second has edges that the first has not.
    one, other = (Atoms(water(), cell=[25, 25, 25], pbc=True) for _ in range(2))
    one.positions[1] += 7.0
    model.predict([one], "omol")
    runner._steps._atoms.clear()
    found, expected = model.predict([other], "omol")[0], potential().predict([other], "omol")[0]
    tolerances.assert_close(found, expected, tolerances.T32)


@pytest.mark.parametrize("name", ["moe_type_all", "neighbors_10"])
def test_options_in_batches_of_several_mixtures(name: str) -> None:
    """Experts in every network, each with its own runs of edges, and a cap that binds."""
    found, exact = (
        Potential(option(name), device=device, settings=edgewise.InferenceSettings(**settings))
        for device, settings in (
            (DEVICE, {"execution_mode": "fused", "precision": "float32"}),
            ("cpu", {"precision": "float64"}),
        )
    )
    crystal = copper_primitive()
    crystal.symbols[:] = "Ar"
    structures = [water(), Atoms("N2", [[0, 0, 0], [0, 0.1, 1.1]]), crystal]
    count = 3 if name == "neighbors_10" else 2
    task = exact.tasks[0]
    for batch in (structures[:count], structures[count - 1 : count]):
        for one, other in zip(found.predict(batch, task), exact.predict(batch, task), strict=True):
            tolerances.assert_close(one, other, tolerances.T32)
    assert found._runner.n_capped == (1 if name == "neighbors_10" else 0)


@pytest.mark.parametrize("precision", ["fast", "float32"])
def test_radial_networks_that_no_kernel_serves(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run in plain PyTorch, and `describe()` says so."""
    monkeypatch.setattr(radial_hidden, "LARGEST", 8)
    model = fused(precision=precision)
    tolerance = tolerances.FAST if precision == "fast" else tolerances.T32
    for atoms in (water(), copper_primitive()):
        found, exact = model.predict([atoms], "omat")[0], potential().predict([atoms], "omat")[0]
        tolerances.assert_close(found, exact, tolerance)
    assert "up to 8, not 16 and" in model.describe().operations["radial_networks"]


def test_lone_atoms_of_several_elements() -> None:
    """No edge at all, and weights of their own."""
    model, exact = (item.allowing(lone_atoms=True) for item in (fused(precision="float32"), potential()))
    structures = [Atoms("Na"), Atoms("He")]
    found, expected = model.predict(structures, "omat"), exact.predict(structures, "omat")
    for one, other in zip(found, expected, strict=True):
        tolerances.assert_close(one, other, tolerances.T32)


@pytest.mark.parametrize("architecture", ["uma-s-tiny", "uma-m-tiny", "esen-tiny"])
@pytest.mark.parametrize("precision", ["fast", "tf32", "float32"])
def test_no_stage_of_published_shapes_is_a_reference_operation(architecture: str, precision: str) -> None:
    """Nor with lmax 2 and mmax 1. What `describe()` says is worked out by what chooses, so no GPU need be there."""
    settings = edgewise.InferenceSettings(execution_mode="fused", precision=precision)
    config = potential(architecture).config
    for shape in (config, replace(config, mmax=1)) if config.lmax == 2 else (config,):
        operations = make_plan(shape, settings, torch.device("cuda")).operations
        assert not [name for name, text in operations.items() if "plain" in text]
        assert operations["gather_rotate"] == operations["rotate_sum"] == "CUDA C++ kernels"


def test_radial_networks_of_published_widths_run_in_cuda() -> None:
    settings = edgewise.InferenceSettings(execution_mode="fused", precision="fast")
    tiny = potential("uma-s-tiny").config
    narrow, published = replace(tiny, edge_channels=8), replace(tiny, edge_channels=128, n_basis=64)
    texts = [
        make_plan(config, settings, torch.device("cuda")).operations["radial_networks"]
        for config in (narrow, published)
    ]
    assert "8 wide" in texts[0]
    assert texts[1] == "CUDA C++ kernels, last layers by cuBLAS"


def test_a_lone_atom_and_an_empty_list() -> None:
    model = fused().allowing(lone_atoms=True)
    exact = potential().allowing(lone_atoms=True)
    tolerances.assert_close(
        model.predict([Atoms("Na")], "omat")[0], exact.predict([Atoms("Na")], "omat")[0], tolerances.FAST
    )
    assert len(model.predict([], "omat")) == 0


def crystals(count: int) -> list[Atoms]:
    """Return rattled crystals with different numbers of edges."""
    found = []
    for seed in range(count):
        atoms = bulk("Cu", cubic=True) * (2, 2, 1 + seed % 2)
        atoms.rattle(0.05, seed=seed)
        found.append(atoms)
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fast", "float32"])
def test_captured_steps_equal_general(precision: str) -> None:
    model, exact = fused(precision=precision), potential()
    tolerance = tolerances.FAST if precision == "fast" else tolerances.T32
    for atoms in crystals(6):
        tolerances.assert_close(model.predict(atoms, "omat")[0], exact.predict(atoms, "omat")[0], tolerance)


@pytest.mark.gpu
def test_the_same_bits_alone_and_after_others() -> None:
    model, structures = fused(), crystals(6)
    first = [model.predict(atoms, "omat") for atoms in structures]
    again, replayed = ([model.predict(atoms, "omat") for atoms in reversed(structures)][::-1] for _ in "ab")
    alone = [fused().predict(atoms, "omat") for atoms in structures]
    for results in (again, replayed, alone):
        assert all(same_bits(one, other) for one, other in zip(first, results, strict=True))


@pytest.mark.gpu
def test_deterministic_asks_for_what_is_so_anyway() -> None:
    model, asked = fused(), fused(deterministic=True)
    for atoms in crystals(2):
        for _ in range(3):
            assert same_bits(model.predict(atoms, "omat"), asked.predict(atoms, "omat"))


@pytest.mark.gpu
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_direct_stress_repeats(reduce: str) -> None:
    """Sums over the atoms of several systems have an order too, in this mode and in mode general, where it is asked for."""
    for mode in ("fused", "general"):
        settings = edgewise.InferenceSettings(execution_mode=mode, deterministic=mode == "general")
        model = Potential(option(f"direct_stress_{reduce}"), device=DEVICE, settings=settings)
        structures = crystals(4)
        for atoms in structures:
            atoms.symbols[:] = "Ar"
        first = model.predict(structures, model.tasks[0])
        assert np.isfinite(first.stress).all()
        for _ in range(5):
            assert same_bits(model.predict(structures, model.tasks[0]), first)


@pytest.mark.gpu
def test_the_same_bits_in_another_process() -> None:
    program = (
        "from tests.engine.fused.test_kernel_runner import *\n"
        "found = fused().predict(crystals(1), 'omat')\n"
        "print(found.energy.tobytes().hex(), found.forces.tobytes().hex(), found.stress.tobytes().hex())"
    )
    lines = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout for _ in "ab"
    }
    assert len(lines) == 1
    found = fused().predict(crystals(1), "omat")
    assert found.forces.tobytes().hex() in lines.pop()


@pytest.mark.gpu
def test_alternating_systems_are_captured_once() -> None:
    model = fused()
    runner = model._runner
    assert isinstance(runner, KernelRunner)
    small, large = crystals(2)
    # What is done once is not recorded; and the first recording of a larger system throws those of smaller ones away.
    for n_recorded in (0, 2, 3, 3):
        model.predict(small, "omat")
        model.predict(large, "omat")
        model.predict(water(), "omol")
        assert runner.n_recorded == n_recorded


@pytest.mark.gpu
def test_charge_and_spin_reach_a_captured_step() -> None:
    model, exact = fused(precision="float32"), potential()
    for charge, spin in ((0, 1), (-1, 2), (1, 2), (0, 1)):
        atoms = water()
        atoms.info = {"charge": charge, "spin": spin}
        tolerances.assert_close(model.predict(atoms, "omol")[0], exact.predict(atoms, "omol")[0], tolerances.T32)


@pytest.mark.gpu
def test_mixed_batches_equal_general() -> None:
    model, exact = fused(precision="float32"), potential()
    structures, tasks = [water(), *crystals(2), water()], ["omol", "omat", "omat", "omol"]
    found, expected = model.predict(structures, tasks), exact.predict(structures, tasks)
    for one, other in zip(found, expected, strict=True):
        tolerances.assert_close(one, other, tolerances.T32)


@pytest.mark.gpu
def test_it_is_the_choice_on_a_gpu() -> None:
    assert fused(execution_mode=None).describe().mode == "fused"
    assert fused(execution_mode=None, precision="float32").describe().precision == "float32"
    assert fused(execution_mode=None, edge_chunk_size=9).describe().mode == "umas_fast_gpu"
