"""One table of tolerances. A change here needs its reason in the commit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import edgewise


@dataclass(frozen=True)
class Tolerance:
    """Bounds on differences.

    Attributes:
        energy: eV per atom.
        energy_is_relative: Multiply `energy` by max(1, |E per atom|).
        forces: Relative to the largest force, at least `forces_floor`.
        forces_floor: eV/Å.
        stress: Relative to the largest stress entry, at least `stress_floor`.
        stress_floor: eV/Å^3.
    """

    energy: float
    energy_is_relative: bool
    forces: float
    forces_floor: float
    stress: float
    stress_floor: float


GOLDEN = Tolerance(1e-9, False, 1e-9, 1e-3, 1e-9, 1e-4)
"""Parity with the stored float64 outputs of the peer."""

T64 = Tolerance(1e-9, False, 1e-8, 1e-3, 1e-8, 1e-4)
T32 = Tolerance(5e-6, True, 1e-4, 5e-2, 1e-4, 1e-3)
TTF32 = Tolerance(2e-4, True, 2e-2, 5e-2, 2e-2, 1e-3)

HESSIAN_GOLDEN = 1e-8
"""Relative to the largest entry."""


def assert_close(
    given: edgewise.potential.StructureResult,
    expected: edgewise.potential.StructureResult,
    tolerance: Tolerance,
    *,
    energy_offset: float = 0.0,
) -> None:
    """Compare the results of one structure; `energy_offset` is taken off before the energy's size is judged."""
    n_atoms = len(expected.forces)
    per_atom = abs(expected.energy - energy_offset) / n_atoms
    bound = tolerance.energy * (max(1.0, per_atom) if tolerance.energy_is_relative else 1.0)
    difference = abs(given.energy - expected.energy) / n_atoms
    assert difference <= bound, f"energy off by {difference:.3g} eV/atom, allowed {bound:.3g}"
    _assert_entries("forces", given.forces, expected.forces, tolerance.forces, tolerance.forces_floor)
    assert np.isnan(given.stress).any() == np.isnan(expected.stress).any(), "stress in one of the results only"
    if not np.isnan(expected.stress).any():
        _assert_entries("stress", given.stress, expected.stress, tolerance.stress, tolerance.stress_floor)


def _assert_entries(name: str, given: np.ndarray, expected: np.ndarray, relative: float, floor: float) -> None:
    assert given.shape == expected.shape
    bound = relative * max(floor, float(np.abs(expected).max()))
    difference = float(np.abs(given - expected).max())
    assert difference <= bound, f"{name} off by {difference:.3g}, allowed {bound:.3g}"
