"""What turns a network's outputs into physical ones, worked out on the host: a call moves one small tensor to the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.model.tasks import TaskScales
from edgewise.systems import SystemBatch


@dataclass(frozen=True)
class OutputScales:
    """Factors and offsets of the systems of a batch, [n_systems] float64 on the device.

    Attributes:
        energy: eV per unit of the network's energy.
        energy_offset: eV: the mean of the normaliser and the element references.
        forces: eV/Å per unit of the network's forces.
        stress: eV/Å^3 per unit of a predicted stress; NaN where no axis is periodic.
        virial: eV/Å^3 per unit of the virial: `stress` over the volume.
    """

    energy: Tensor
    energy_offset: Tensor
    forces: Tensor
    stress: Tensor
    virial: Tensor


class ScaleTables:
    """The scales of all tasks."""

    def __init__(self, scales: Mapping[str, TaskScales]) -> None:
        """Read the scales of each task."""
        self._number = {name: number for number, name in enumerate(scales)}
        rows = [(item.energy_scale, item.energy_mean, item.forces_scale, item.stress_scale) for item in scales.values()]
        self._values = torch.tensor(rows, dtype=torch.float64)
        tables = [item.references for item in scales.values()]
        width = max((len(table) for table in tables if table is not None), default=0)
        self._references = torch.zeros(len(tables), width, dtype=torch.float64) if width else None
        for row, table in enumerate(tables):
            if self._references is not None and table is not None:
                self._references[row, : len(table)] = table

    def energy_scale(self, task: str) -> float:
        """Return the energy scale of a task, eV per unit of the network's energy."""
        return float(self._values[self._number[task], 0])

    def of(self, batch: SystemBatch, device: torch.device) -> OutputScales:
        """Return what belongs to the structures of a batch.

        Args:
            batch: The structures, on the CPU.
            device: Where the results go.
        """
        task = torch.tensor([self._number[name] for name in batch.tasks], dtype=torch.int64)
        energy, offset, forces, stress = self._values[task].T
        if self._references is not None:
            of_atoms = self._references[task[batch.system_idx], batch.atomic_numbers]
            offset = offset.index_add(0, batch.system_idx, of_atoms)
        stress = torch.where(batch.pbc.any(dim=1), stress, torch.nan)
        virial = stress / torch.linalg.det(batch.cell).abs()
        return OutputScales(*torch.stack([energy, offset, forces, stress, virial]).to(device))
