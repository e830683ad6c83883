"""A batch of structures as tensors, read from ASE atoms and checked once for every entry point.

Nothing of the caller's structures is changed. This module knows no model: whether an element or a lone atom is
allowed is decided where the model is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from edgewise.errors import ChargeSpinError, ChargeSpinTypeError, InvalidStructureError

if TYPE_CHECKING:
    from ase import Atoms

CHARGED_TASKS = frozenset({"omol"})
"""Tasks whose data carry a total charge and a spin multiplicity."""

CHARGE_RANGE = (-100, 100)
SPIN_RANGE = (0, 100)

SMALLEST_RELATIVE_VOLUME = 1e-6
"""Cells whose volume is below this fraction of the product of their edge lengths count as singular."""


@dataclass(frozen=True)
class SystemBatch:
    """Several structures, one after the other.

    Attributes:
        positions: [n_atoms, 3], Å, float64, as given (not wrapped).
        cell: [n_systems, 3, 3], Å, float64, rows are lattice vectors; directions without one hold unit vectors.
        pbc: [n_systems, 3] bool.
        atomic_numbers: [n_atoms] int64.
        system_idx: [n_atoms] int64, the system of each atom.
        n_atoms: [n_systems] int64.
        charge: [n_systems] int64, total charge in units of e.
        spin: [n_systems] int64, multiplicity; 0 is "not given".
        tasks: One task name per system.
    """

    positions: Tensor
    cell: Tensor
    pbc: Tensor
    atomic_numbers: Tensor
    system_idx: Tensor
    n_atoms: Tensor
    charge: Tensor
    spin: Tensor
    tasks: tuple[str, ...]

    @property
    def n_systems(self) -> int:
        """Number of structures."""
        return len(self.tasks)

    def offsets(self) -> list[int]:
        """Return n_systems + 1 numbers: where each structure's atoms begin, and the end."""
        return [0, *np.cumsum(self.n_atoms.cpu().numpy()).tolist()]

    def to(self, device: torch.device | str) -> SystemBatch:
        """Return the batch with its tensors on another device."""
        names = ("positions", "cell", "pbc", "atomic_numbers", "system_idx", "n_atoms", "charge", "spin")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def agrees(self, other: SystemBatch, names: Sequence[str]) -> bool:
        """Tell whether tensors are the same in another batch on the CPU.

        Args:
            other: The batch.
            names: Of the tensors.
        """
        return all(torch.equal(getattr(self, name), getattr(other, name)) for name in names)

    def compositions(self) -> list[tuple[tuple[int, int], ...]]:
        """Return for each system its elements and counts, ((Z, count), ...), sorted by Z."""
        numbers = self.atomic_numbers.cpu().numpy()
        return [_composition(numbers[start:stop]) for start, stop in pairwise(self.offsets())]


def _composition(numbers: np.ndarray) -> tuple[tuple[int, int], ...]:
    counts = np.bincount(numbers)
    return tuple((number, int(counts[number])) for number in np.flatnonzero(counts).tolist())


def reduced_composition(composition: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Divide the counts of a composition by their greatest common divisor."""
    divisor = math.gcd(*(count for _, count in composition))
    return tuple((number, count // divisor) for number, count in composition)


def batch_from_atoms(
    structures: Sequence[Atoms], tasks: Sequence[str], *, allow_charge_spin: bool = False
) -> SystemBatch:
    """Turn ASE atoms into one batch.

    Args:
        structures: ASE atoms; `info["charge"]` and `info["spin"]` are read, nothing is written.
        tasks: One task name per structure.
        allow_charge_spin: Take charge and spin under every task as they are given.

    Raises:
        InvalidStructureError: A structure is empty, not finite, or has a singular cell.
        ChargeSpinError: Charge or spin is out of range, or not 0 under a task that has none.
        ChargeSpinTypeError: Charge or spin is not an integer.
    """
    positions, cells, pbcs, numbers = [], [], [], []
    charges: list[int] = []
    spins: list[int] = []
    for index, (atoms, task) in enumerate(zip(structures, tasks, strict=True)):
        where = _structure_name(index, len(structures))
        _check_atoms(atoms, where)
        positions.append(np.array(atoms.positions, dtype=np.float64))
        numbers.append(np.array(atoms.numbers, dtype=np.int64))
        pbcs.append(np.array(atoms.pbc, dtype=bool))
        cells.append(_checked_cell(np.array(atoms.cell.array, dtype=np.float64), pbcs[-1], where))
        charge, spin = charge_and_spin(atoms.info, task, where=where, allow_charge_spin=allow_charge_spin)
        charges.append(charge)
        spins.append(spin)
    counts = [len(item) for item in numbers]
    return SystemBatch(
        positions=torch.from_numpy(np.concatenate(positions) if positions else np.zeros((0, 3))),
        cell=torch.from_numpy(np.stack(cells) if cells else np.zeros((0, 3, 3))),
        pbc=torch.from_numpy(np.stack(pbcs) if pbcs else np.zeros((0, 3), dtype=bool)),
        atomic_numbers=torch.from_numpy(np.concatenate(numbers) if numbers else np.zeros(0, dtype=np.int64)),
        system_idx=torch.from_numpy(np.repeat(np.arange(len(counts)), counts)),
        n_atoms=torch.tensor(counts, dtype=torch.int64),
        charge=torch.tensor(charges, dtype=torch.int64),
        spin=torch.tensor(spins, dtype=torch.int64),
        tasks=tuple(tasks),
    )


def charge_and_spin(
    info: dict[str, Any], task: str, *, where: str = "the structure", allow_charge_spin: bool = False
) -> tuple[int, int]:
    """Read total charge and spin multiplicity, with the same defaults and checks for every entry point.

    Args:
        info: `atoms.info`; the entries "charge" and "spin" are read.
        task: Task name. "omol" defaults to charge 0 and spin 1; an explicit spin 0 is taken as given.
        where: Name of the structure in error messages.
        allow_charge_spin: Take values other than 0 under tasks without charge and spin.

    Returns:
        Charge and spin.

    Raises:
        ChargeSpinError: Out of range, or not 0 under a task whose data have neither charge nor spin.
        ChargeSpinTypeError: Not an integer.
    """
    charged = task in CHARGED_TASKS
    charge = _integer(info.get("charge"), "charge", 0, CHARGE_RANGE, where)
    spin = _integer(info.get("spin"), "spin", 1 if charged else 0, SPIN_RANGE, where)
    if not charged and not allow_charge_spin and (charge != 0 or spin != 0):
        message = (
            f"{where} has charge {charge} and spin {spin}, but task {task!r} was trained without charge and spin; "
            f"remove them from atoms.info (or set both to 0), use task 'omol', or potential.allowing(charge_spin=True), on the command line --allow charge-spin"
        )
        raise ChargeSpinError(message)
    return charge, spin


def _integer(value: Any, name: str, default: int, allowed: tuple[int, int], where: str) -> int:
    if value is None:
        return default
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        message = f"{name} of {where} is {value!r} ({type(value).__name__}); it has to be a whole number (int), for example {default}"
        raise ChargeSpinTypeError(message)
    low, high = allowed
    if not low <= value <= high:
        message = f"{name} of {where} is {value}; allowed are {low} to {high}"
        raise ChargeSpinError(message)
    return int(value)


def _structure_name(index: int, n_structures: int) -> str:
    return "the structure" if n_structures == 1 else f"structure {index}"


def _check_atoms(atoms: Atoms, where: str) -> None:
    if len(atoms) == 0:
        message = f"{where} has no atoms; give at least one"
        raise InvalidStructureError(message)
    if not np.isfinite(atoms.positions).all():
        atom = int(np.flatnonzero(~np.isfinite(atoms.positions).all(axis=1))[0])
        given = atoms.positions[atom].tolist()
        message = f"position of atom {atom} ({atoms.symbols[atom]}) of {where} is {given}; positions have to be finite"
        raise InvalidStructureError(message)


def _checked_cell(cell: np.ndarray, pbc: np.ndarray, where: str) -> np.ndarray:
    """Return the cell with unit vectors in place of missing ones, after checking what the periodic axes need."""
    if not pbc.any():
        # Nothing depends on the cell of a molecule, whatever was left in it.
        return np.eye(3)
    if not np.isfinite(cell).all():
        message = f"cell of {where} is {cell.tolist()}; cells have to be finite"
        raise InvalidStructureError(message)
    # Plain numbers: numpy takes ten times as long for so few.
    lengths = [math.hypot(*row) for row in cell.tolist()]
    for axis in range(3):
        if pbc[axis] and lengths[axis] == 0:
            message = (
                f"cell of {where} has no lattice vector {axis} but pbc={pbc.tolist()}; "
                f"give the vector or set pbc[{axis}]=False"
            )
            raise InvalidStructureError(message)
    completed = cell if all(lengths) else _complete_cell(cell)
    volume = _volume(completed.tolist())
    if volume <= SMALLEST_RELATIVE_VOLUME * math.prod(math.hypot(*row) for row in completed.tolist()):
        message = (
            f"cell of {where} has lattice vectors in one plane (volume {volume:.3g} Å^3) but pbc={pbc.tolist()}; "
            "give independent vectors or set pbc=False"
        )
        raise InvalidStructureError(message)
    return completed


def _volume(cell: list[list[float]]) -> float:
    (a, b, c), (d, e, f), (g, h, i) = cell
    return abs(a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g))


def _complete_cell(cell: np.ndarray) -> np.ndarray:
    """Put unit vectors at right angles to the given ones in place of zero rows."""
    missing = np.flatnonzero(np.linalg.norm(cell, axis=1) == 0)
    completed = cell.copy()
    given = cell[np.linalg.norm(cell, axis=1) > 0]
    # The last right-singular vectors span what is orthogonal to the given lattice vectors.
    completed[missing] = np.linalg.svd(given)[2][len(given) :]
    return completed
