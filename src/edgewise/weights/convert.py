"""Checkpoints as safetensors, and back to the field's `.pt`. Files appear whole or not at all.

A converted file is complete in itself: the configurations stand as JSON in its header, with a checksum over them and the
weights, which safetensors itself does not have. The JSON file beside it is for people and is never read.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import pickle
import tempfile
import types
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from edgewise.errors import CheckpointError
from edgewise.so3 import axis_swap_matrix
from edgewise.weights.checkpoint import AVERAGING_COUNTER, WRAPPER_PREFIX, Checkpoint
from edgewise.weights.unpickle import CHECKPOINT_CLASS

FORMAT = "edgewise"
FORMAT_VERSION = "1"
JSON_FIELDS = ("model_config", "tasks_config", "card")
UNITS = {"energy": "eV", "forces": "eV/Å", "stress": "eV/Å^3"}


def write_safetensors(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint as one safetensors file, and a JSON card for people beside it.

    Args:
        checkpoint: What to write.
        path: Target, with the suffix `.safetensors`.

    Raises:
        OSError: The folder cannot be written, or the disk is full; nothing half-written stays.
    """
    write_weights(checkpoint, path)
    card = json.dumps(describe_checkpoint(checkpoint), indent=2, ensure_ascii=False) + "\n"
    write_whole(path.with_suffix(".json"), lambda target: target.write_text(card, encoding="utf-8"))


def write_weights(checkpoint: Checkpoint, path: Path) -> None:
    """Write the safetensors file alone.

    Args:
        checkpoint: What to write.
        path: Target, with the suffix `.safetensors`.

    Raises:
        OSError: The folder cannot be written, or the disk is full; nothing half-written stays.
    """
    metadata = {"format": FORMAT, "format_version": FORMAT_VERSION, "name": checkpoint.name}
    metadata |= {name: json.dumps(_plain(getattr(checkpoint, name))) for name in JSON_FIELDS}
    weights = _separate(checkpoint.weights)
    metadata["checksum"] = _checksum(metadata, weights)
    write_whole(path, lambda target: save_file(weights, target, metadata=metadata))


def read_safetensors(path: Path, *, require_checksum: bool = False) -> Checkpoint:
    """Read a file that `write_safetensors` wrote.

    Args:
        path: The file.
        require_checksum: Also refuse a file without a checksum, for copies that nobody looks after.

    Raises:
        CheckpointError: The file cannot be read, is damaged, or was not written by Edgewise.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            _check_metadata(metadata, path)
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            fields = {name: json.loads(metadata[name]) for name in JSON_FIELDS}
    except (SafetensorError, json.JSONDecodeError, RecursionError) as error:
        message = f"{path.name} is damaged or cut short: {error}"
        raise CheckpointError(message) from error
    except OSError as error:
        message = f"{path.name} cannot be read: {error}"
        raise CheckpointError(message) from error
    stated = metadata.get("checksum")
    if (stated is not None or require_checksum) and stated != _checksum(metadata, weights):
        message = f"{path.name} is damaged: its checksum is wrong or missing; copy it or convert the original .pt again"
        raise CheckpointError(message)
    if [type(fields[name]) for name in JSON_FIELDS] != [dict, list, dict] or not all(
        isinstance(task, dict) for task in fields["tasks_config"]
    ):
        message = f"{path.name} is damaged: its configurations are not of the kinds that Edgewise writes"
        raise CheckpointError(message)
    return Checkpoint(**fields, weights=weights, name=metadata.get("name", path.stem), source=path)


def write_pt(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint in the field's own format.

    Args:
        checkpoint: What to write; its weights become both the averaged and the plain ones.
        path: Target.

    Raises:
        OSError: The folder cannot be written, or the disk is full; nothing half-written stays.
    """
    weights = _separate(checkpoint.weights)
    for degree in range(int(checkpoint.model_config["backbone"].get("lmax") or 2) + 1):
        # Constant tables that the format carries and this package computes.
        weights.setdefault(f"backbone.Jd_{degree}", axis_swap_matrix(degree))
    averaged: dict[str, Tensor] = {AVERAGING_COUNTER: torch.tensor(1, dtype=torch.int64)}
    averaged |= {WRAPPER_PREFIX + name: tensor for name, tensor in weights.items()}
    stand_in = _FieldCheckpoint(
        model_config=_plain(checkpoint.model_config),
        model_state_dict=weights,
        ema_state_dict=averaged,
        tasks_config=_plain(checkpoint.tasks_config),
    )
    write_whole(path, lambda target: torch.save(stand_in, target, pickle_module=_PICKLE_MODULE))


def describe_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what people should know about a checkpoint, as plain data."""
    backbone = checkpoint.model_config.get("backbone", {})
    sizes = ("sphere_channels", "hidden_channels", "num_layers", "lmax", "mmax", "cutoff", "num_experts")
    tasks = [
        {"name": task.get("name"), "datasets": task.get("datasets"), "unit": UNITS.get(str(task.get("property")))}
        for task in checkpoint.tasks_config
    ]
    return {
        "name": checkpoint.name,
        "model_id": checkpoint.model_config.get("model_id"),
        "written_by": f"edgewise {importlib.metadata.version('edgewise')}",
        "source": None if checkpoint.source is None else checkpoint.source.name,
        "source_sha256": None if checkpoint.source is None else file_hash(checkpoint.source),
        "n_parameters": sum(tensor.numel() for tensor in checkpoint.weights.values()),
        "backbone": {name: backbone[name] for name in sizes if name in backbone},
        "tasks": tasks,
        **checkpoint.card,
    }


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file aside, in the same folder, and rename it when it is complete.

    Args:
        path: Final place.
        write: Writes to the path that it is given.

    Raises:
        OSError: The folder cannot be written, or the disk is full; nothing half-written stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    aside = Path(name)
    try:
        write(aside)
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.chmod(0o644)
        aside.replace(path)
    except (SafetensorError, RuntimeError) as error:
        # This is how safetensors and torch report what the system said about the file.
        message = f"{path} was not written: {str(error).partition(chr(10))[0]}"
        raise OSError(message) from error
    finally:
        aside.unlink(missing_ok=True)


def _check_metadata(metadata: Mapping[str, str], path: Path) -> None:
    if metadata.get("format") != FORMAT or any(name not in metadata for name in JSON_FIELDS):
        message = (
            f"{path.name} is a safetensors file without the configurations that Edgewise puts into its header; "
            "convert the original .pt with `edgewise convert`"
        )
        raise CheckpointError(message)
    if metadata.get("format_version") != FORMAT_VERSION:
        message = (
            f"{path.name} has format version {metadata.get('format_version')!r}; this version of Edgewise reads "
            f"{FORMAT_VERSION!r}: convert the original .pt again"
        )
        raise CheckpointError(message)


def _separate(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors that fill memory of their own: safetensors refuses shared memory, and views would save all of it."""
    separate: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, given in weights.items():
        tensor = given.detach().cpu()
        fills = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
        if not fills or tensor.data_ptr() in taken:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        taken.add(tensor.data_ptr())
        separate[name] = tensor
    return separate


def _checksum(metadata: Mapping[str, str], weights: Mapping[str, Tensor]) -> str:
    """Return a checksum over configurations, names, types, shapes and numbers."""
    value = zlib.crc32("\n".join(metadata[name] for name in JSON_FIELDS).encode())
    for name in sorted(weights):
        tensor = weights[name]
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, value)
    return f"crc32:{value:08x}"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


@dataclass
class _FieldCheckpoint:
    """Has the fields of the format's checkpoint class, and is written under that class's name."""

    model_config: dict[str, Any]
    model_state_dict: dict[str, Tensor]
    ema_state_dict: dict[str, Tensor]
    tasks_config: list[Any]


class _Pickler(pickle._Pickler):  # noqa: SLF001 only this one lets a name be written without importing it
    """Writes the name of the format's class where `_FieldCheckpoint` stands; that package is not needed for it."""

    def save_global(self, obj: Any, name: str | None = None) -> None:
        """Write a reference to a class or function."""
        if obj is not _FieldCheckpoint:
            super().save_global(obj, name)  # pyright: ignore[reportAttributeAccessIssue]
            return
        module, _, class_name = CHECKPOINT_CLASS.rpartition(".")
        # The standard library's type stubs lack the methods of this class.
        self.write(pickle.GLOBAL + f"{module}\n{class_name}\n".encode())  # pyright: ignore[reportAttributeAccessIssue]
        self.memoize(obj)  # pyright: ignore[reportAttributeAccessIssue]

    # The base class finds the method for types through this table.
    dispatch = {**pickle._Pickler.dispatch, type: save_global}  # noqa: RUF012, SLF001  # pyright: ignore[reportAssignmentType]


_PICKLE_MODULE = types.SimpleNamespace(Pickler=_Pickler, dumps=pickle.dumps, __name__="pickle")
