"""Times molecular dynamics as users run it: ASE's Langevin thermostat on 1000 silicon atoms, through our calculator.

    python benchmarks/molecular_dynamics.py [--precisions fast tf32 float32] [--steps 500] [--checkpoint FILE --task omat]
    python benchmarks/molecular_dynamics.py --device cpu --repeats 1 --steps 5 --warm-up 2        a tiny model, to try it out
    python benchmarks/run.py dynamics                                                            the same for the record

The perfect diamond lattice is first brought to its temperature, since there are as many neighbours as in a warm crystal only
then. Random weights bind no crystal: their forces on silicon are below 1e-3 eV/Å, and its atoms would fly apart. A spring
ties each atom to its site with them, so stiff that it moves as far as in silicon at 300 K; rows say so. What springs cost
(some microseconds of numpy) counts as ASE's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.build import bulk
from ase.constraints import FixConstraint
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import thermalize_momenta
from checks import require
from dynamics import PRECISIONS, Clock, Model, TimedCalculator, frame_errors, load, mode_of, times_of_steps
from machine import require_gpu
from numpy.typing import NDArray
from records import Row

import edgewise

FILE = "molecular_dynamics.jsonl"

LATTICE = 5.431
"""Å, silicon at 300 K."""

TEMPERATURE = 300.0
FRICTION = 0.01
"""1/fs."""

STIFFNESS = 4.0
"""eV/Å^2, k T over the mean square displacement of silicon at 300 K along an axis, (0.08 Å)^2."""

LARGEST_DISPLACEMENT = 0.25
"""Å, root of the mean square over atoms of all three axes; beyond it this is no crystal any more."""


@dataclass(frozen=True)
class Options:
    """What can be chosen.

    Attributes:
        repeats: Cubic cells of 8 atoms along each axis.
        steps: Timed steps.
        warm_up: Steps before, in which the crystal takes its temperature.
        timestep: fs.
        device: "cuda" or "cpu".
        checkpoint: File or name of a model; None takes random weights, of the size of UMA-S on a GPU.
        task: Of the model.
    """

    repeats: int = 5
    steps: int = 500
    warm_up: int = 200
    timestep: float = 1.0
    device: str = "cuda"
    checkpoint: str | None = None
    task: str = "omat"

    def model(self) -> Model:
        """Return the model."""
        if self.checkpoint is not None:
            return self.checkpoint
        from models import tiny, uma_s

        return uma_s() if self.device == "cuda" else tiny()

    def weights(self) -> str:
        """Return what rows say of the weights."""
        if self.checkpoint is not None:
            return Path(self.checkpoint).name
        return "random, " + ("UMA-S size" if self.device == "cuda" else "tiny")


class Springs(FixConstraint):
    """A spring between each atom and its site, in the form of ASE's constraints."""

    def __init__(self, sites: NDArray[np.float64], stiffness: float) -> None:
        """Tie atoms to sites [n_atoms, 3], Å, with a stiffness in eV/Å^2."""
        self._sites, self._stiffness = sites, stiffness

    def get_removed_dof(self, atoms: Atoms) -> int:
        """Return 0: all directions stay free."""
        del atoms
        return 0

    def adjust_momenta(self, atoms: Atoms, momenta: NDArray[np.float64]) -> None:
        """Leave momenta as they are; ASE would adjust them like forces."""

    def adjust_forces(self, atoms: Atoms, forces: NDArray[np.float64]) -> None:
        """Add the forces of the springs, eV/Å."""
        forces -= self._stiffness * (atoms.positions - self._sites)

    def adjust_potential_energy(self, atoms: Atoms) -> float:
        """Return the energy of the springs, eV; its presence tells ASE to keep their forces in dynamics."""
        return float(0.5 * self._stiffness * ((atoms.positions - self._sites) ** 2).sum())


def silicon(repeats: int) -> Atoms:
    """Return the perfect crystal of 8 repeats^3 atoms."""
    return bulk("Si", "diamond", a=LATTICE, cubic=True).repeat(repeats)


def run(options: Options, precision: str) -> Row:
    """Run and time one trajectory.

    Raises:
        CheckFailedError: The crystal was lost, or errors of the last frame are too large: then there is no row.
    """
    from structures import count_edges

    model, atoms = options.model(), silicon(options.repeats)
    mode = mode_of(options.device)
    potential = load(model, options.task, options.device, execution_mode=mode, precision=precision)
    calculator, sites = TimedCalculator(potential), atoms.positions.copy()
    if options.checkpoint is None:
        atoms.set_constraint(Springs(sites, STIFFNESS))
    atoms.calc = calculator
    thermalize_momenta(atoms, temperature_K=TEMPERATURE, rng=np.random.default_rng(1))
    dynamics = Langevin(
        atoms,
        options.timestep * units.fs,
        temperature_K=TEMPERATURE,
        friction=FRICTION / units.fs,
        fixcm=False,
        rng=np.random.default_rng(2),
    )
    begin = time.perf_counter()
    dynamics.run(options.warm_up)
    warm_up_s, recorded, first_edges = time.perf_counter() - begin, _recorded(potential), count_edges(atoms, "cpu")
    calculator.seconds.clear()
    clock, temperatures = Clock(), [atoms.get_temperature()]
    dynamics.attach(clock, interval=1)
    dynamics.attach(lambda: temperatures.append(atoms.get_temperature()), interval=10)
    # Starts the clock; every step then calls it.
    clock()
    begin = time.perf_counter()
    dynamics.run(options.steps)
    whole = time.perf_counter() - begin
    displacement = np.sqrt(((atoms.positions - sites) ** 2).sum(1).mean())
    require("the displacement of atoms from their sites, Å,", float(displacement), LARGEST_DISPLACEMENT)
    found = frame_errors(potential, atoms, model, precision)
    return {
        "case": f"{len(atoms)} Si, Langevin at {TEMPERATURE:g} K by ASE, {options.timestep:g} fs",
        "engine": f"edgewise:{mode}:{precision}",
        "atoms": len(atoms),
        "edges": [first_edges, count_edges(atoms, "cpu")],
        "weights": options.weights(),
        "held": "" if options.checkpoint else f"each atom by a spring of {STIFFNESS:g} eV/Å^2 to its site",
        "steps": options.steps,
        "warm_up": options.warm_up,
        "warm_up_s": round(warm_up_s, 2),
        "ns_per_day": round(86400 * options.steps * options.timestep * 1e-6 / whole, 3),
        **times_of_steps(clock.milliseconds()[-options.steps :], calculator.seconds[-options.steps :]),
        "recordings": [recorded, _recorded(potential)],
        "temperature_K": round(float(np.mean(temperatures)), 1),
        "displacement_A": round(float(displacement), 4),
        "error_against_float64": found,
    }


def _recorded(potential: edgewise.Potential) -> int | None:
    """Return how many recordings of steps are in memory, one for each room for edges; None for modes that record nothing."""
    return getattr(potential._runner, "n_recorded", None)  # noqa: SLF001


def _stage(precision: str) -> Callable[[Path], Iterator[Row]]:
    def stage(out: Path) -> Iterator[Row]:
        del out
        yield run(Options(), precision)

    stage.__doc__ = f"500 steps of 1000 silicon atoms, mode fused, precision {precision}."
    return stage


STAGES = {precision: _stage(precision) for precision in PRECISIONS}


def main() -> None:
    """Print what is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, help="on a CPU float32 alone")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the script out")
    parser.add_argument("--repeats", type=int, default=Options.repeats, help="cubic cells along each axis")
    parser.add_argument("--steps", type=int, default=Options.steps)
    parser.add_argument("--warm-up", type=int, default=Options.warm_up, help="steps before")
    parser.add_argument("--timestep", type=float, default=Options.timestep, help="fs")
    parser.add_argument("--checkpoint", help="file or name of a model; random weights unless given")
    parser.add_argument("--task", default=Options.task)
    arguments = vars(parser.parse_args())
    if arguments["device"] == "cuda":
        require_gpu(parser)
    precisions = arguments.pop("precisions") or (PRECISIONS if arguments["device"] == "cuda" else ("float32",))
    for precision in precisions:
        print(json.dumps(run(Options(**arguments), precision), ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
