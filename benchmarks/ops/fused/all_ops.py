"""The benchmarks of this folder, found by their files, so that none is forgotten."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
HELPERS = {"all_ops", "problem", "try_out"}


def _all(folder: Path, package: str) -> tuple[Any, ...]:
    names = sorted(path.stem for path in folder.glob("*.py") if path.stem not in HELPERS)
    return tuple(importlib.import_module(f"{package}.{name}") for name in names)


OPS = _all(FOLDER, "ops.fused")
"""Kernels beside plain PyTorch."""

IN_CUDA = _all(FOLDER / "cuda", "ops.fused.cuda")
"""Kernels in CUDA C++ beside those in Triton; they need a GPU."""
