"""Conversion both ways, files that appear whole or not at all, the cache, and clear errors."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

import edgewise
from edgewise.errors import CheckpointError, InvalidSettingsError, ModelNotFoundError, UnsupportedModelError
from edgewise.weights import Checkpoint, cache, convert, read_checkpoint, read_safetensors, write_pt, write_safetensors
from edgewise.weights.checkpoint import checkpoint_from_fields
from edgewise.weights.unpickle import read_pickled_checkpoint
from tests import tolerances
from tests.cases import GOLDEN, golden_atoms, golden_checkpoint


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("EDGEWISE_CACHE", str(folder))
    return folder


def assert_same(given: Checkpoint, expected: Checkpoint) -> None:
    assert given.model_config == expected.model_config
    assert list(given.tasks_config) == list(expected.tasks_config)
    weights = {name: value for name, value in given.weights.items() if "Jd_" not in name}
    assert set(weights) == {name for name in expected.weights if "Jd_" not in name}
    for name, value in weights.items():
        assert torch.equal(value, expected.weights[name]), name


@pytest.mark.parametrize("name", ["plain", "omegaconf"])
def test_outputs_of_files_that_the_peer_wrote(name: str) -> None:
    manifest = json.loads((GOLDEN / "options" / "manifest.json").read_text())
    potential = edgewise.load(GOLDEN / f"{name}.pt", settings=edgewise.InferenceSettings(precision="float64")).allowing(
        charge_spin=True, lone_atoms=True
    )
    with np.load(GOLDEN / f"{name}.npz") as stored:
        outputs = dict(stored)
    cases = {key.split("/")[0] for key in outputs} & set(manifest["cases"])
    assert cases
    for case in cases:
        values = manifest["cases"][case]
        result = potential.predict([golden_atoms(case, manifest)], values["task"])[0]
        expected = edgewise.StructureResult(
            float(outputs[f"{case}/energy"].ravel()[0]), outputs[f"{case}/forces"], result.stress
        )
        tolerances.assert_close(result, expected, tolerances.GOLDEN)


def test_round_trip(tmp_path: Path) -> None:
    original = read_checkpoint(GOLDEN / "plain.pt")
    write_safetensors(original, tmp_path / "converted.safetensors")
    converted = read_checkpoint(tmp_path / "converted.safetensors")
    assert_same(converted, original)
    write_pt(converted, tmp_path / "back.pt")
    assert_same(read_checkpoint(tmp_path / "back.pt"), original)
    fields = read_pickled_checkpoint(tmp_path / "back.pt", training_weights=True)
    assert fields["ema_state_dict"]["n_averaged"].dtype == torch.int64
    assert "backbone.Jd_2" in fields["model_state_dict"]
    card = json.loads((tmp_path / "converted.json").read_text())
    assert card["source"] == "plain.pt"
    assert card["source_sha256"] == convert.file_hash(GOLDEN / "plain.pt")
    assert {"eV", "eV/Å"} <= {task["unit"] for task in card["tasks"]}


def test_tables_of_the_format_are_computed_where_they_are_missing(tmp_path: Path) -> None:
    source = golden_checkpoint("uma-m-tiny")
    weights = {name: value for name, value in source.weights.items() if "Jd_" not in name}
    write_pt(Checkpoint(source.model_config, source.tasks_config, weights, "m"), tmp_path / "m.pt")
    written = read_pickled_checkpoint(tmp_path / "m.pt", training_weights=True)["model_state_dict"]
    for degree in range(5):
        name = f"backbone.Jd_{degree}"
        torch.testing.assert_close(written[name], source.weights[name], rtol=0, atol=1e-13)


def test_second_load_does_not_unpickle(monkeypatch: pytest.MonkeyPatch, private_cache: Path) -> None:
    first = read_checkpoint(GOLDEN / "plain.pt")
    assert len(list(private_cache.glob("*.safetensors"))) == 1

    def fail(path: Path) -> Any:
        pytest.fail(f"{path} was read again")

    monkeypatch.setattr(cache, "read_pickled_checkpoint", fail)
    assert_same(read_checkpoint(GOLDEN / "plain.pt"), first)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    shutil.copy(GOLDEN / "plain.pt", path)
    first = read_checkpoint(path)
    shutil.copy(GOLDEN / "omegaconf.pt", path)
    assert read_checkpoint(path).model_config != first.model_config


def test_damaged_cache_entries_are_made_anew(private_cache: Path) -> None:
    first = read_checkpoint(GOLDEN / "plain.pt")
    (copy,) = private_cache.glob("*.safetensors")
    copy.write_bytes(copy.read_bytes()[:1000])
    assert_same(read_checkpoint(GOLDEN / "plain.pt"), first)
    assert_same(read_safetensors(copy), first)


@pytest.mark.parametrize("where", ["numbers", "options", "checksum"])
def test_flipped_bits_of_a_cache_entry_are_noticed(private_cache: Path, where: str) -> None:
    """safetensors has no checksum of its own, so a damaged copy would be evaluated in silence."""
    first = read_checkpoint(GOLDEN / "plain.pt")
    (copy,) = private_cache.glob("*.safetensors")
    content = bytearray(copy.read_bytes())
    places = {
        "numbers": len(content) - 1000,
        "options": content.index(b"rms_norm_sh"),
        "checksum": content.index(b"checksum"),
    }
    content[places[where]] ^= 0x01
    copy.write_bytes(content)
    with pytest.raises(CheckpointError, match="checksum"):
        read_safetensors(copy, require_checksum=True)
    assert_same(read_checkpoint(GOLDEN / "plain.pt"), first)
    assert_same(read_safetensors(copy), first)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("I/O error: No space left")])
def test_a_full_cache_does_not_matter(
    private_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """A full disk comes as the library's own kind of error from safetensors."""

    def full_disk(weights: Any, target: Path, metadata: Any) -> None:
        Path(target).write_bytes(b"half")
        raise error

    monkeypatch.setattr(convert, "save_file", full_disk)
    assert read_checkpoint(GOLDEN / "plain.pt").weights
    assert list(private_cache.iterdir()) == []
    assert "no converted copy" in caplog.text


def test_a_file_that_changes_while_it_is_read_leaves_no_copy(
    private_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.pt"
    shutil.copy(GOLDEN / "plain.pt", path)

    def read_while_it_changes(given: Path) -> Any:
        fields = read_pickled_checkpoint(given)
        os.utime(given, ns=(1, 1))
        return fields

    monkeypatch.setattr(cache, "read_pickled_checkpoint", read_while_it_changes)
    assert read_checkpoint(path).weights
    assert not private_cache.exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"model_config": "[]", "tasks_config": "[]", "card": "{}"},
        {"model_config": "{}", "tasks_config": "[1]", "card": "{}"},
        {"model_config": "[" * 100_000, "tasks_config": "[]", "card": "{}"},
        {"model_config": "{", "tasks_config": "[]", "card": "{}"},
    ],
)
def test_headers_of_the_wrong_kind_are_refused(tmp_path: Path, fields: dict[str, str]) -> None:
    path = tmp_path / "odd.safetensors"
    save_file({"a": torch.zeros(2)}, path, metadata={"format": "edgewise", "format_version": "1", **fields})
    with pytest.raises(CheckpointError, match="damaged"):
        read_safetensors(path)


def test_views_of_larger_memory_are_written_alone(tmp_path: Path) -> None:
    """What is read from safetensors may share one mapped file, of several types."""
    whole = torch.arange(4000.0)
    weights = {"a": whole[:10], "b": whole[:10], "c": whole.reshape(2, -1).t()[:3], "d": whole.view(torch.int32)[5:9]}
    source = Checkpoint({"backbone": {"lmax": 1}}, [{"name": "x"}], weights, "views")
    write_safetensors(source, tmp_path / "views.safetensors")
    write_pt(source, tmp_path / "views.pt")
    assert (tmp_path / "views.safetensors").stat().st_size < 2000
    assert (tmp_path / "views.pt").stat().st_size < 10000
    assert_same(read_safetensors(tmp_path / "views.safetensors"), source)
    assert_same(read_checkpoint(tmp_path / "views.pt"), source)


def test_a_cache_that_cannot_be_written_does_not_matter(private_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    private_cache.write_text("a file where the folder should be")
    assert read_checkpoint(GOLDEN / "plain.pt").weights
    assert "no converted copy" in caplog.text


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(weights: Any, target: Path, metadata: Any) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(convert, "save_file", full_disk)
    target = tmp_path / "out" / "model.safetensors"
    with pytest.raises(OSError, match="No space"):
        write_safetensors(golden_checkpoint("esen-tiny"), target)
    assert list(target.parent.iterdir()) == []


def test_safetensors_of_others_are_told_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match="edgewise convert"):
        read_checkpoint(path)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(CheckpointError, match="damaged or cut short"):
        read_checkpoint(path)


def test_future_versions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "FORMAT_VERSION", "99")
    write_safetensors(golden_checkpoint("esen-tiny"), tmp_path / "future.safetensors")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="format version '99'"):
        read_safetensors(tmp_path / "future.safetensors")


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"ema_state_dict": None}, CheckpointError, "ema_state_dict"),
        ({"model_config": {}}, CheckpointError, "model_config"),
        ({"tasks_config": "x"}, CheckpointError, "tasks_config"),
        ({"model_config": {"_target_": "other.Model"}}, UnsupportedModelError, "other.Model"),
        ({"ema_state_dict": {"a": 3}}, CheckpointError, "parameter a"),
        ({"ema_state_dict": {"n_averaged": torch.tensor(1)}}, CheckpointError, "no averaged weights"),
    ],
)
def test_fields_that_are_wrong_are_named(change: dict[str, Any], error: type[Exception], words: str) -> None:
    fields = read_pickled_checkpoint(GOLDEN / "plain.pt") | change
    with pytest.raises(error, match=words):
        checkpoint_from_fields(fields, "plain", Path("plain.pt"))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda weights: weights.pop("backbone.mix_csd.weight"), "lacks 1 parameters .* backbone.mix_csd.weight"),
        (lambda weights: weights.update(extra=torch.zeros(1)), "no place for: extra"),
        (lambda weights: weights.update({"backbone.mix_csd.bias": torch.zeros(3)}), "has shape"),
    ],
)
def test_missing_surplus_and_misshapen_parameters(edit: Any, words: str) -> None:
    source = golden_checkpoint("esen-tiny")
    weights = dict(source.weights)
    edit(weights)
    with pytest.raises(CheckpointError, match=words):
        edgewise.Potential(Checkpoint(source.model_config, source.tasks_config, weights, "edited"))


def test_a_revision_is_for_published_models() -> None:
    with pytest.raises(InvalidSettingsError, match="not a published model"):
        read_checkpoint(GOLDEN / "plain.pt", revision="main")


def test_a_parameter_that_comes_twice_is_refused() -> None:
    weights = {"module.a": torch.zeros(1), "module.module.a": torch.ones(1)}
    with pytest.raises(CheckpointError, match="parameter a twice"):
        checkpoint_from_fields(
            {"model_config": {"backbone": {}}, "tasks_config": [{}], "ema_state_dict": weights}, "x", Path("x.pt")
        )


def test_unknown_names_and_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="did you mean 'uma-s-1p2p1'"):
        edgewise.load("uma-s-1p2p2")
    with pytest.raises(ModelNotFoundError, match="is a folder"):
        edgewise.load(tmp_path)
