"""Turn what a description says about configurations into plain data.

OmegaConf containers become dicts and lists. References of the kind "${...}" stay text: what they refer to is not in the
file, and an option that matters is refused later if its value is text. This module must not know any option.
"""

from __future__ import annotations

from typing import Any, cast

from edgewise.errors import CheckpointError
from edgewise.weights.opcodes import Global, Instance

MOST_VALUES = 200_000
"""Shared parts count each time they appear, so that a small file cannot grow without bound when it is written out."""

DEEPEST = 64
LARGEST_INTEGER = 2**63
CONTAINERS = ("omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig")
NODES = tuple(f"omegaconf.nodes.{name}Node" for name in ("Any", "String", "Integer", "Float", "Boolean"))


def plain_value(value: Any, where: str) -> Any:
    """Return a configuration as dicts with text keys, lists, text, numbers, booleans and None.

    Args:
        value: What the pickle machine built.
        where: File and field, for messages.

    Raises:
        CheckpointError: It holds something else, or it is too large or refers to itself.
    """
    return _Converter(where).convert(value, 0)


class _Converter:
    """Counts what it converts."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._n_values = 0

    def convert(self, value: Any, depth: int) -> Any:
        value = _unwrapped(value)
        self._n_values += 1
        if self._n_values > MOST_VALUES or depth > DEEPEST:
            message = f"{self._where} is larger than any configuration, or refers to itself"
            raise CheckpointError(message)
        if value is None or isinstance(value, bool | float):
            return value
        if isinstance(value, int) and abs(value) < LARGEST_INTEGER:
            return value
        if isinstance(value, str):
            # Lone surrogates cannot be written to any file again.
            return value.encode(errors="replace").decode()
        if isinstance(value, list | tuple):
            return [self.convert(item, depth + 1) for item in cast("list[Any]", value)]
        if isinstance(value, dict):
            return self._convert_dict(cast("dict[Any, Any]", value), depth)
        message = f"{self._where} holds {_kind_of(value)}, which is not part of the checkpoint format"
        raise CheckpointError(message)

    def _convert_dict(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        # Keys become text here as they do in the JSON of a converted file, so that both give the same.
        result = {self.convert(str(key), depth + 1): self.convert(item, depth + 1) for key, item in value.items()}
        if len(result) != len(value):
            message = f"{self._where} holds two keys that read the same"
            raise CheckpointError(message)
        return result


def _unwrapped(value: Any) -> Any:
    """Return what an OmegaConf container or node holds; anything else as it is."""
    if not isinstance(value, Instance) or value.name not in (*CONTAINERS, *NODES):
        return value
    content = value.state.get("_content" if value.name in CONTAINERS else "_val")
    # A chain of wrappers is no configuration, and could be endless.
    return value if isinstance(content, Instance) else content


def _kind_of(value: Any) -> str:
    if isinstance(value, Global):
        return f"a type ({value.name})"
    if isinstance(value, Instance):
        return f"a misplaced {value.name}"
    return f"a {type(value).__name__.strip('_')}"
