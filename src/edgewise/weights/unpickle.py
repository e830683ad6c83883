"""Reads the field's `.pt` checkpoints without running anything that the file asks for.

A pickle may name any callable and have it called. Here every name is looked up in a closed list, and what stands for it
is inert. Nothing of the packages that wrote the file is imported, and there is no way to opt in to more. This module
knows the names and fields of the format; it must not know networks or options.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from edgewise.errors import CheckpointError
from edgewise.weights.archive import TorchArchive
from edgewise.weights.opcodes import Global, Instance, Vocabulary, interpret
from edgewise.weights.plain import CONTAINERS, NODES, plain_value

CHECKPOINT_CLASS = "fairchem.core.units.mlip_unit.api.inference.MLIPInferenceCheckpoint"
"""The class that the format's top-level object names (MODEL.md section 13)."""

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
TYPES = (
    *(f"typing.{name}" for name in ("Any", "Dict", "List", "Tuple")),
    *(f"builtins.{name}" for name in ("int", "float", "bool", "str", "bytes", "list", "dict", "tuple", "set")),
)
"""Types that OmegaConf notes beside its values."""

METADATA = ("omegaconf.base.Metadata", "omegaconf.base.ContainerMetadata")
CONFIGURATIONS = ("model_config", "tasks_config")
AVERAGED, TRAINED = "ema_state_dict", "model_state_dict"
MOST_DIMENSIONS = 16
LARGEST_COUNT = 2**62


@dataclass(frozen=True)
class _Storage:
    """A block of numbers in the archive, named by the description."""

    dtype: torch.dtype
    key: str
    n_values: int


@dataclass(frozen=True)
class _Tensor:
    """A tensor, described but not read."""

    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def read_pickled_checkpoint(path: Path, *, training_weights: bool = False) -> dict[str, Any]:
    """Read a `.pt` checkpoint as plain data and tensors.

    Args:
        path: The file.
        training_weights: Also read the weights that are not averaged, which are as large again and never evaluated.

    Returns:
        The fields of the checkpoint object by name; tensors share the mapped memory of the file.

    Raises:
        UnsafeCheckpointError: The file asks for a name outside the format.
        CheckpointError: The file cannot be read, is cut short or damaged, or holds something else.
    """
    archive = TorchArchive(path)
    top = interpret(archive.description(), _Reader(path.name).vocabulary(), path.name)
    if not isinstance(top, Instance) or top.name != CHECKPOINT_CLASS:
        kind = top.name if isinstance(top, Instance | Global) else type(top).__name__
        message = f"{path.name} holds a {kind}, not an inference checkpoint of this format"
        raise CheckpointError(message)
    state = top.state
    fields = {name: plain_value(state[name], f"{path.name}: {name}") for name in CONFIGURATIONS if name in state}
    for name in (AVERAGED, TRAINED) if training_weights else (AVERAGED,):
        if name in state:
            fields[name] = _read_tensors(state[name], archive, f"{path.name}: {name}")
    return fields


class _Reader:
    """The functions that stand for the format's callables; each checks all that it is given."""

    def __init__(self, label: str) -> None:
        self._label = label

    def vocabulary(self) -> Vocabulary:
        called: dict[str, Callable[[tuple[Any, ...]], Any]] = {
            "torch._utils._rebuild_tensor_v2": self.tensor,
            "torch._utils._rebuild_parameter": self.parameter,
            "collections.OrderedDict": self.new_dict,
            "collections.defaultdict": self.new_dict,
            "builtins.set": self.items,
            "builtins.frozenset": self.items,
        }
        return Vocabulary(
            mentioned=frozenset((*STORAGE_TYPES, *TYPES)),
            built=frozenset((CHECKPOINT_CLASS, *CONTAINERS, *NODES, *METADATA)),
            called=called,
            persistent=self.storage,
        )

    def storage(self, identifier: Any) -> _Storage:
        match identifier:
            case ("storage", Global(name), str() as key, str(), int() as n_values) if (
                name in STORAGE_TYPES and 0 <= n_values < LARGEST_COUNT
            ):
                return _Storage(STORAGE_TYPES[name], key, n_values)
            case _:
                return self._fail("refers to stored numbers in a form that is not part of the checkpoint format")

    def tensor(self, arguments: tuple[Any, ...]) -> _Tensor:
        match arguments:
            case (_Storage() as storage, int() as offset, tuple() as size, tuple() as stride, *_):
                tensor = _Tensor(storage, offset, cast("tuple[int, ...]", size), cast("tuple[int, ...]", stride))
            case _:
                return self._fail("describes a tensor in a form that is not part of the checkpoint format")
        if not _has_counts(tensor):
            self._fail("describes a tensor of size and stride that no tensor has")
        if not _lies_inside(tensor):
            self._fail(f"describes a tensor of size {size} that reaches outside its {storage.n_values} numbers")
        return tensor

    def parameter(self, arguments: tuple[Any, ...]) -> _Tensor:
        if not arguments or not isinstance(arguments[0], _Tensor):
            self._fail("describes a parameter in a form that is not part of the checkpoint format")
        return arguments[0]

    def new_dict(self, arguments: tuple[Any, ...]) -> dict[Any, Any]:
        # Items follow by later opcodes; the one argument there may be is the default's type, which nobody needs.
        if len(arguments) > 1 or (arguments and not isinstance(arguments[0], Global)):
            self._fail("describes a dict in a form that is not part of the checkpoint format")
        return {}

    def items(self, arguments: tuple[Any, ...]) -> list[Any]:
        match arguments:
            case (list() as items,):
                return list(cast("list[Any]", items))
            case _:
                return self._fail("describes a set in a form that is not part of the checkpoint format")

    def _fail(self, what: str) -> NoReturn:
        message = f"{self._label} {what}"
        raise CheckpointError(message)


def _has_counts(tensor: _Tensor) -> bool:
    """Return whether offset, size and stride are counts. Only then may they be computed with, or be shown."""
    numbers = (tensor.offset, *tensor.size, *tensor.stride)
    if len(tensor.size) != len(tensor.stride) or len(tensor.size) > MOST_DIMENSIONS:
        return False
    return all(type(item) is int and 0 <= item < LARGEST_COUNT for item in numbers)


def _lies_inside(tensor: _Tensor) -> bool:
    """Return whether every element is in the storage and none stands for many, which could fill any memory."""
    n_elements = math.prod(tensor.size)
    if n_elements == 0:
        return tensor.offset <= tensor.storage.n_values
    last = tensor.offset + sum((n - 1) * step for n, step in zip(tensor.size, tensor.stride, strict=True))
    return last < tensor.storage.n_values and n_elements <= tensor.storage.n_values


def _read_tensors(described: Any, archive: TorchArchive, where: str) -> Any:
    """Return a dict of tensors; what is no dict is returned as it is, for the caller to name."""
    if not isinstance(described, dict):
        return described
    tensors: dict[str, Tensor] = {}
    for key, value in cast("dict[Any, Any]", described).items():
        if not isinstance(key, str) or not key.isprintable() or not isinstance(value, _Tensor):
            shown = ascii(key)[:80] if isinstance(key, str) else f"a {type(key).__name__}"
            message = (
                f"{where} holds a {type(value).__name__.strip('_')} as parameter {shown}, not a tensor under a name"
            )
            raise CheckpointError(message)
        storage = value.storage
        numbers = archive.storage(storage.key, storage.dtype, storage.n_values)
        tensors[key] = numbers.as_strided(value.size, value.stride, value.offset)
    return tensors
