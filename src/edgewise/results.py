"""Results of structures: numpy arrays joined in the order in which the structures were given, checked to be finite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from edgewise.engine.runner import Outputs
from edgewise.errors import NonFiniteResultError
from edgewise.systems import SystemBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class StructureResult:
    """Results of one structure.

    Attributes:
        energy: eV.
        forces: [n_atoms, 3], eV/Å.
        stress: [3, 3], eV/Å^3; NaN where no axis is periodic.
    """

    energy: float
    forces: NDArray[np.float64]
    stress: NDArray[np.float64]


@dataclass(frozen=True)
class Results:
    """Results of several structures, joined in the order in which they were given.

    Attributes:
        energy: [n_systems], eV.
        forces: [n_atoms, 3] of all structures, eV/Å.
        stress: [n_systems, 3, 3], eV/Å^3 per volume of the given cell; NaN where no axis is periodic.
        n_atoms: [n_systems] number of atoms of each.
    """

    energy: NDArray[np.float64]
    forces: NDArray[np.float64]
    stress: NDArray[np.float64]
    n_atoms: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of structures."""
        return len(self.energy)

    def __getitem__(self, index: int) -> StructureResult:
        """Return the results of one structure."""
        position = range(len(self))[index]
        stop = int(self.n_atoms[: position + 1].sum())
        start = stop - int(self.n_atoms[position])
        return StructureResult(float(self.energy[position]), self.forces[start:stop], self.stress[position])

    def __iter__(self) -> Iterator[StructureResult]:
        """Iterate over the results of each structure."""
        return (self[index] for index in range(len(self)))


def _joined(tensors: Sequence[torch.Tensor], empty_shape: tuple[int, ...]) -> NDArray[np.float64]:
    if not tensors:
        return np.zeros(empty_shape)
    joined = tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
    return joined.cpu().numpy().astype(np.float64, copy=False)


def joined_results(outputs: Sequence[Outputs], batch: SystemBatch) -> Results:
    """Join what a runner returned for the parts of a batch, as numpy arrays."""
    return Results(
        energy=_joined([item.energy for item in outputs], (0,)),
        forces=_joined([item.forces for item in outputs], (0, 3)),
        stress=_joined([item.stress for item in outputs], (0, 3, 3)),
        n_atoms=batch.n_atoms.numpy(),
    )


def not_finite(results: Results, batch: SystemBatch, *, with_stress: bool) -> list[int]:
    """Return the systems whose results are NaN or infinite; where no axis is periodic, the stress is meant to be NaN."""
    # NaN and infinity reach every sum that they are in.
    total = results.energy.sum() + results.forces.sum()
    if with_stress:
        total += results.stress[batch.pbc.any(dim=1).numpy()].sum()
    if np.isfinite(total):
        return []
    bad = ~np.isfinite(results.energy)
    bad[batch.system_idx.numpy()[~np.isfinite(results.forces).all(axis=1)]] = True
    if with_stress:
        bad |= batch.pbc.any(dim=1).numpy() & ~np.isfinite(results.stress).all(axis=(1, 2))
    return np.flatnonzero(bad).tolist()


def check_finite(results: Results, batch: SystemBatch, *, with_stress: bool) -> None:
    """Raise `NonFiniteResultError` if a result is NaN or infinite; the message names the structure."""
    bad = not_finite(results, batch, with_stress=with_stress)
    if bad:
        message = (
            f"the network returned NaN or infinity for structure {bad[0]}; "
            "check its distances, or use precision='float64'"
        )
        raise NonFiniteResultError(message)
