"""Molecular dynamics by ASE's integrators, written so that a crash loses at most one interval."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from ase import Atoms, units
from ase.calculators.calculator import Calculator
from ase.constraints import FixCom
from ase.md.langevin import Langevin
from ase.md.nose_hoover_chain import MTKNPT
from ase.md.velocitydistribution import Stationary, thermalize_momenta
from ase.md.verlet import VelocityVerlet

from edgewise.cli.checks import require_at_least, require_finite, require_one_of, require_positive
from edgewise.cli.frames import (
    append_frame,
    cut_incomplete_frame,
    keep_frames,
    load_state,
    require_same_atoms,
    save_state,
    with_results,
)
from edgewise.errors import EdgewiseError, InvalidSettingsError, RunFailedError

Ensemble = Literal["nve", "nvt", "npt"]

HIGHEST_TEMPERATURE = 1e5
"""K; beyond it a run has exploded."""

COLUMNS: tuple[str, ...] = ("step", "time_fs", "potential_energy_eV", "kinetic_energy_eV", "temperature_K", "volume_A3")


@dataclass(frozen=True)
class DynamicsOptions:
    """How to run.

    Attributes:
        ensemble: "nve" (velocity Verlet), "nvt" (Langevin) or "npt" (Martyna-Tobias-Klein).
        steps: Steps of the whole run, those before a restart included.
        timestep: fs.
        temperature: K; also of the initial momenta where the structure has none.
        friction: 1/ps, of the Langevin thermostat.
        pressure: GPa, for npt.
        interval: Steps between frames, which are also the points to restart from.
        seed: Seed of momenta and thermostat.
    """

    ensemble: Ensemble = "nve"
    steps: int = 1000
    timestep: float = 1.0
    temperature: float = 300.0
    friction: float = 10.0
    pressure: float = 0.0
    interval: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidSettingsError: A value is not allowed.
        """
        require_one_of("ensemble", self.ensemble, get_args(Ensemble))
        require_positive("timestep", self.timestep, "fs")
        require_positive("friction", self.friction, "1/ps")
        require_at_least("steps", self.steps, 1)
        require_at_least("interval", self.interval, 1)
        require_at_least("temperature", self.temperature, 0, "K")
        require_at_least("seed", self.seed, 0)
        require_finite("pressure", self.pressure, "GPa")
        for name, ensemble, default in (("friction", "nvt", 10.0), ("pressure", "npt", 0.0)):
            if getattr(self, name) != default and self.ensemble != ensemble:
                message = (
                    f"{name} {getattr(self, name)} has a meaning in ensemble {ensemble} only, not in {self.ensemble}"
                )
                raise InvalidSettingsError(message)


@dataclass(frozen=True)
class DynamicsResult:
    """Outcome of a run.

    Attributes:
        atoms: The last structure.
        steps: Steps done, those before a restart included.
        steps_now: Steps done in this call.
        rows: The log, one mapping of `COLUMNS` to numbers for each interval, restarts included.
    """

    atoms: Atoms
    steps: int
    steps_now: int
    rows: list[dict[str, float]]

    def column(self, name: str) -> list[float]:
        """Return one column of the log."""
        return [row[name] for row in self.rows]


def run_dynamics(
    atoms: Atoms,
    calculator: Calculator,
    options: DynamicsOptions,
    trajectory: Path,
    *,
    restart: bool = False,
    report: Callable[[int, str], None] | None = None,
) -> DynamicsResult:
    """Run molecular dynamics.

    A restart has the exact positions and momenta of the last interval: nve goes on as if it had not been interrupted;
    thermostats and barostats begin anew from there.

    Args:
        atoms: Where to start; it is not changed. Momenta are drawn where it has none.
        calculator: Any ASE calculator.
        options: How.
        trajectory: Extended XYZ file for the frames; log (`.csv`) and state stand beside it.
        restart: Go on from the state of an earlier run with the same trajectory.
        report: Called with the step and a note at each interval.

    Raises:
        RunFailedError: The run has exploded; the last good frame is kept.
        InvalidSettingsError: npt for a structure that is not periodic in all directions.
    """
    log, state = trajectory.with_suffix(".csv"), trajectory.with_suffix(".restart.traj")
    first_step = 0
    if restart:
        given, atoms = atoms, load_state(state)
        require_same_atoms(state, atoms, given)
        _require_same_run(state, atoms, options)
        first_step = int(atoms.info.pop("edgewise_step"))
        n_frames = int(atoms.info.pop("edgewise_frames"))
        cut_incomplete_frame(trajectory)
        keep_frames(trajectory, n_frames)
        _keep_rows(log, n_frames)
    else:
        atoms = _prepared(atoms, options)
        n_frames = 0
        trajectory.unlink(missing_ok=True)
        log.unlink(missing_ok=True)
    atoms.calc = calculator
    integrator = _integrator(atoms, options, first_step)

    def observe() -> None:
        nonlocal n_frames
        step = first_step + integrator.nsteps
        _check(atoms, step)
        at_start_of_restart = restart and integrator.nsteps == 0
        if at_start_of_restart or (step % options.interval and step != options.steps):
            return
        row = _row(atoms, step, options)
        append_frame(trajectory, with_results(atoms, dict(calculator.results), step=step, time_fs=row["time_fs"]))
        _append_row(log, row)
        n_frames += 1
        save_state(
            state,
            atoms,
            edgewise_step=step,
            edgewise_frames=n_frames,
            edgewise_timestep=options.timestep,
            edgewise_ensemble=options.ensemble,
        )
        if report is not None:
            report(step, f"{row['time_fs'] / 1000:.3f} ps, {row['temperature_K']:.0f} K")

    integrator.attach(observe, interval=1)
    try:
        integrator.run(max(0, options.steps - first_step))
    except RunFailedError:
        raise
    except EdgewiseError as error:
        message = f"the run failed at step {first_step + integrator.nsteps}: {error}"
        raise RunFailedError(message) from error
    return DynamicsResult(atoms, first_step + integrator.nsteps, integrator.nsteps, _read_rows(log))


def _require_same_run(state: Path, atoms: Atoms, options: DynamicsOptions) -> None:
    """Take what the run was begun with out of a state, and refuse to go on with another timestep or ensemble."""
    for name in ("timestep", "ensemble"):
        before, now = atoms.info.pop(f"edgewise_{name}"), getattr(options, name)
        if before != now:
            message = (
                f"{state} was written with {name} {before}, not {now}: go on with --{name} {before}, or begin another run "
                "from its last frame, with another --output"
            )
            raise InvalidSettingsError(message)


def _prepared(atoms: Atoms, options: DynamicsOptions) -> Atoms:
    """Return a copy with momenta."""
    atoms = atoms.copy()
    if not atoms.has("momenta") or not np.any(atoms.get_momenta()):
        rng = np.random.default_rng(options.seed)
        thermalize_momenta(atoms, temperature_K=options.temperature, rng=rng)
        if not atoms.constraints and len(atoms) > 1:
            Stationary(atoms)
    return atoms


def _integrator(atoms: Atoms, options: DynamicsOptions, first_step: int) -> Any:
    step = options.timestep * units.fs
    if options.ensemble == "nve":
        return VelocityVerlet(atoms, timestep=step)
    if options.ensemble == "nvt":
        if not atoms.constraints and len(atoms) > 1:
            atoms.set_constraint(FixCom())
        return Langevin(
            atoms,
            timestep=step,
            temperature_K=options.temperature,
            friction=options.friction / (1000 * units.fs),
            fixcm=False,
            # Another stretch of random numbers after each restart.
            rng=np.random.default_rng((options.seed, first_step)),
        )
    if not atoms.pbc.all():
        message = f"npt needs three periodic axes; pbc is {atoms.pbc.tolist()}"
        raise InvalidSettingsError(message)
    return MTKNPT(
        atoms,
        timestep=step,
        temperature_K=options.temperature,
        pressure_au=options.pressure * units.GPa,
        tdamp=100 * step,
        pdamp=1000 * step,
    )


def _check(atoms: Atoms, step: int) -> None:
    energy, temperature = float(atoms.get_potential_energy()), float(atoms.get_temperature())
    if not (np.isfinite(energy) and temperature < HIGHEST_TEMPERATURE):
        message = f"the run has exploded at step {step} (energy {energy} eV, temperature {temperature:.0f} K); the last good frame is kept"
        raise RunFailedError(message)


def _row(atoms: Atoms, step: int, options: DynamicsOptions) -> dict[str, float]:
    values = (
        step,
        step * options.timestep,
        float(atoms.get_potential_energy()),
        float(atoms.get_kinetic_energy()),
        float(atoms.get_temperature()),
        float(atoms.get_volume()) if atoms.cell.rank == 3 else 0.0,
    )
    return dict(zip(COLUMNS, values, strict=True))


def _append_row(log: Path, row: dict[str, float]) -> None:
    is_new = not log.is_file()
    with log.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(COLUMNS))
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def _keep_rows(log: Path, n_rows: int) -> None:
    if log.is_file():
        lines = log.read_text(encoding="utf-8").splitlines(keepends=True)[: n_rows + 1]
        log.write_text("".join(lines), encoding="utf-8")


def _read_rows(log: Path) -> list[dict[str, float]]:
    if not log.is_file():
        return []
    with log.open(newline="", encoding="utf-8") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
