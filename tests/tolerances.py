"""One table of tolerances. A change here needs its reason in the commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

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
FAST = Tolerance(1e-3, True, 2e-2, 5e-2, 2e-2, 1e-3)
"""Rows of edges in float16: each value and each operand is rounded at up to 5e-4, and tiny networks have few to average."""

TTF32 = Tolerance(2e-4, True, 2e-2, 5e-2, 2e-2, 1e-3)

HESSIAN_GOLDEN = 1e-8
"""Relative to the largest entry."""

HESSIAN32 = 1e-4
"""Relative to the largest entry: that of the forces in `T32`, since one more derivative of float32 is as good."""

# Operations in float64, relative to the largest entry of each tensor, at least 1.

KERNEL64 = 1e-13
"""A kernel and the reference: the same products, some dozens of them added in another order."""

REORDERED64 = 1e-14
"""Two ways to add the same few values."""

MESSAGE64 = 1e-12
"""A whole message of kernels and the reference's: sums over all inputs of the SO(2) maps on top of `KERNEL64`."""

EDGE_DEGREE_RADIAL64 = 2e-15
"""Sums of the edge-degree embedding and gradients of its radial factors: one product and a few sums, so some units in the
last place."""

EDGE_DEGREE_ROTATION64 = 1e-14
"""Gradients of the edge-degree embedding's rotations, which add over the channels too."""


class EntryTolerance(TypedDict):
    """Bounds on each entry, as `torch.testing.assert_close` takes them."""

    rtol: float
    atol: float


def _entries(rtol: float, atol: float | None = None) -> EntryTolerance:
    return {"rtol": rtol, "atol": rtol if atol is None else atol}


# Operations, entry by entry.

BLOCKS_KEPT = _entries(1e-6, 1e-7)
"""Kept and joined m-blocks in float32: the same numbers through the same kernels, products may be blocked differently."""

OPTIMIZATION32 = _entries(1e-5, 1e-6)
"""A message with an optimization and without it in float32: sums in another order."""

GATE = _entries(1e-5, 1e-6)
"""The gate's kernel in float32, values and first derivatives: the GPU's own exponential is good to some units in 1e7."""

GATE_SECOND = _entries(2e-5, 2e-6)
"""Its second derivatives: sums of about twice as many terms as the first ones."""

GATE_HIGHER64 = _entries(1e-12)
"""Third derivatives of the gate: float64, in which it is the reference to the last places."""

GATE_HIGHER = _entries(1e-4, 1e-5)
"""Third derivatives of the gate's kernel in float32, of cancelling sums with still more terms."""

GATE_16BIT = _entries(2e-2)
"""The gate in bfloat16, which has 8 bits."""

WRITTEN_OUT = _entries(1e-12)
"""Values and steps on nodes that are written out, and the reference or autograd: float64, sums in another order."""

WRITTEN_OUT_FIRST = _entries(1e-11)
"""First derivatives of the written-out message and feed-forward layer: sums over its inputs on top of `WRITTEN_OUT`."""

WRITTEN_OUT_SECOND = _entries(1e-10)
"""Their second derivatives, and adjoints through the geometry: sums of sums, of entries that are hundreds."""

FLOAT32_SUM = 1e-6
"""A sum of products in float32, relative to the sum of its terms' sizes: some roundings of 2^-24 each."""

ROUNDED64 = _entries(1e-13, 1e-15)
"""One formula for a value in float64, without sums."""

CENTRAL_DIFFERENCE64 = _entries(1e-7)
"""Central differences with steps of 1e-5 in float64: rounding is 1e-11 of the values, the third order less."""


def assert_close(
    given: edgewise.StructureResult,
    expected: edgewise.StructureResult,
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


FUSED = {"rtol": 1e-5, "atol": 1e-5}
"""Kernels of mode fused on float32 tensors of size 1: products of some ten factors, each rounded at 6e-8."""

FUSED_SUMS = {"rtol": 1e-5, "atol": 5e-5}
"""The same where a number is a sum over up to some hundred edges or 128 channels times 9 coefficients."""

FUSED_ROUNDED = {"rtol": 2e-3, "atol": 1e-2}
"""Sums of some ten products whose operands are rounded to float16 (5e-4 each)."""

ROUNDED_ONCE = {"rtol": 1.2e-7, "atol": 1e-12}
"""One float64 number that differs at 1e-14, rounded to float32 on both sides: one unit in the last place at most."""
