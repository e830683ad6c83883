"""From normalised network outputs to eV and Å: normalisers and element references of each task (MODEL.md section 11).

A normaliser's mean is added to energies only: as a constant it has no part in forces, stresses or Hessians.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgewise.errors import UnsupportedModelError

PROPERTIES = ("energy", "forces", "stress")


@dataclass(frozen=True)
class TaskScales:
    """How the outputs of one dataset become physical.

    Attributes:
        energy_scale: eV per unit of the network's energy.
        energy_mean: eV, added to each energy.
        forces_scale: eV/Å per unit of the network's forces.
        stress_scale: eV/Å^3 per unit of the network's stress.
        references: [n_elements] energy in eV of each element, float64; None for none.
        trained: The properties that the checkpoint has a task of its own for.
    """

    energy_scale: float
    energy_mean: float
    forces_scale: float
    stress_scale: float
    references: Tensor | None
    trained: tuple[str, ...]

    @property
    def is_consistent(self) -> bool:
        """Whether forces and stress, taken from the energy, are scaled as its exact derivatives."""
        scales = (self.forces_scale, self.stress_scale)
        return all(math.isclose(scale, self.energy_scale, rel_tol=1e-6) for scale in scales)


def parse_tasks(tasks_config: Sequence[Mapping[str, Any]]) -> dict[str, TaskScales]:
    """Read a checkpoint's `tasks_config`.

    Returns:
        The scales of each dataset that has an energy task, in the order of the file.

    Raises:
        UnsupportedModelError: A property that is not known, or no energy task at all.
    """
    by_dataset: dict[str, dict[str, Mapping[str, Any]]] = {}
    for task in tasks_config:
        name = str(task.get("property"))
        if name not in PROPERTIES:
            message = f"task {task.get('name')!r} predicts {name!r}; supported are {', '.join(PROPERTIES)}"
            raise UnsupportedModelError(message)
        for dataset in task.get("datasets") or ():
            by_dataset.setdefault(str(dataset), {})[name] = task
    scales = {dataset: _scales(tasks) for dataset, tasks in by_dataset.items() if "energy" in tasks}
    if not scales:
        message = "the checkpoint has no energy task"
        raise UnsupportedModelError(message)
    return scales


def _normaliser(task: Mapping[str, Any] | None) -> tuple[float, float] | None:
    if task is None:
        return None
    normaliser = task.get("normalizer") or {}
    return float(normaliser.get("mean", 0.0) or 0.0), float(normaliser.get("rmsd", 1.0))


def _scales(tasks: Mapping[str, Mapping[str, Any]]) -> TaskScales:
    energy = _normaliser(tasks["energy"])
    assert energy is not None
    mean, scale = energy
    forces, stress = _normaliser(tasks.get("forces")), _normaliser(tasks.get("stress"))
    references = tasks["energy"].get("element_references")
    table = None
    if references:
        values = references["element_references"]["_args_"][0]
        table = torch.tensor([float(value) for value in values], dtype=torch.float64)
    return TaskScales(
        energy_scale=scale,
        energy_mean=mean,
        forces_scale=scale if forces is None else forces[1],
        stress_scale=scale if stress is None else stress[1],
        references=table,
        trained=tuple(name for name in PROPERTIES if name in tasks),
    )
