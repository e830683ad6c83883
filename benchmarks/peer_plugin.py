"""Puts Edgewise behind the interface of fairchem's predict units, so that one script can time both in one run.

`make(checkpoint, device)` returns an object with `predict(data) -> {"energy", "forces", "stress"}`, where `data` has the
attributes of fairchem's AtomicData (pos, cell, pbc, atomic_numbers, natoms, charge, spin, dataset).
"""

from __future__ import annotations

from typing import Any

import torch
from ase import Atoms
from torch import Tensor

import edgewise


class Engine:
    """A potential that takes fairchem's batches."""

    def __init__(self, potential: edgewise.Potential) -> None:
        """Wrap a potential."""
        self.potential = potential

    def predict(self, data: Any) -> dict[str, Tensor]:
        """Return energy [n_systems], forces [n_atoms, 3] and stress [n_systems, 9] of a batch."""
        structures: list[Atoms] = []
        counts = data.natoms.tolist()
        positions, numbers = data.pos.cpu().numpy().astype(float), data.atomic_numbers.cpu().numpy()
        start = 0
        for system, count in enumerate(counts):
            atoms = slice(start, start + count)
            structures.append(
                Atoms(
                    numbers[atoms],
                    positions[atoms],
                    cell=data.cell[system].cpu().numpy(),
                    pbc=data.pbc[system].cpu().numpy(),
                    info={"charge": int(data.charge[system]), "spin": int(data.spin[system])},
                )
            )
            start += count
        tasks = [data.dataset] * len(counts) if isinstance(data.dataset, str) else list(data.dataset)
        results = self.potential.predict(structures, tasks)
        return {
            "energy": torch.from_numpy(results.energy),
            "forces": torch.from_numpy(results.forces),
            "stress": torch.from_numpy(results.stress).flatten(1),
        }


def make(checkpoint: str, device: str) -> Engine:
    """Load a checkpoint with the settings that fairchem's fast mode is timed with."""
    settings = edgewise.InferenceSettings(tf32=True, merge_mole=True, compile=True, execution_mode="umas_fast_gpu")
    return Engine(edgewise.load(checkpoint, device=device, settings=settings))
