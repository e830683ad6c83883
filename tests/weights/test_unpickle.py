"""Checkpoints from strangers: nothing that a file asks for runs, and damaged files fail with one clear sentence."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import io
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgewise.errors import CheckpointError, EdgewiseError, UnsafeCheckpointError
from edgewise.weights import convert
from edgewise.weights.checkpoint import checkpoint_from_fields
from edgewise.weights.unpickle import read_pickled_checkpoint
from tests.cases import GOLDEN

PLAIN = GOLDEN / "plain.pt"


def with_pickle(path: Path, data: bytes, original: Path = PLAIN) -> Path:
    """Write a copy of a checkpoint whose data.pkl is replaced."""
    with zipfile.ZipFile(original) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as target:
        for info in source.infolist():
            content = data if info.filename.endswith("/data.pkl") else source.read(info)
            target.writestr(info.filename, content)
    return path


def checkpoint_pickle(field: bytes) -> bytes:
    """Return a pickle of the format's object whose model_config is what `field` leaves on the stack."""
    head = b"\x80\x02cfairchem.core.units.mlip_unit.api.inference\nMLIPInferenceCheckpoint\n)\x81"
    return head + b"}X\x0c\x00\x00\x00model_config" + field + b"sb."


class Attack:
    """Creates a file when it is unpickled by a reader that trusts it."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


def raw(module: str, name: str, argument: str) -> bytes:
    """Return the opcodes that call module.name(argument)."""
    text = argument.encode()
    return f"c{module}\n{name}\n".encode() + b"(X" + struct.pack("<I", len(text)) + text + b"tR"


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
@pytest.mark.parametrize(
    ("function", "named"),
    [
        (os.system, "system"),
        (eval, "eval"),
        (exec, "exec"),
        (functools.partial, "functools.partial"),
        (getattr, "getattr"),
        (open, "open"),
        (__import__, "__import__"),
        (np.frombuffer, "numpy"),
        (torch.load, "torch.serialization.load"),
        (torch.hub.load, "torch.hub.load"),
    ],
)
def test_calls_are_refused_by_name(tmp_path: Path, function: Any, named: str, protocol: int) -> None:
    marker = tmp_path / "marker"
    data = pickle.dumps(Attack(function, f"touch {marker}"), protocol=protocol)
    path = with_pickle(tmp_path / "hostile.pt", data)
    with pytest.raises(UnsafeCheckpointError, match="nothing of it was run") as caught:
        read_pickled_checkpoint(path)
    assert named in str(caught.value)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("__builtin__", "eval"),
        ("builtins", "getattr"),
        ("torch._utils", "_rebuild_tensor_v2.__globals__"),
        ("torch.storage", "_load_from_bytes"),
        ("collections", "OrderedDict.__init__"),
        ("copyreg", "_reconstructor"),
        ("omegaconf.resolvers", "oc"),
    ],
)
def test_an_attack_inside_a_genuine_layout(tmp_path: Path, module: str, name: str) -> None:
    marker = tmp_path / "marker"
    path = with_pickle(tmp_path / "hostile.pt", checkpoint_pickle(raw(module, name, f"touch {marker}")))
    with pytest.raises(UnsafeCheckpointError) as caught:
        read_pickled_checkpoint(path)
    assert f"{module}.{name}".replace("__builtin__", "__builtin__") in str(caught.value)
    assert not marker.exists()


def test_state_and_attributes_of_allowed_names_do_nothing(tmp_path: Path) -> None:
    """BUILD on an allowed class must not change it, and its stand-in must not leak into another load."""
    hostile = checkpoint_pickle(b"ccollections\nOrderedDict\n}X\x04\x00\x00\x00evilK\x01sb")
    with pytest.raises(EdgewiseError):
        read_pickled_checkpoint(with_pickle(tmp_path / "hostile.pt", hostile))
    assert read_pickled_checkpoint(PLAIN)["model_config"]["backbone"]["lmax"] == 2


@pytest.mark.parametrize(
    ("opcodes", "words"),
    [
        (b"I5\n", "no usable model_config"),
        (b"c__builtin__\nlist\n", "holds a type"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)R", "tensor in a form"),
        (b"]q\x01h\x01a", "refers to itself"),
    ],
)
def test_odd_content_is_named(tmp_path: Path, opcodes: bytes, words: str) -> None:
    path = with_pickle(tmp_path / "odd.pt", checkpoint_pickle(opcodes))
    with pytest.raises(CheckpointError, match=words):
        checkpoint_from_fields(read_pickled_checkpoint(path), "odd", path)


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [
        (0, (10**9,), (1,)),
        (0, (2,), (10**9,)),
        (10**9, (1,), (1,)),
        (-1, (1,), (1,)),
        (0, (2, 2), (1,)),
        (0, (-1,), (1,)),
    ],
)
def test_tensors_that_reach_outside_their_numbers_are_refused(
    tmp_path: Path, offset: int, size: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    class Storage:
        pass

    class Rebuild:
        def __reduce__(self) -> Any:
            return torch._utils._rebuild_tensor_v2, (Storage(), offset, size, stride, False, None)

    class Pickler(pickle._Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return ("storage", torch.FloatStorage, "0", "cpu", 4) if isinstance(obj, Storage) else None

    buffer = io.BytesIO()
    Pickler(buffer, protocol=2).dump(Rebuild())
    # The opcodes between the protocol header and the final stop leave the tensor on the stack.
    path = with_pickle(tmp_path / "reach.pt", checkpoint_pickle(buffer.getvalue()[2:-1]))
    with pytest.raises(CheckpointError, match="tensor of size"):
        read_pickled_checkpoint(path)


def with_option(opcodes: bytes) -> bytes:
    """Return the description of a genuine checkpoint with one more option, whose value `opcodes` leaves on the stack."""
    with zipfile.ZipFile(PLAIN) as archive:
        data = archive.read("plain/data.pkl")
    # model_config follows its name as: memo (2 bytes), empty dict, memo (2 bytes), mark.
    start = data.index(b"model_config") + len(b"model_config") + 6
    assert data[start - 1 : start] == b"("
    return data[:start] + b"X\x05\x00\x00\x00extra" + opcodes + data[start:]


def test_a_further_option_of_plain_data_is_read(tmp_path: Path) -> None:
    """The attacks below fail for what they ask, not for where they stand."""
    path = with_pickle(tmp_path / "more.pt", with_option(b"(K\x01N\x88t"))
    assert read_pickled_checkpoint(path)["model_config"]["extra"] == [1, None, True]


def test_extension_codes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's unpickler takes objects from its cache of extension codes without asking anybody."""
    marker = tmp_path / "marker"
    monkeypatch.setitem(copyreg._extension_cache, 240, os.system)  # type: ignore[attr-defined]
    monkeypatch.setitem(copyreg._inverted_registry, 240, ("os", "system"))  # type: ignore[attr-defined]
    command = f"touch {marker}".encode()
    opcodes = b"\x82\xf0(X" + struct.pack("<I", len(command)) + command + b"tR"
    with pytest.raises(UnsafeCheckpointError, match="extension code 240"):
        read_pickled_checkpoint(with_pickle(tmp_path / "hostile.pt", with_option(opcodes)))
    assert not marker.exists()


@pytest.mark.parametrize(
    ("opcodes", "words"),
    [
        pytest.param(b"})" + b"\x85" * 300_000 + b"K\x01s", "tuple as key", id="hash deeper than the stack"),
        pytest.param(b"}K\x01\x85" + b"2\x86" * 60 + b"K\x01s", "tuple as key", id="hash that never ends"),
        pytest.param(b"]" + b"2\x86" * 60, "larger than any configuration", id="exponential growth"),
        pytest.param(b"]2a", "refers to itself", id="cycle"),
        pytest.param(b"C\x01a", "holds a bytes", id="bytes"),
        pytest.param(b"(iposix\nsystem\n", "posix.system", id="INST"),
        pytest.param(b"(ctorch\nFloatStorage\no", "torch.FloatStorage", id="OBJ"),
        pytest.param(b"ccollections\nOrderedDict\n)}\x92", "with keywords", id="NEWOBJ_EX"),
        pytest.param(
            b"ctorch._utils\n_rebuild_tensor_v2\nN}X\x08\x00\x00\x00__code__Ns\x86b", "attributes of", id="slots"
        ),
        pytest.param(
            b"comegaconf.nodes\nAnyNode\n)\x81(K\x01e", "items appended to omegaconf.nodes.AnyNode", id="APPENDS"
        ),
        pytest.param(b"X\x01\x00\x00\x00a)R", "a call of a value of type str", id="call of data"),
        pytest.param(b"Pname\n", "stored numbers in a form", id="persistent text"),
        pytest.param(b"K\x07Q", "stored numbers in a form", id="persistent number"),
        pytest.param(
            b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000"
            b"X\x03\x00\x00\x00cpuK\x04tQK\x00K\x01\x85" + b"2\x86" * 60 + b"K\x01\x85tR",
            "size and stride that no tensor has",
            id="size of nested tuples",
        ),
    ],
)
def test_tricks(tmp_path: Path, opcodes: bytes, words: str) -> None:
    """Each ends soon, in bounded memory, with a sentence; a reader on Python's unpickler hangs or crashes on some."""
    with pytest.raises(CheckpointError, match=words):
        read_pickled_checkpoint(with_pickle(tmp_path / "trick.pt", with_option(opcodes)))


def test_a_large_memo_number_takes_no_memory(tmp_path: Path) -> None:
    path = with_pickle(tmp_path / "memo.pt", with_option(b"K\x01r\xff\xff\xff\xff"))
    assert read_pickled_checkpoint(path)["model_config"]["extra"] == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_types_protocols_parameters_and_ordered_dicts(tmp_path: Path, dtype: torch.dtype, protocol: int) -> None:
    """What torch.save makes of the state dict of a module, whose names carry version numbers."""
    module = torch.nn.Linear(3, 2).to(dtype) if dtype.is_floating_point else None
    state = module.state_dict() if module else OrderedDict(weight=torch.arange(6).reshape(2, 3).t())
    state["parameter"] = torch.nn.Parameter(state["weight"].clone(), requires_grad=False)
    stand_in = convert._FieldCheckpoint({"options": {1, 2}}, {}, state, [{}])
    path = tmp_path / "model.pt"
    torch.save(stand_in, path, pickle_module=convert._PICKLE_MODULE, pickle_protocol=protocol)
    fields = read_pickled_checkpoint(path)
    assert fields["model_config"] == {"options": [1, 2]}
    assert set(fields["ema_state_dict"]) == set(state)
    for name, value in fields["ema_state_dict"].items():
        assert value.dtype == dtype
        assert torch.equal(value, state[name])


def test_plain_and_omegaconf_files_are_read() -> None:
    for name in ("plain.pt", "omegaconf.pt"):
        fields = read_pickled_checkpoint(GOLDEN / name)
        assert type(fields["model_config"]) is dict
        assert type(fields["model_config"]["backbone"]) is dict
        assert type(fields["tasks_config"]) is list
        assert type(fields["model_config"]["backbone"]["lmax"]) is int


def test_values_equal_those_of_the_trusting_reader() -> None:
    """The same numbers as torch's own restricted reader gives for the tensors of the file."""
    fields = read_pickled_checkpoint(PLAIN, training_weights=True)
    with zipfile.ZipFile(PLAIN) as archive:
        names = [name for name in archive.namelist() if "/data/" in name]
    assert len(names) >= len(fields["ema_state_dict"])
    counter = fields["ema_state_dict"]["n_averaged"]
    assert counter.dtype == torch.int64
    averaged = fields["ema_state_dict"]["module.backbone.mix_csd.weight"]
    trained = fields["model_state_dict"]["backbone.mix_csd.weight"]
    torch.testing.assert_close(trained, 1.01 * averaged)


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_truncated_files(tmp_path: Path, fraction: float) -> None:
    data = PLAIN.read_bytes()
    path = tmp_path / "cut.pt"
    path.write_bytes(data[: int(fraction * len(data))])
    with pytest.raises(CheckpointError, match="cut short"):
        read_pickled_checkpoint(path)


def test_other_files(tmp_path: Path) -> None:
    text = tmp_path / "text.pt"
    text.write_text("not a checkpoint")
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        read_pickled_checkpoint(text)
    other = tmp_path / "other.pt"
    torch.save({"weights": torch.zeros(3)}, other)
    with pytest.raises(CheckpointError, match="not an inference checkpoint"):
        read_pickled_checkpoint(other)
    archive = tmp_path / "archive.pt"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("readme.txt", "hello")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        read_pickled_checkpoint(archive)


def test_flipped_numbers_are_noticed(tmp_path: Path) -> None:
    data = bytearray(PLAIN.read_bytes())
    with zipfile.ZipFile(PLAIN) as archive:
        stored = [info for info in archive.infolist() if "/data/" in info.filename]
    # Training weights come first and are not read; the last of the largest belongs to the averaged ones.
    largest = max(reversed(stored), key=lambda item: item.file_size)
    data[largest.header_offset + 200] ^= 0xFF
    path = tmp_path / "flipped.pt"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"checksum|damaged"):
        read_pickled_checkpoint(path)


def test_files_without_checksums_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        weights = {"a": torch.arange(1000.0)}
        stand_in = convert._FieldCheckpoint({}, {}, weights, [])
        torch.save(stand_in, path, pickle_module=convert._PICKLE_MODULE)
    finally:
        torch.serialization.set_crc32_options(before)
    assert torch.equal(read_pickled_checkpoint(path)["ema_state_dict"]["a"], weights["a"])


def test_old_formats_and_pointers_are_named(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save({"a": torch.zeros(1)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match="before version"):
        read_pickled_checkpoint(path)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(CheckpointError, match="git lfs pull"):
        read_pickled_checkpoint(path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_pickled_checkpoint(tmp_path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_damage_of_the_archive_never_does_anything_else(tmp_path: Path, data: st.DataObject) -> None:
    """Damage anywhere, most of it in the archive's directory, either goes unnoticed or raises an error of ours."""
    content = bytearray(PLAIN.read_bytes())
    with zipfile.ZipFile(PLAIN) as archive:
        directory = archive.start_dir
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.sampled_from((directory, directory, 0)))
        content[data.draw(st.integers(start, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.pt"
    path.write_bytes(content)
    with contextlib.suppress(EdgewiseError):
        read_pickled_checkpoint(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.floats(0, 1), value=st.integers(0, 255), cut=st.floats(0, 1) | st.none())
def test_random_damage_never_does_anything_else(tmp_path: Path, position: float, value: int, cut: float | None) -> None:
    """A damaged data.pkl either loads or raises an error of ours."""
    with zipfile.ZipFile(PLAIN) as archive:
        name = next(item for item in archive.namelist() if item.endswith("/data.pkl"))
        data = bytearray(archive.read(name))
    data[int(position * (len(data) - 1))] = value
    if cut is not None:
        data = data[: int(cut * len(data))]
    path = with_pickle(tmp_path / "damaged.pt", bytes(data))
    with contextlib.suppress(EdgewiseError):
        read_pickled_checkpoint(path)
