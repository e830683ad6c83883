"""What a result has to be before anything is timed: its errors against float64, and how large they may be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

BOUNDS: dict[str, dict[str, float]] = {
    "float32": {"energy_meV_per_atom": 1.0, "forces_relative": 1e-4, "stress_relative": 1e-3},
    "tf32": {"energy_meV_per_atom": 20.0, "forces_relative": 5e-3, "stress_relative": 2e-2},
    # 16-bit operands keep as many bits as TF32, with a smaller range.
    "fast": {"energy_meV_per_atom": 20.0, "forces_relative": 1e-2, "stress_relative": 2e-2},
    "float64": {"energy_meV_per_atom": 1e-5, "forces_relative": 1e-8, "stress_relative": 1e-8},
}
"""Largest errors against float64 by precision; those of forces and stress are relative in the L2 norm."""


class CheckFailedError(RuntimeError):
    """Results are further from what they should be than is allowed, so nothing is timed."""


def require(name: str, value: float, bound: float) -> None:
    """Raise unless a value is within its bound; NaN is not.

    Raises:
        CheckFailedError: It is not.
    """
    if math.isnan(value) or value > bound:
        message = f"{name} is {value:.3g}, allowed is {bound:.3g}; nothing was timed"
        raise CheckFailedError(message)


def errors(outcome: dict[str, Any], exact: dict[str, Any], n_atoms: int | None = None) -> dict[str, float]:
    """Return the errors of energy (meV/atom), forces and stress (relative L2).

    Args:
        outcome: Energy, forces and stress as numbers, lists or arrays, of one frame or of several.
        exact: The same in float64.
        n_atoms: Of a frame; None takes the number of forces.
    """

    def difference(name: str) -> tuple[np.ndarray, np.ndarray]:
        a, b = (np.asarray(item[name], dtype=float).ravel() for item in (outcome, exact))
        if a.shape != b.shape:
            message = f"{name} has {a.size} values, the exact one {b.size}; nothing was timed"
            raise CheckFailedError(message)
        return a - b, b

    def relative(name: str) -> float:
        wrong, right = difference(name)
        return float(np.linalg.norm(wrong) / np.linalg.norm(right))

    per_frame = len(np.asarray(exact["forces"]).reshape(-1, 3)) if n_atoms is None else n_atoms
    found = {
        "energy_meV_per_atom": 1000 * float(np.abs(difference("energy")[0]).max()) / per_frame,
        "forces_relative": relative("forces"),
        "stress_relative": relative("stress"),
    }
    return {name: float(f"{value:.3g}") for name, value in found.items()}


def require_errors(name: str, found: dict[str, float], precision: str) -> None:
    """Raise unless all errors are within the bounds of a precision.

    Raises:
        CheckFailedError: One is not.
    """
    for quantity, bound in BOUNDS[precision].items():
        require(f"{quantity} of {name} against float64", found[quantity], bound)
