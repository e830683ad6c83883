"""Measures how well energy is conserved: 1000 copper atoms with the embedded model, at constant energy, by ASE's VelocityVerlet.

    python benchmarks/energy_drift.py [--temperatures 300 1000] [--precisions fast tf32 float32] [--picoseconds 50]
    python benchmarks/energy_drift.py --device cpu --repeats 2 --picoseconds 0.03 --equilibration 0.01 --interval 2   to try it out
    python benchmarks/run.py drift                                               the same for the record

Every run is a stage of its own, and its row is written when it ends. It begins on the perfect lattice with velocities of twice the
temperature, half of which the potential energy takes up within the time left out at the beginning. The total energy is read every
few steps, of what the calculator has at hand already; drift is the slope of its least-squares line. The timestep is judged by the
run itself: the energy of Verlet's method swings in proportion to the square of the timestep, so that in a short run with half of
it swings must be a quarter, or what swings is not the discretisation; both are in the row.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.build import bulk
from ase.md.velocitydistribution import Stationary, thermalize_momenta
from ase.md.verlet import VelocityVerlet
from checks import require
from dynamics import PRECISIONS, frame_errors, load, mode_of
from machine import require_gpu
from numpy.typing import NDArray
from records import Row

import edgewise

FILE = "energy_drift.jsonl"

MODEL, TASK = "emt-mini", "emt"

LATTICES = {300: 3.61, 1000: 3.66}
"""Å by K: copper, with its thermal expansion."""

REASON = "the fastest vibration of copper, 7.4 THz, lasts 135 fs, some 67 steps"

SWING = 1.0
"""ps of the short runs that judge the timestep."""

LARGEST_CHANGE = 10.0
"""meV/atom that the line may rise or fall by over a run: beyond it the run has gone wrong, and there is no row."""


@dataclass(frozen=True)
class Options:
    """What can be chosen.

    Attributes:
        repeats: Of the primitive cell along each axis.
        picoseconds: Length of the run.
        equilibration: ps before.
        timestep: fs.
        interval: Steps between two looks at the energy.
        device: "cuda" or "cpu".
    """

    repeats: int = 10
    picoseconds: float = 50.0
    equilibration: float = 2.0
    timestep: float = 2.0
    interval: int = 10
    device: str = "cuda"


@dataclass(frozen=True)
class Line:
    """A least-squares line.

    Attributes:
        slope: Of the line.
        deviation: Standard deviation about it.
    """

    slope: float
    deviation: float


def line(x: NDArray[np.float64], y: NDArray[np.float64]) -> Line:
    """Fit a line to points, three at least."""
    if len(x) < 3:
        message = f"a line and the deviation from it need 3 points; here are {len(x)}"
        raise ValueError(message)
    slope, offset = np.polyfit(x - x.mean(), y, 1)
    residual = y - offset - slope * (x - x.mean())
    return Line(float(slope), float(np.sqrt((residual**2).sum() / (len(x) - 2))))


@dataclass(frozen=True)
class Trace:
    """A trajectory, as energy sees it.

    Attributes:
        picoseconds: [n], when it was looked at.
        energy: [n], total energy, meV/atom.
        temperature: [n], K.
        seconds: How long the steps took.
        steps: Their number.
    """

    picoseconds: NDArray[np.float64]
    energy: NDArray[np.float64]
    temperature: NDArray[np.float64]
    seconds: float
    steps: int

    def of_part(self, start: float, stop: float) -> Line:
        """Return the line of a part, given as shares of the whole: meV/atom/ps, meV/atom."""
        n = len(self.energy)
        part = slice(round(start * n), round(stop * n))
        return line(self.picoseconds[part], self.energy[part])


def crystal(options: Options, temperature: float) -> Atoms:
    """Return the perfect lattice with velocities of twice the temperature and no momentum as a whole."""
    lattice = LATTICES.get(round(temperature), LATTICES[300])
    atoms = bulk("Cu", "fcc", a=lattice).repeat(options.repeats)
    thermalize_momenta(atoms, 2 * temperature, exact_temperature=True, rng=np.random.default_rng(1))
    Stationary(atoms)
    return atoms


def follow(atoms: Atoms, options: Options, picoseconds: float) -> Trace:
    """Run at constant energy and look at the energy of every few steps."""
    calculator = atoms.calc
    assert isinstance(calculator, edgewise.Calculator)
    seen: list[tuple[float, float, float]] = []
    dynamics = VelocityVerlet(atoms, options.timestep * units.fs)

    def look() -> None:
        kinetic = atoms.get_kinetic_energy()
        # What the step has left there: nothing is calculated, and no array is compared.
        total = 1000 * (calculator.results["energy"] + kinetic) / len(atoms)
        seen.append((dynamics.get_time() / (1000 * units.fs), total, 2 * kinetic / (3 * len(atoms) * units.kB)))

    dynamics.attach(look, interval=options.interval)
    steps = max(1, round(1000 * picoseconds / options.timestep))
    begin = time.perf_counter()
    dynamics.run(steps)
    seconds = time.perf_counter() - begin
    times, energies, temperatures = np.array(seen).T
    return Trace(times, energies, temperatures, seconds, steps)


def run(options: Options, precision: str, temperature: float) -> Row:
    """Follow one trajectory.

    Raises:
        CheckFailedError: Energy is not conserved at all, or errors of the last frame are too large.
    """
    mode, atoms = mode_of(options.device), crystal(options, temperature)
    potential = load(MODEL, TASK, options.device, execution_mode=mode, precision=precision)
    atoms.calc = edgewise.Calculator(potential)
    follow(atoms, options, options.equilibration)
    before = atoms.copy()
    trace = follow(atoms, options, options.picoseconds)
    whole, swings = trace.of_part(0, 1), _swings(before, potential, options)
    require("the drift over the run, meV/atom,", abs(whole.slope) * options.picoseconds, LARGEST_CHANGE)
    return {
        "case": f"{len(atoms)} Cu, {MODEL}, constant energy from {temperature:g} K, VelocityVerlet by ASE",
        "engine": f"edgewise:{mode}:{precision}",
        "precision": precision,
        "atoms": len(atoms),
        "weights": MODEL,
        "from_K": temperature,
        "lattice_A": LATTICES.get(round(temperature), LATTICES[300]),
        "picoseconds": options.picoseconds,
        "equilibration_ps": options.equilibration,
        "timestep_fs": options.timestep,
        "timestep_because": REASON,
        "drift_meV_per_atom_ps": _rounded(whole.slope),
        "drift_of_halves": [_rounded(trace.of_part(*part).slope) for part in ((0, 0.5), (0.5, 1))],
        "deviation_meV_per_atom": _rounded(whole.deviation),
        "deviation_short": _rounded(swings[0]),
        "deviation_short_half_timestep": _rounded(swings[1]),
        "mean_K": round(float(trace.temperature.mean()), 1),
        "deviation_K": round(float(trace.temperature.std()), 1),
        "looks": len(trace.energy),
        "ms_per_step": round(1000 * trace.seconds / trace.steps, 3),
        "error_against_float64": frame_errors(potential, atoms, MODEL, precision),
    }


def _swings(begin: Atoms, potential: edgewise.Potential, options: Options) -> tuple[float, float]:
    """Return the deviations about the line of two short runs from the same state: with the timestep, and with half of it."""
    found = []
    for halves in (1, 2):
        atoms = begin.copy()
        atoms.calc = edgewise.Calculator(potential)
        chosen = replace(options, timestep=options.timestep / halves, interval=2 * halves)
        found.append(follow(atoms, chosen, min(SWING, options.picoseconds)).of_part(0, 1).deviation)
    return found[0], found[1]


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _stage(precision: str, temperature: float) -> Callable[[Path], Iterator[Row]]:
    def stage(out: Path) -> Iterator[Row]:
        del out
        yield run(Options(), precision, temperature)

    stage.__doc__ = f"50 ps of 1000 copper atoms from {temperature:g} K, mode fused, precision {precision}."
    return stage


STAGES = {
    f"{precision}_{temperature}": _stage(precision, temperature) for temperature in LATTICES for precision in PRECISIONS
}


def main() -> None:
    """Print what is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--temperatures", nargs="+", type=float, default=[float(item) for item in LATTICES], help="K")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, help="on a CPU float32 alone")
    parser.add_argument("--picoseconds", type=float, default=Options.picoseconds)
    parser.add_argument("--equilibration", type=float, default=Options.equilibration, help="ps before")
    parser.add_argument("--timestep", type=float, default=Options.timestep, help="fs")
    parser.add_argument("--interval", type=int, default=Options.interval, help="steps between looks at the energy")
    parser.add_argument("--repeats", type=int, default=Options.repeats, help="of the primitive cell along each axis")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the script out")
    arguments = vars(parser.parse_args())
    if arguments["device"] == "cuda":
        require_gpu(parser)
    precisions = arguments.pop("precisions") or (PRECISIONS if arguments["device"] == "cuda" else ("float32",))
    temperatures, options = arguments.pop("temperatures"), Options(**arguments)
    for temperature in temperatures:
        for precision in precisions:
            print(json.dumps(run(options, precision, temperature), ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
