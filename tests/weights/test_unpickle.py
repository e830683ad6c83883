"""Checkpoints from strangers: nothing that a file asks for runs, and damaged files fail with one clear sentence."""

from __future__ import annotations

import functools
import io
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgewise.errors import CheckpointError, EdgewiseError, UnsafeCheckpointError
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
        (b"I5\n", "no usable|holds|int"),
        (b"c__builtin__\nlist\n", "holds a type"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)R", "tensor in a form"),
        (b"]q\x01h\x01a", "refers to itself"),
    ],
)
def test_odd_content_is_named(tmp_path: Path, opcodes: bytes, words: str) -> None:
    path = with_pickle(tmp_path / "odd.pt", checkpoint_pickle(opcodes))
    try:
        read = read_pickled_checkpoint(path)
    except CheckpointError as error:
        assert any(word in str(error) for word in words.split("|")), error
    else:
        assert read["model_config"] == 5


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [(0, (10**9,), (1,)), (0, (2,), (10**9,)), (10**9, (1,), (1,)), (-1, (1,), (1,)), (0, (2, 2), (1,)), (0, (-1,), (1,))],
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


def test_plain_and_omegaconf_files_are_read() -> None:
    for name in ("plain.pt", "omegaconf.pt"):
        fields = read_pickled_checkpoint(GOLDEN / name)
        assert type(fields["model_config"]) is dict
        assert type(fields["model_config"]["backbone"]) is dict
        assert type(fields["tasks_config"]) is list
        assert type(fields["model_config"]["backbone"]["lmax"]) is int


def test_values_equal_those_of_the_trusting_reader() -> None:
    """The same numbers as torch's own restricted reader gives for the tensors of the file."""
    fields = read_pickled_checkpoint(PLAIN)
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
        largest = max((info for info in archive.infolist() if "/data/" in info.filename), key=lambda item: item.file_size)
    data[largest.header_offset + 200] ^= 0xFF
    path = tmp_path / "flipped.pt"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="checksum|damaged"):
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
    try:
        read_pickled_checkpoint(path)
    except EdgewiseError as error:
        assert str(error)
