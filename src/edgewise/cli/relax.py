"""Relaxation of positions and cells by ASE's optimisers and filters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from ase import Atoms, units
from ase.calculators.calculator import Calculator
from ase.constraints import FixAtoms
from ase.filters import FrechetCellFilter
from ase.optimize import BFGS, FIRE, LBFGS

from edgewise.cli.checks import require_at_least, require_finite, require_one_of, require_positive
from edgewise.cli.frames import (
    append_frame,
    cut_incomplete_frame,
    load_state,
    require_same_atoms,
    save_state,
    with_results,
)
from edgewise.errors import InvalidSettingsError, RunFailedError

CellMode = Literal["none", "full", "volume", "shape"]
OptimizerName = Literal["FIRE", "LBFGS", "BFGS"]
OPTIMIZERS: dict[str, Any] = {"FIRE": FIRE, "LBFGS": LBFGS, "BFGS": BFGS}

LARGEST_FORCE = 1e4
"""eV/Å; beyond it a relaxation has exploded."""


@dataclass(frozen=True)
class RelaxOptions:
    """How to relax.

    Attributes:
        fmax: Largest force component sum that counts as converged, eV/Å (for cells, eV/Å per atom of the filter).
        steps: Most steps.
        optimizer: "FIRE", "LBFGS" or "BFGS".
        cell: What may change of the cell: "none", "full", "volume" (shape kept) or "shape" (volume kept).
        pressure: GPa, with a cell that may change.
        fix: Atoms that stay where they are, besides constraints of the structure.
        interval: Write a frame every so many steps.
    """

    fmax: float = 0.02
    steps: int = 500
    optimizer: OptimizerName = "FIRE"
    cell: CellMode = "none"
    pressure: float = 0.0
    fix: tuple[int, ...] = ()
    interval: int = 1

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidSettingsError: A value is not allowed.
        """
        require_positive("fmax", self.fmax, "eV/Å")
        require_at_least("steps", self.steps, 1)
        require_at_least("interval", self.interval, 1)
        require_one_of("optimizer", self.optimizer, OPTIMIZERS)
        require_one_of("cell", self.cell, get_args(CellMode))
        require_finite("pressure", self.pressure, "GPa")
        if self.cell == "none" and self.pressure:
            message = f"pressure {self.pressure} GPa needs a cell that may change; give --cell full or volume"
            raise InvalidSettingsError(message)


@dataclass(frozen=True)
class RelaxResult:
    """Outcome of a relaxation.

    Attributes:
        atoms: The last structure.
        converged: Whether forces (and stress) are below the bound.
        steps: Steps taken, those before a restart included.
        energy: eV.
        largest_force: eV/Å.
        energies: [n_written] eV.
        largest_forces: [n_written] eV/Å.
    """

    atoms: Atoms
    converged: bool
    steps: int
    energy: float
    largest_force: float
    energies: list[float]
    largest_forces: list[float]


def relax(
    atoms: Atoms,
    calculator: Calculator,
    options: RelaxOptions,
    trajectory: Path,
    *,
    restart: bool = False,
    report: Callable[[int, str], None] | None = None,
) -> RelaxResult:
    """Relax a structure.

    Args:
        atoms: Where to start; it is not changed.
        calculator: Any ASE calculator.
        options: How.
        trajectory: Extended XYZ file for the frames; the state for a restart stands beside it.
        restart: Go on from the state of an earlier run with the same trajectory.
        report: Called with the step and a note after each step.

    Raises:
        RunFailedError: Forces are not finite or have exploded; the last good frame is kept.
        InvalidSettingsError: The cell may change but no axis is periodic, or an atom to fix does not exist.
    """
    state = trajectory.with_suffix(".restart.traj")
    first_step = 0
    if restart:
        given, atoms = atoms, load_state(state)
        require_same_atoms(state, atoms, given)
        first_step = int(atoms.info.pop("edgewise_step", 0))
        cut_incomplete_frame(trajectory)
    else:
        trajectory.unlink(missing_ok=True)
        atoms = _with_fixed(atoms.copy(), options.fix)
    atoms.calc = calculator
    energies: list[float] = []
    forces: list[float] = []
    optimizer = OPTIMIZERS[options.optimizer](_filtered(atoms, options), logfile=None)

    def observe() -> None:
        step = first_step + optimizer.nsteps
        energy, force = float(atoms.get_potential_energy()), _largest_force(atoms)
        if not np.isfinite(energy) or not force < LARGEST_FORCE:
            message = f"the relaxation has exploded at step {step} (energy {energy} eV, largest force {force} eV/Å)"
            raise RunFailedError(message)
        energies.append(energy)
        forces.append(force)
        if report is not None:
            report(step, f"{energy:.4f} eV, {force:.4f} eV/Å")
        if (optimizer.nsteps == 0 and restart) or step % options.interval:
            return
        append_frame(trajectory, with_results(atoms, dict(calculator.results), step=step))
        save_state(state, atoms, edgewise_step=step)

    optimizer.attach(observe, interval=1)
    converged = bool(optimizer.run(fmax=options.fmax, steps=max(0, options.steps - first_step)))
    step = first_step + optimizer.nsteps
    if step % options.interval:
        append_frame(trajectory, with_results(atoms, dict(calculator.results), step=step))
    save_state(state, atoms, edgewise_step=step)
    return RelaxResult(atoms, converged, step, energies[-1], forces[-1], energies, forces)


def _largest_force(atoms: Atoms) -> float:
    return float(np.linalg.norm(atoms.get_forces(), axis=1).max())


def _with_fixed(atoms: Atoms, fix: tuple[int, ...]) -> Atoms:
    outside = [index for index in fix if not 0 <= index < len(atoms)]
    if outside:
        message = f"cannot fix atoms {outside}: the structure has atoms 0 to {len(atoms) - 1}"
        raise InvalidSettingsError(message)
    if fix:
        atoms.set_constraint([*atoms.constraints, FixAtoms(indices=list(fix))])
    return atoms


def _filtered(atoms: Atoms, options: RelaxOptions) -> Any:
    if options.cell == "none":
        return atoms
    if not atoms.pbc.any():
        message = f"--cell {options.cell} needs a periodic structure; this one has no periodic axis"
        raise InvalidSettingsError(message)
    mask = np.outer(atoms.pbc, atoms.pbc).astype(float)
    return FrechetCellFilter(
        atoms,
        mask=mask if not atoms.pbc.all() else None,
        hydrostatic_strain=options.cell == "volume",
        constant_volume=options.cell == "shape",
        scalar_pressure=options.pressure * units.GPa,
    )
