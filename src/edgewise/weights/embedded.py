"""Models that ship inside the package: `data/NAME.safetensors`, each with its card in `data/NAME.json`."""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewise.errors import ModelNotFoundError
from edgewise.weights.convert import read_safetensors

if TYPE_CHECKING:
    from edgewise.weights.checkpoint import Checkpoint


def embedded_names() -> tuple[str, ...]:
    """Return the names of the models that ship inside the package."""
    return tuple(sorted(path.stem for path in _folder().glob("*.safetensors")))


def read_embedded(name: str) -> Checkpoint:
    """Read an embedded model.

    Raises:
        ModelNotFoundError: There is none of this name.
    """
    return read_safetensors(_file(name, ".safetensors"))


def read_card(name: str) -> dict[str, Any]:
    """Return the card of an embedded model: what it was trained on, its errors, and what it is not for.

    Raises:
        ModelNotFoundError: There is none of this name.
    """
    return json.loads(_file(name, ".json").read_text(encoding="utf-8"))


def _folder() -> Path:
    return Path(str(importlib.resources.files("edgewise"))) / "data"


def _file(name: str, suffix: str) -> Path:
    if name not in embedded_names():
        message = f"there is no embedded model {name!r}; embedded are {', '.join(embedded_names()) or 'none'}"
        raise ModelNotFoundError(message)
    return _folder() / f"{name}{suffix}"
