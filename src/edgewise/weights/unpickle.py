"""Reads the field's `.pt` checkpoints without running anything that the file asks for.

A pickle may name any callable and have it called. Here every name is looked up in a closed list, and what stands for it
is inert: it only remembers its arguments. Tensors and plain containers are built in a second pass from these
memories. Nothing of the packages that wrote the file is imported, and there is no way to opt in to more.
"""

from __future__ import annotations

import io
import math
import mmap
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from edgewise.errors import CheckpointError, UnsafeCheckpointError

CHECKPOINT_CLASS = "fairchem.core.units.mlip_unit.api.inference.MLIPInferenceCheckpoint"
"""The class that the format's top-level object names (MODEL.md section 13)."""

LARGEST_PICKLE = 64 * 1024**2
"""Bytes; the structure of a real checkpoint takes less than one megabyte."""

STORAGE_TYPES = {
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
}

REBUILD_TENSOR = "torch._utils._rebuild_tensor_v2"
REBUILD_PARAMETER = "torch._utils._rebuild_parameter"
ORDERED_DICTS = ("collections.OrderedDict", "collections.defaultdict")
SETS = ("builtins.set", "builtins.frozenset")
OMEGACONF_CONTAINERS = ("omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig")
OMEGACONF_NODES = tuple(
    f"omegaconf.nodes.{name}Node"
    for name in ("Any", "String", "Integer", "Float", "Boolean", "Bytes", "Path", "Enum", "Union")
)
OMEGACONF_METADATA = ("omegaconf.base.Metadata", "omegaconf.base.ContainerMetadata", "omegaconf.base.SCMode")
MARKERS = ("typing.Any", *(f"builtins.{name}" for name in ("int", "float", "bool", "str", "bytes", "list", "dict", "tuple")))

OLD_NAMES = {
    "__builtin__.long": "builtins.int",
    **{f"__builtin__.{name}": f"builtins.{name}" for name in ("bool", "dict", "float", "frozenset", "int", "list")},
    **{f"__builtin__.{name}": f"builtins.{name}" for name in ("set", "str", "tuple")},
}
"""Names that early pickle protocols give to built-in types."""

ALLOWED = frozenset(
    (
        CHECKPOINT_CLASS,
        REBUILD_TENSOR,
        REBUILD_PARAMETER,
        *STORAGE_TYPES,
        *ORDERED_DICTS,
        *SETS,
        *OMEGACONF_CONTAINERS,
        *OMEGACONF_NODES,
        *OMEGACONF_METADATA,
        *MARKERS,
    )
)
"""Every name that a checkpoint may ask for."""


class _Inert:
    """Stands for whatever a file names: remembers arguments, state and items, and does nothing."""

    __slots__ = ("args", "items", "state")
    name = ""

    def __new__(cls, *args: Any) -> _Inert:
        made = object.__new__(cls)
        made.args, made.state, made.items = args, None, {}
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items[key] = value


class _StorageReference:
    """A block of numbers in the archive, named by the pickle."""

    __slots__ = ("dtype", "key", "n_values")

    def __init__(self, dtype: torch.dtype, key: str, n_values: int) -> None:
        self.dtype, self.key, self.n_values = dtype, key, n_values


class _Unpickler(pickle.Unpickler):
    """Builds inert stand-ins for allowed names and refuses all others."""

    def __init__(self, data: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(data))
        self._path = path
        self._classes: dict[str, type[_Inert]] = {}

    def find_class(self, module_name: str, global_name: str, /) -> type[_Inert]:
        name = OLD_NAMES.get(f"{module_name}.{global_name}", f"{module_name}.{global_name}")
        if name not in ALLOWED:
            message = (
                f"{self._path.name} asks for {name}, which is not part of the checkpoint format; "
                "the file was refused and nothing of it was run"
            )
            raise UnsafeCheckpointError(message)
        if name not in self._classes:
            self._classes[name] = type("_Inert", (_Inert,), {"__slots__": (), "name": name})
        return self._classes[name]

    def persistent_load(self, pid: Any, /) -> _StorageReference:
        match pid:
            case ("storage", type() as kind, str() as key, str(), int() as n_values) if (
                issubclass(kind, _Inert) and kind.name in STORAGE_TYPES and n_values >= 0
            ):
                return _StorageReference(STORAGE_TYPES[kind.name], key, n_values)
            case _:
                message = f"{self._path.name} refers to stored numbers in a form that is not part of the checkpoint format"
                raise CheckpointError(message)


class _Archive:
    """The zip file of a checkpoint, mapped into memory so that tensors are read when they are used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with zipfile.ZipFile(path) as archive:
                self._entries = {info.filename: info for info in archive.infolist()}
                pickles = [name for name in self._entries if name.endswith("/data.pkl")]
                if len(pickles) != 1:
                    self._fail("is a zip file but holds no checkpoint (no single data.pkl)")
                if self._entries[pickles[0]].file_size > LARGEST_PICKLE:
                    self._fail("holds a data.pkl that is larger than any checkpoint's")
                self.pickle = archive.read(pickles[0])
                self._prefix = pickles[0].removesuffix("data.pkl")
                byteorder = self._prefix + "byteorder"
                if byteorder in self._entries and archive.read(byteorder) != b"little":
                    self._fail("was written on a big-endian machine, which is not supported")
        except (zipfile.BadZipFile, NotImplementedError, EOFError, struct.error) as error:
            message = (
                f"{path.name} is not a complete checkpoint: it is cut short, damaged, or not a file that torch.save wrote"
            )
            raise CheckpointError(message) from error
        with path.open("rb") as file:
            # Private pages: tensors can be written to, the file cannot.
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._storages: dict[str, Tensor] = {}

    def storage(self, reference: _StorageReference) -> Tensor:
        """Return the numbers of a storage, [n_values]."""
        if reference.key not in self._storages:
            self._storages[reference.key] = self._read(reference)
        stored = self._storages[reference.key]
        if stored.dtype != reference.dtype or stored.numel() < reference.n_values:
            self._fail(f"uses stored numbers {reference.key!r} with two types or sizes")
        return stored

    def _read(self, reference: _StorageReference) -> Tensor:
        info = self._entries.get(f"{self._prefix}data/{reference.key}")
        if info is None:
            self._fail(f"lacks the stored numbers {reference.key!r}")
        n_bytes = reference.n_values * reference.dtype.itemsize
        if info.compress_type != zipfile.ZIP_STORED or info.file_size < n_bytes:
            self._fail(f"holds {info.file_size} bytes for the stored numbers {reference.key!r}, not {n_bytes}")
        if n_bytes == 0:
            return torch.empty(0, dtype=reference.dtype)
        # A local header is 30 bytes and two strings whose lengths stand at its end.
        header = self._memory[info.header_offset : info.header_offset + 30]
        if len(header) < 30 or header[:4] != b"PK\x03\x04":
            self._fail(f"has a damaged header at the stored numbers {reference.key!r}")
        name_length, extra_length = struct.unpack("<HH", header[26:30])
        start = info.header_offset + 30 + name_length + extra_length
        if start + n_bytes > len(self._memory):
            self._fail(f"ends inside the stored numbers {reference.key!r}")
        if info.CRC and zlib.crc32(memoryview(self._memory)[start : start + info.file_size]) != info.CRC:
            self._fail(f"is damaged: the checksum of the stored numbers {reference.key!r} is wrong")
        return torch.frombuffer(self._memory, dtype=reference.dtype, count=reference.n_values, offset=start)

    def _fail(self, what: str) -> NoReturn:
        message = f"{self._path.name} {what}"
        raise CheckpointError(message)


class _Builder:
    """Second pass: tensors and plain data out of stand-ins."""

    def __init__(self, archive: _Archive, path: Path) -> None:
        self._archive, self._path = archive, path
        self._done: dict[int, Any] = {}
        self._open: set[int] = set()

    def build(self, value: Any) -> Any:
        """Return plain data; shared parts are built once, cycles are refused."""
        if isinstance(value, (str, bytes, int, float, bool)) or value is None:
            return value
        key = id(value)
        if key not in self._done:
            if key in self._open:
                self._fail("refers to itself")
            self._open.add(key)
            self._done[key] = self._build(value)
            self._open.remove(key)
        return self._done[key]

    def _build(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self.build(key): self.build(item) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            items = [self.build(item) for item in value]
            return tuple(items) if isinstance(value, tuple) else items
        if isinstance(value, _Inert):
            return self._build_named(value)
        self._fail(f"holds a {type(value).__name__}, which is not part of the checkpoint format")

    def _build_named(self, value: _Inert) -> Any:
        name = value.name
        builders: dict[str, Callable[[_Inert], Any]] = {
            REBUILD_TENSOR: self._tensor,
            REBUILD_PARAMETER: lambda item: self.build(item.args[0]),
            **dict.fromkeys(ORDERED_DICTS, self._dict),
            **dict.fromkeys(SETS, lambda item: self.build(list(item.args[0]) if item.args else [])),
            **dict.fromkeys(OMEGACONF_CONTAINERS, lambda item: self.build(self._state(item)["_content"])),
            **dict.fromkeys(OMEGACONF_NODES, lambda item: self.build(self._state(item)["_val"])),
        }
        if name not in builders:
            self._fail(f"uses {name} as a value, where the checkpoint format has none")
        return builders[name](value)

    def _state(self, value: _Inert) -> dict[str, Any]:
        # Classes with slots pickle a pair (dict of the instance, dict of the slots).
        state = value.state[0] if isinstance(value.state, tuple) and value.state else value.state
        if not isinstance(state, dict):
            self._fail(f"holds a {value.name} without state")
        return state

    def _dict(self, value: _Inert) -> dict[Any, Any]:
        return {self.build(key): self.build(item) for key, item in value.items.items()}

    def _tensor(self, value: _Inert) -> Tensor:
        match value.args:
            case (_StorageReference() as reference, int() as offset, tuple() as size, tuple() as stride, *_):
                pass
            case _:
                self._fail("describes a tensor in a form that is not part of the checkpoint format")
        numbers = (offset, *size, *stride)
        if not all(isinstance(item, int) and item >= 0 for item in numbers) or len(size) != len(stride):
            self._fail(f"describes a tensor of size {size} and stride {stride}")
        if math.prod(size):
            last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
            if last >= reference.n_values or math.prod(size) > reference.n_values:
                self._fail(f"describes a tensor of size {size} that reaches outside its {reference.n_values} numbers")
        return torch.as_strided(self._archive.storage(reference), size, stride, offset)

    def _fail(self, what: str) -> NoReturn:
        message = f"{self._path.name} {what}"
        raise CheckpointError(message)


def read_pickled_checkpoint(path: Path) -> dict[str, Any]:
    """Read a `.pt` checkpoint as plain data and tensors.

    Args:
        path: The file.

    Returns:
        The fields of the checkpoint object by name; tensors share the mapped memory of the file.

    Raises:
        UnsafeCheckpointError: The file asks for a name outside the format.
        CheckpointError: The file is cut short or damaged, or holds something else.
    """
    archive = _Archive(path)
    try:
        top = _Unpickler(archive.pickle, path).load()
        if not isinstance(top, _Inert) or top.name != CHECKPOINT_CLASS:
            kind = top.name if isinstance(top, _Inert) else type(top).__name__
            message = f"{path.name} holds a {kind}, not an inference checkpoint of this format"
            raise CheckpointError(message)
        builder = _Builder(archive, path)
        return builder.build(builder._state(top))
    except RecursionError as error:
        message = f"{path.name} is nested more deeply than any checkpoint"
        raise CheckpointError(message) from error
    # Damaged pickles fail in many ways; the unpickler runs no code of the file, so each only means "not readable".
    except (
        pickle.UnpicklingError,
        EOFError,
        AttributeError,
        IndexError,
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        MemoryError,
        ImportError,
        UnicodeDecodeError,
    ) as error:
        if isinstance(error, CheckpointError):
            raise
        message = f"{path.name} is damaged: its data.pkl cannot be read ({error})"
        raise CheckpointError(message) from error
