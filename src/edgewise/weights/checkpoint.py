"""A checkpoint as plain data, and the one function that reads it from wherever it is."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from edgewise.errors import CheckpointError, InvalidSettingsError, ModelNotFoundError, UnsupportedModelError

WRAPPER_PREFIX = "module."
AVERAGING_COUNTER = "n_averaged"


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint.

    Attributes:
        model_config: Sizes and options, in the field's format (MODEL.md section 13.2).
        tasks_config: Tasks with their normalisers and element references (MODEL.md section 13.3).
        weights: The averaged weights by parameter name.
        name: Short name for messages.
        source: The file that it came from, or None.
        card: What people should know about the model; for embedded models also the elements that it takes.
    """

    model_config: Mapping[str, Any]
    tasks_config: Sequence[Mapping[str, Any]]
    weights: Mapping[str, Tensor]
    name: str
    source: Path | None = None
    card: Mapping[str, Any] = field(default_factory=dict)


def read_checkpoint(path_or_name: str | PathLike[str], *, revision: str | None = None) -> Checkpoint:
    """Read a checkpoint.

    Args:
        path_or_name: A `.pt` of the field, a `.safetensors` written by Edgewise, the name of an embedded model, or the
            name of a published one, which is downloaded with the user's own cache and token.
        revision: Branch, tag or commit of a published model; None takes the newest.

    Raises:
        InvalidSettingsError: A revision was given for something that has none.
        ModelNotFoundError: No file and no model of this name.
        ModelAccessError: The published model is gated or out of reach.
        CheckpointError: The file cannot be used; the message says why.
    """
    from edgewise.weights import embedded, hub
    from edgewise.weights.cache import read_through_cache
    from edgewise.weights.convert import read_safetensors

    if not isinstance(path_or_name, (str, PathLike)):
        message = f"the model is a {type(path_or_name).__name__}; give a file or a name, for example 'emt-mini'"
        raise ModelNotFoundError(message)
    name = str(path_or_name)
    path = Path(path_or_name).expanduser()
    if revision is not None and (path.exists() or name not in hub.published_names()):
        message = f"revision={revision!r} was given, but {name} is not a published model; leave it out"
        raise InvalidSettingsError(message)
    if path.is_file():
        if path.suffix == ".safetensors":
            return read_safetensors(path)
        return read_through_cache(path, path.stem)
    if path.is_dir():
        message = f"{name} is a folder; give a checkpoint file (.pt or .safetensors)"
        raise ModelNotFoundError(message)
    if name in embedded.embedded_names():
        return embedded.read_embedded(name)
    if name in hub.published_names():
        return read_through_cache(hub.download(name, revision), name)
    known = [*embedded.embedded_names(), *hub.published_names()]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    message = (
        f"there is no file and no model {name!r}; {hint}models: {', '.join(known)}; or give the path of a checkpoint"
    )
    raise ModelNotFoundError(message)


def checkpoint_from_fields(fields: Mapping[str, Any], name: str, source: Path) -> Checkpoint:
    """Turn the fields of a `.pt` checkpoint into a `Checkpoint`.

    Raises:
        CheckpointError: A field is missing or of the wrong kind.
        UnsupportedModelError: The file is of another architecture.
    """
    for key, kind in (("model_config", dict), ("tasks_config", list), ("ema_state_dict", dict)):
        value = fields.get(key)
        if isinstance(value, tuple) and kind is list:
            value = list(value)
        if not isinstance(value, kind) or not value:
            message = f"{source.name} has no usable {key}; a checkpoint for inference needs one"
            raise CheckpointError(message)
    if not all(isinstance(task, dict) for task in fields["tasks_config"]):
        message = f"{source.name} has a tasks_config whose entries are not all dicts"
        raise CheckpointError(message)
    weights: dict[str, Tensor] = {}
    for key, value in fields["ema_state_dict"].items():
        name_in_model = _without_wrappers(str(key))
        if name_in_model == AVERAGING_COUNTER:
            continue
        if not isinstance(value, Tensor):
            message = f"{source.name} holds a {type(value).__name__} as parameter {key}, not a tensor"
            raise CheckpointError(message)
        if name_in_model in weights:
            message = f"{source.name} holds the parameter {name_in_model} twice"
            raise CheckpointError(message)
        weights[name_in_model] = value
    if not weights:
        message = f"{source.name} has no averaged weights (ema_state_dict holds no tensors)"
        raise CheckpointError(message)
    if "backbone" not in fields["model_config"]:
        target = fields["model_config"].get("_target_", "unnamed")
        message = f"{source.name} is of the architecture {target}; only eSCN-MD models (UMA, eSEN) are supported"
        raise UnsupportedModelError(message)
    return Checkpoint(fields["model_config"], list(fields["tasks_config"]), weights, name, source)


def _without_wrappers(key: str) -> str:
    while key.startswith(WRAPPER_PREFIX):
        key = key.removeprefix(WRAPPER_PREFIX)
    return key
