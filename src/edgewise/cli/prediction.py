"""Energies, forces and stresses of many structures; one bad structure does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgewise.errors import EdgewiseError

if TYPE_CHECKING:
    from ase import Atoms

    from edgewise.potential import Potential
    from edgewise.results import StructureResult

STRUCTURES_AT_ONCE = 64


@dataclass(frozen=True)
class Prediction:
    """Outcome for one structure: a result, or the reason why there is none."""

    result: StructureResult | None
    error: str | None


def predict_all(
    potential: Potential, structures: Sequence[Atoms], report: Callable[[int, str], None] | None = None
) -> list[Prediction]:
    """Evaluate structures in batches.

    Args:
        potential: What `edgewise.load` returned.
        structures: ASE atoms.
        report: Called with the number done and a note.

    Returns:
        One outcome for each structure, in order.
    """
    outcomes: list[Prediction] = []
    for start in range(0, len(structures), STRUCTURES_AT_ONCE):
        part = structures[start : start + STRUCTURES_AT_ONCE]
        try:
            outcomes += [Prediction(result, None) for result in potential.predict(part)]
        except EdgewiseError:
            # Find the bad ones by asking one at a time.
            outcomes += [_alone(potential, atoms) for atoms in part]
        if report is not None:
            report(len(outcomes), f"{sum(len(atoms) for atoms in part)} atoms in the last batch")
    return outcomes


def _alone(potential: Potential, atoms: Atoms) -> Prediction:
    try:
        return Prediction(potential.predict([atoms])[0], None)
    except EdgewiseError as error:
        return Prediction(None, str(error))


def ase_results(result: StructureResult) -> dict[str, object]:
    """Return results under ASE's names; stress only where there is one."""
    values: dict[str, object] = {"energy": result.energy, "free_energy": result.energy, "forces": result.forces}
    if np.isfinite(result.stress).all():
        values["stress"] = result.stress[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]
    return values


def label_frames(name: str, frames: Sequence[Atoms]) -> list[tuple[str, Atoms]]:
    """Return each structure of a file with what to call it in messages: the file, and its place among several."""
    if len(frames) == 1:
        return [(name, frames[0])]
    file = name.rpartition("@")[0] or name
    return [(f"{file}, structure {number}", atoms) for number, atoms in enumerate(frames)]
