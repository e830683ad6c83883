"""What benchmarks of molecular dynamics share: a calculator that is timed, steps that are timed, errors of a frame."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from checks import errors, require_errors
from records import Row

import edgewise
from edgewise.weights import Checkpoint

PRECISIONS = ("fast", "tf32", "float32")
"""Those of mode fused."""

Model = Checkpoint | str | Path
"""A checkpoint in memory, or what `edgewise.load` takes."""


class TimedCalculator(edgewise.Calculator):
    """The calculator, with the times that its calls took.

    Attributes:
        seconds: Of each call, which ends when the results are on the host.
    """

    def __init__(self, potential: edgewise.Potential) -> None:
        """Wrap a potential."""
        super().__init__(potential)
        self.seconds: list[float] = []

    def calculate(
        self, atoms: Atoms | None = None, properties: Sequence[str] = ("energy",), system_changes: Sequence[str] = ()
    ) -> None:
        """See `edgewise.Calculator`."""
        begin = time.perf_counter()
        super().calculate(atoms, properties, system_changes)
        self.seconds.append(time.perf_counter() - begin)


class Clock:
    """Notes the time at the end of every step, attached to a run of ASE."""

    def __init__(self) -> None:
        """Begin without steps."""
        self._ends: list[float] = []

    def __call__(self) -> None:
        """Note that a step has ended."""
        self._ends.append(time.perf_counter())

    def milliseconds(self) -> list[float]:
        """Return how long each step took; the first call only starts the clock."""
        return [1000 * (end - begin) for begin, end in pairwise(self._ends)]


def load(model: Model, task: str, device: str, **settings: Any) -> edgewise.Potential:
    """Load a potential.

    Args:
        model: A checkpoint in memory, or what `edgewise.load` takes.
        task: Task of its calls.
        device: "cuda" or "cpu".
        **settings: Those of `edgewise.InferenceSettings`.
    """
    chosen = edgewise.InferenceSettings(**settings)
    if isinstance(model, Checkpoint):
        return edgewise.Potential(model, task=task, device=device, settings=chosen)
    return edgewise.load(model, task=task, device=device, settings=chosen)


def mode_of(device: str) -> str:
    """Return the mode that is driven: fused on a GPU; general on a CPU, where benchmarks are only tried out."""
    return "fused" if device == "cuda" else "general"


def times_of_steps(milliseconds: Sequence[float], calculator_seconds: Sequence[float]) -> Row:
    """Return median and 95th percentile of steps, ms, and the share of them that is not the calculator's.

    Raises:
        ValueError: The calculator was not called once for each step.
    """
    if len(milliseconds) != len(calculator_seconds):
        message = f"{len(milliseconds)} steps were timed, and {len(calculator_seconds)} calls of the calculator"
        raise ValueError(message)
    inside = [1000 * value for value in calculator_seconds]
    return {
        "wall_median_ms": round(statistics.median(milliseconds), 3),
        "wall_p95_ms": round(float(np.percentile(milliseconds, 95)), 3),
        "calculator_median_ms": round(statistics.median(inside), 3),
        "share_of_ase": round(1 - sum(inside) / sum(milliseconds), 4),
    }


def frame_errors(potential: edgewise.Potential, atoms: Atoms, model: Model, precision: str) -> dict[str, float]:
    """Return the errors of a frame against mode general in float64.

    Raises:
        CheckFailedError: They are larger than this precision may have.
    """
    task, device = potential.resolve_task(None), potential.device.type
    settings: dict[str, Any] = {"execution_mode": "general", "precision": "float64", "edge_chunk_size": 20000}
    exact = load(model, task, device, activation_checkpointing=True, **settings).predict([atoms])
    outcome = potential.predict([atoms])
    quantities = ("energy", "forces", "stress")
    found = errors(*({name: getattr(item, name) for name in quantities} for item in (outcome, exact)), len(atoms))
    require_errors(f"the last frame in {precision}", found, precision)
    return found
