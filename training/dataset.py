"""Labelled structures in one compressed file: what the generator writes and the trainer reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Dataset:
    """Structures one after the other.

    Attributes:
        numbers: [n_atoms] atomic numbers.
        positions: [n_atoms, 3], Å.
        cell: [n_structures, 3, 3], Å; zeros where there is none.
        pbc: [n_structures, 3].
        n_atoms: [n_structures].
        energy: [n_structures], eV.
        forces: [n_atoms, 3], eV/Å.
        stress: [n_structures, 3, 3], eV/Å^3; NaN where not all axes are periodic.
        kind: [n_structures] name of the class of structures.
        rattle: [n_structures] standard deviation of the random displacements, Å; 0 where there are none,
            NaN where the file does not tell.
    """

    numbers: NDArray[np.int64]
    positions: NDArray[np.float64]
    cell: NDArray[np.float64]
    pbc: NDArray[np.bool_]
    n_atoms: NDArray[np.int64]
    energy: NDArray[np.float64]
    forces: NDArray[np.float64]
    stress: NDArray[np.float64]
    kind: NDArray[np.str_]
    rattle: NDArray[np.float64]

    def __len__(self) -> int:
        """Return the number of structures."""
        return len(self.n_atoms)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where the atoms of each structure begin, and the end, [n_structures + 1]."""
        return np.concatenate([[0], np.cumsum(self.n_atoms)])

    def elements(self) -> list[frozenset[int]]:
        """Return the set of elements of each structure."""
        bounds = self.offsets
        return [frozenset(self.numbers[a:b].tolist()) for a, b in pairwise(bounds)]

    def select(self, chosen: Sequence[int]) -> Dataset:
        """Return the chosen structures."""
        bounds = self.offsets
        atoms = (
            np.concatenate([np.arange(bounds[i], bounds[i + 1]) for i in chosen]) if len(chosen) else np.zeros(0, int)
        )
        per_atom = ("numbers", "positions", "forces")
        rows = np.asarray(chosen, dtype=int)
        return Dataset(
            **{item.name: getattr(self, item.name)[atoms if item.name in per_atom else rows] for item in fields(self)}
        )

    def followed_by(self, other: Dataset) -> Dataset:
        """Return these structures and then those of another data set."""
        pairs = {item.name: (getattr(self, item.name), getattr(other, item.name)) for item in fields(self)}
        return Dataset(**{name: np.concatenate(pair) for name, pair in pairs.items()})

    def save(self, path: Path) -> None:
        """Write the file."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        # Single precision halves the file; labels of the teacher are not known better than that after training.
        np.savez_compressed(path, **{name: _compact(value) for name, value in values.items()})

    @staticmethod
    def load(path: Path) -> Dataset:
        """Read a file that `save` wrote."""
        with np.load(path) as stored:
            values = {item.name: stored[item.name] for item in fields(Dataset) if item.name in stored}
        # Files of the first version do not tell the rattles.
        values.setdefault("rattle", np.full(len(values["n_atoms"]), np.nan))
        return Dataset(**{name: _expanded(value) for name, value in values.items()})


def _compact(value: NDArray[np.generic]) -> NDArray[np.generic]:
    if value.dtype == np.float64:
        return value.astype(np.float32)
    return value.astype(np.int16) if value.dtype == np.int64 else value


def _expanded(value: NDArray[np.generic]) -> NDArray[np.generic]:
    if value.dtype == np.float32:
        return value.astype(np.float64)
    return value.astype(np.int64) if value.dtype == np.int16 else value
