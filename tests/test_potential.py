"""The public face: tasks, elements, bad input, overrides, descriptions, settings, devices, large structures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule

import edgewise
from edgewise import errors
from edgewise.engine.plan import make_plan
from edgewise.potential import ATOMS_PER_BATCH
from tests import tolerances
from tests.cases import copper_cube, potential, salt, water


def test_results_behave_like_a_sequence() -> None:
    results = potential().predict([water(), copper_cube()], ["omol", "omat"])
    assert len(results) == 2
    assert [len(item.forces) for item in results] == [3, 4]
    assert results[-1].energy == results.energy[1]
    assert np.isnan(results.stress[0]).all()
    assert np.isfinite(results[1].stress).all()
    with pytest.raises(IndexError):
        results[2]


def test_a_single_structure_needs_no_list() -> None:
    assert potential().predict(water(), "omol").energy.shape == (1,)


def test_tasks() -> None:
    model = potential()
    assert model.task is None
    with pytest.raises(errors.UnknownTaskError, match=r"several tasks.*oc20, oc22"):
        model.predict([water()])
    with pytest.raises(errors.UnknownTaskError, match="'solid' is not one of"):
        model.predict([water()], "solid")
    with pytest.raises(errors.UnknownTaskError, match="2 tasks for 1 structures"):
        model.predict([water()], ["omol", "omat"])
    with pytest.raises(errors.UnknownTaskError, match="'solid'"):
        potential(task="solid")
    assert potential(task="omol").predict([water()]).energy == model.predict([water()], "omol").energy
    assert potential("esen-tiny").task == "omol"


@pytest.mark.parametrize(
    ("structures", "error", "words"),
    [
        ([water(), Atoms()], errors.InvalidStructureError, "structure 1 has no atoms"),
        ([water(), "water.xyz"], errors.InvalidStructureError, "structure 1 is a str"),
        ([water(), Atoms("XH", [[0, 0, 0], [0, 0, 1]])], errors.OutOfDomainError, "atom 0 of structure 1 is X"),
        ([Atoms("HMd", [[0, 0, 0], [0, 0, 1]])], errors.OutOfDomainError, "atom 1 of structure 0 is Md"),
        (
            [water(), Atoms("H2", [[0, 0, 0], [0, 0, 1e-4]])],
            errors.InvalidStructureError,
            "atoms 0 and 1 of structure 1",
        ),
    ],
)
def test_bad_structures(structures: list[Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        potential().predict(structures, "omol")


def test_embedded_models_take_their_elements_only() -> None:
    model = edgewise.load("emt-mini")
    with pytest.raises(errors.OutOfDomainError, match=r"is Fe .*Al Cu Ag Au Ni Pd Pt.*any_element=True"):
        model.predict([bulk("Fe")])
    assert np.isfinite(model.allowing(any_element=True).predict([bulk("Fe")]).energy).all()
    assert model.elements == (13, 28, 29, 46, 47, 78, 79)


def test_allowing_shares_the_engine_and_leaves_the_original_strict() -> None:
    model = potential(task="omat")
    allowed = model.allowing(charge_spin=True)
    charged = copper_cube()
    charged.info["charge"] = 1
    assert np.isfinite(allowed.predict([charged]).energy).all()
    with pytest.raises(errors.ChargeSpinError, match="allowing"):
        model.predict([charged])
    assert allowed._runner is model._runner


def test_non_finite_results_are_never_returned() -> None:
    model = potential(task="omat")
    with torch.no_grad():
        model._runner.network.backbone.sphere_embedding.weight[17] = torch.nan
    try:
        with pytest.raises(errors.NonFiniteResultError, match="structure 1"):
            model.predict([copper_cube(), salt()])
    finally:
        # Parameters are the tensors of the checkpoint that other tests share.
        from tests.cases import golden_checkpoint

        golden_checkpoint.cache_clear()


def test_description() -> None:
    model = potential(task="omat")
    model.predict([salt()])
    text = str(model.describe())
    for word in ("uma-s-tiny", "general", "float64", "cpu", "edge_message", "1 merged so far", "cutoff 6.0", "omat"):
        assert word in text
    values = model.describe().as_dict()
    assert values["mode"] == "general"
    assert values["tasks"][0] == "oc20"
    assert "mixed in every call" in potential(merge_mole=False).describe().merging


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"execution_mode": "fused"}, "Triton is not installed"),
        ({"precision": "fast"}, "execution_mode='fused'"),
        ({"compile": True}, "compile=True"),
        ({"internal_graph_gen_version": 3}, r"internal_graph_gen_version=3 .* pip install 'edgewise\[gpu\]'"),
    ],
)
def test_what_is_not_there_is_refused_by_name(
    settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises((errors.ModeUnavailableError, errors.InvalidSettingsError), match=words):
        potential(**{"precision": None, **settings})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tf32": 1}, "tf32 is 1"),
        ({"execution_mode": "turbo"}, "'turbo'"),
        ({"edge_chunk_size": 0}, "edge_chunk_size is 0"),
        ({"internal_graph_gen_version": 1}, "is 1"),
        ({"precision": "float16"}, "'float16'"),
        ({"predict_untrained_forces": 3}, "predict_untrained_forces is 3"),
        ({"predict_untrained_hessian": [3]}, "predict_untrained_hessian"),
        ({"tf32": True, "base_precision_dtype": "float64"}, "contradicts"),
        ({"tf32": True, "precision": "float32"}, "contradicts"),
        ({"base_precision_dtype": "float64", "precision": "float32"}, "contradicts"),
        ({"execution_mode": "fused", "activation_checkpointing": True}, "activation_checkpointing=False"),
        ({"execution_mode": "umas_fast_gpu", "precision": "float64"}, "float64"),
        ({"execution_mode": "general", "precision": "fast"}, "fused"),
        ({"external_graph_gen": True, "internal_graph_gen_version": 3}, "one of them"),
        ({"compile": True, "edge_chunk_size": 10}, "compile=True"),
    ],
)
def test_settings_are_checked_when_they_are_made(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InvalidSettingsError, match=words):
        edgewise.InferenceSettings(**settings)


def test_settings_defaults_and_plain_data() -> None:
    defaults = edgewise.InferenceSettings()
    assert (defaults.merge_mole, defaults.activation_checkpointing, defaults.compile, defaults.tf32) == (
        True,
        False,
        False,
        False,
    )
    assert (defaults.base_precision_dtype, defaults.execution_mode, defaults.internal_graph_gen_version) == (
        "float32",
        None,
        2,
    )
    assert edgewise.InferenceSettings.from_dict({"tf32": True}).tf32
    assert edgewise.InferenceSettings(predict_untrained_stress="omol").predict_untrained_stress == {"omol"}
    with pytest.raises(errors.InvalidSettingsError, match="unknown settings turbo"):
        edgewise.InferenceSettings.from_dict({"turbo": 1})


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("quantum", "'quantum'"),
        ("cuda:99", "CUDA"),
        ("mps", "mps"),
        ("meta", "allowed"),
        ("xpu", "allowed"),
        (None, "None"),
    ],
)
def test_devices_that_are_not_there(device: Any, words: str) -> None:
    from tests.cases import golden_checkpoint

    with pytest.raises(errors.InvalidSettingsError, match=words):
        edgewise.Potential(golden_checkpoint("esen-tiny"), device=device)


def test_what_cannot_serve_is_refused_before_a_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file does not exist, and nothing looks for it."""
    monkeypatch.setattr("edgewise.ops.launch.is_interpreted", lambda: False)
    with pytest.raises(errors.InvalidSettingsError, match="'quantum'"):
        edgewise.load("missing.pt", device="quantum")
    with pytest.raises(errors.ModeUnavailableError, match=r"precision='fast' .* the device is cpu, not cuda"):
        edgewise.load("missing.pt", settings=edgewise.InferenceSettings(precision="fast"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "fastest mode"),
        ({"merge_mole": False}, "serves it when it is asked for by name"),
        ({"precision": "float64"}, "float64 is asked for"),
        ({"activation_checkpointing": True}, "activation_checkpointing=True is asked for"),
    ],
)
def test_the_choice_on_a_gpu_gives_its_reason(settings: dict[str, Any], words: str) -> None:
    pytest.importorskip("triton")
    config, chosen = potential().config, edgewise.InferenceSettings(**settings)
    assert words in make_plan(config, chosen, torch.device("cuda")).mode_reason


def test_compile_says_why_it_cannot_be() -> None:
    config = potential().config
    chosen = edgewise.InferenceSettings(compile=True, activation_checkpointing=True)
    with pytest.raises(errors.ModeUnavailableError, match="activation_checkpointing=True is asked for"):
        make_plan(config, chosen, torch.device("cuda"))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("mode", ["general", None])
def test_the_callers_autocast_changes_nothing(device: str, mode: str | None) -> None:
    model = potential(device=device, precision="float32", execution_mode=mode, deterministic=True)
    expected = model.predict([water()], "omol")
    with torch.autocast(device, dtype=torch.bfloat16):
        found = model.predict([water()], "omol")
    assert found.energy == expected.energy
    assert np.array_equal(found.forces, expected.forces)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_second_gpu_gives_the_same() -> None:
    one, other = (potential(device=f"cuda:{number}", precision="float32", deterministic=True) for number in range(2))
    assert np.array_equal(one.predict([salt()], "omat").forces, other.predict([salt()], "omat").forces)


def test_description_of_neighbours_and_order() -> None:
    described = potential(deterministic=True).describe()
    assert "vesin" in described.neighbors
    assert any("fixed order" in note for note in described.notes)
    with pytest.warns(errors.EdgewiseWarning, match="TF32"):
        potential(precision=None, tf32=True)


def test_large_lists_are_cut_and_keep_their_order() -> None:
    model = potential(task="omat", precision="float32")
    small, large = copper_cube(), copper_cube().repeat((ATOMS_PER_BATCH // 16, 2, 2))
    structures = [small, large, small, small.repeat(2), large, small]
    results = model.predict(structures)
    assert results.n_atoms.tolist() == [len(atoms) for atoms in structures]
    for result, atoms in zip(results, structures, strict=True):
        tolerances.assert_close(result, model.predict([atoms])[0], tolerances.T32)


@pytest.mark.parametrize("settings", [{"edge_chunk_size": 37}, {"activation_checkpointing": True}])
def test_saving_memory_changes_nothing(settings: dict[str, Any]) -> None:
    structures = [salt(), water(), molecule("CH3CH2OH"), copper_cube()]
    tasks = ["omat", "omol", "omol", "omat"]
    plain = potential().predict(structures, tasks)
    given = potential(**settings).predict(structures, tasks)
    assert np.abs(given.energy - plain.energy).max() <= 1e-12 * np.abs(plain.energy).max()
    assert np.abs(given.forces - plain.forces).max() <= 1e-12 * np.abs(plain.forces).max()
    assert np.nanmax(np.abs(given.stress - plain.stress)) <= 1e-12 * np.nanmax(np.abs(plain.stress))


def test_warnings_name_the_model() -> None:
    assert "esen-tiny" in repr(potential("esen-tiny"))


def test_things_of_another_type_are_refused_with_a_way_out() -> None:
    with pytest.raises(errors.InvalidStructureError, match="list of them"):
        potential().predict(None, "omol")  # type: ignore[arg-type]
    with pytest.raises(errors.ModelNotFoundError, match="emt-mini"):
        edgewise.load(None)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidSettingsError, match="from_dict"):
        edgewise.load("emt-mini", settings={"precision": "float64"})  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidSettingsError, match="from_checkpoint"):
        edgewise.Calculator("emt-mini")  # type: ignore[arg-type]
