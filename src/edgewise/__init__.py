"""Edgewise runs UMA and every other eSCN-MD interatomic potential, exactly and fast.

Names are loaded when they are first used: `import edgewise` by itself loads neither torch nor ASE.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgewise import errors
    from edgewise.adapters.ase import Calculator
    from edgewise.potential import Potential, load
    from edgewise.results import Results, StructureResult
    from edgewise.settings import InferenceSettings

    __version__: str

__all__ = ["Calculator", "InferenceSettings", "Potential", "Results", "StructureResult", "errors", "load"]

_HOMES = {
    "Calculator": "edgewise.adapters.ase",
    "InferenceSettings": "edgewise.settings",
    "Potential": "edgewise.potential",
    "Results": "edgewise.results",
    "StructureResult": "edgewise.results",
    "load": "edgewise.potential",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("edgewise")
    if name == "errors":
        return importlib.import_module("edgewise.errors")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    message = f"module 'edgewise' has no attribute {name!r}"
    raise AttributeError(message)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
