"""Relaxes a crystal from a file with the embedded model, runs short dynamics, and compares with the model's teacher.

Run it with `make demo`. It leaves a trajectory and a picture in `demo-output`.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import ase.io
import numpy as np
from ase.calculators.emt import EMT

import edgewise
from edgewise.cli.dynamics import DynamicsOptions, run_dynamics
from edgewise.cli.equation_of_state import EquationOptions, equation_of_state
from edgewise.cli.progress import Progress
from edgewise.cli.relax import RelaxOptions, relax
from edgewise.cli.reporting import draw_curves

STRUCTURE = Path(__file__).parent / "copper_aluminium.cif"
OUTPUT = Path("demo-output")
STEPS = 150
TIMESTEP = 2.0
"""fs"""


def main() -> int:
    """Run the demonstration; return 0 when the student is as close to its teacher as its card says."""
    begin = time.monotonic()
    OUTPUT.mkdir(exist_ok=True)
    potential = edgewise.load("emt-mini")
    print(potential.describe(), "\n", sep="\n")

    with warnings.catch_warnings():
        # The file gives no symmetry on purpose: its atoms are displaced.
        warnings.simplefilter("ignore")
        start = ase.io.read(STRUCTURE)
    options = RelaxOptions(cell="full", fmax=0.01)
    rows = {}
    for name, calculator in {"emt-mini": edgewise.Calculator(potential), "EMT itself": EMT()}.items():
        with Progress(f"relax with {name}", options.steps) as progress:
            relaxed = relax(start, calculator, options, OUTPUT / f"relax-{name[:3]}.extxyz", report=progress.update)
        state = equation_of_state(relaxed.atoms, calculator, EquationOptions())
        rows[name] = (
            state.volume ** (1 / 3),
            relaxed.energy / len(start),
            state.bulk_modulus,
        )
        if name == "emt-mini":
            crystal = relaxed.atoms

    print(f"AlCu3 (L1_2), relaxed from {STRUCTURE.name}")
    print(f"{'':14}{'lattice constant':>20}{'energy':>20}{'bulk modulus':>16}")
    for name, (constant, energy, modulus) in rows.items():
        print(f"{name:14}{constant:>18.4f} Å{energy:>13.4f} eV/atom{modulus:>12.1f} GPa")

    supercell = crystal.repeat((2, 2, 1))
    supercell.set_constraint()
    dynamics = DynamicsOptions(steps=STEPS, timestep=TIMESTEP, temperature=600.0, interval=5)
    with Progress("dynamics", STEPS) as progress:
        run = run_dynamics(
            supercell, edgewise.Calculator(potential), dynamics, OUTPUT / "dynamics.extxyz", report=progress.update
        )
    time_ps = [value / 1000 for value in run.column("time_fs")]
    potential_energy = run.column("potential_energy_eV")
    total = [a + b for a, b in zip(potential_energy, run.column("kinetic_energy_eV"), strict=True)]
    drift = 1000 * float(np.polyfit(time_ps, total, 1)[0]) / len(supercell)
    picture = OUTPUT / "dynamics.png"
    curves = {
        "potential energy (eV)": potential_energy,
        "total energy (eV)": total,
        "temperature (K)": run.column("temperature_K"),
    }
    draw_curves(picture, time_ps, "time (ps)", curves)

    frames = ase.io.read(OUTPUT / "dynamics.extxyz", index=":")
    differences = []
    for frame in frames:
        reference = frame.copy()
        reference.calc = EMT()
        differences.append(frame.get_forces() - reference.get_forces())
    error = 1000 * float(np.abs(differences).mean())
    print(f"\n{STEPS} steps of {TIMESTEP} fs with {len(supercell)} atoms from 600 K:")
    print(f"  drift of the total energy {drift:.2f} meV per atom and ps")
    print(f"  forces differ from EMT's by {error:.1f} meV/Å on average over {len(frames)} frames")
    print(f"\ntrajectory: {OUTPUT / 'dynamics.extxyz'}\npicture:    {picture}")
    print(f"done in {time.monotonic() - begin:.0f} s")
    (student, *_), (teacher, *_) = rows.values()
    return 0 if abs(student - teacher) < 0.01 * teacher else 1


if __name__ == "__main__":
    sys.exit(main())
