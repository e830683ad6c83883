"""Scales and element references of all tasks as tensors on one device, so that a call moves one small tensor only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.model.tasks import TaskScales
from edgewise.systems import SystemBatch


@dataclass(frozen=True)
class SystemScales:
    """The scales of each system of a batch, [n_systems] float64; units as in `TaskScales`.

    Attributes:
        energy_scale: eV per unit of the network's energy.
        energy_mean: eV.
        forces_scale: eV/Å per unit of the network's forces.
        stress_scale: eV/Å^3 per unit of the network's stress.
        task: Number of the task.
    """

    energy_scale: Tensor
    energy_mean: Tensor
    forces_scale: Tensor
    stress_scale: Tensor
    task: Tensor


class DeviceScales:
    """The tables of all tasks."""

    def __init__(self, scales: Mapping[str, TaskScales], device: torch.device) -> None:
        """Put the scales of each task on a device."""
        self._number = {name: number for number, name in enumerate(scales)}
        rows = [(item.energy_scale, item.energy_mean, item.forces_scale, item.stress_scale) for item in scales.values()]
        self._values = torch.tensor(rows, dtype=torch.float64, device=device).T.contiguous()
        tables = [item.references for item in scales.values()]
        width = max((len(table) for table in tables if table is not None), default=0)
        self._references: Tensor | None = None
        if width:
            joined = torch.zeros(len(tables), width, dtype=torch.float64)
            for row, table in enumerate(tables):
                if table is not None:
                    joined[row, : len(table)] = table
            self._references = joined.to(device)

    def of(self, tasks: Sequence[str]) -> SystemScales:
        """Return the scales of systems by the names of their tasks."""
        task = torch.tensor([self._number[name] for name in tasks], device=self._values.device)
        return SystemScales(*self._values.index_select(1, task), task=task)

    def reference_energies(self, batch: SystemBatch, scales: SystemScales) -> Tensor:
        """Return the sums of element references, [n_systems], eV, float64; zeros for tasks without any.

        Args:
            batch: The structures, on the device.
            scales: Of these structures.
        """
        energies = self._values.new_zeros(batch.n_systems)
        if self._references is None:
            return energies
        of_atoms = self._references[scales.task[batch.system_idx], batch.atomic_numbers]
        return energies.index_add(0, batch.system_idx, of_atoms)
