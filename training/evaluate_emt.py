"""Measures a student of EMT and writes its card: held-out errors, lattice constants, bulk moduli, energy conservation.

python training/evaluate_emt.py --data emt.npz --state run/state.pt --out card.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from itertools import combinations_with_replacement, pairwise
from pathlib import Path
from typing import Any

import ase
import numpy as np
import torch
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.calculator import Calculator as ASECalculator
from ase.calculators.emt import EMT
from ase.eos import EquationOfState
from ase.md.velocitydistribution import Stationary, thermalize_momenta
from ase.md.verlet import VelocityVerlet
from dataset import Dataset
from models import MODELS
from package import checkpoint_from_state
from structures import LATTICE_CONSTANTS
from train import split

import edgewise

CRYSTALS = ("element crystal", "ordered alloy", "random alloy", "slab")
"""Classes that are rattled crystals and surfaces."""

NO_FORCE = 1e-3
"""eV/Å; classes whose forces are smaller by symmetry have no direction to compare."""

NOT_FOR = (
    "research. EMT itself is crude (its bulk modulus of aluminium is half of the real one), and ASE's own EMT is exact and "
    "faster; this model exists to try the package and to test it. For research load a UMA model."
)


def errors_by_class(potential: edgewise.Potential, data: Dataset, chosen: list[int]) -> dict[str, dict[str, float]]:
    """Return energy, force and stress errors of each class of structures.

    Args:
        potential: The student.
        data: Labelled structures.
        chosen: Which of them to judge.
    """
    part = data.select(chosen)
    results = potential.predict(_structures(part))
    rows: dict[str, dict[str, float]] = {}
    atom_kind = np.repeat(part.kind, part.n_atoms)
    for kind in sorted(set(part.kind.tolist())):
        systems, atoms = part.kind == kind, atom_kind == kind
        energy = np.abs(results.energy - part.energy)[systems] / part.n_atoms[systems]
        force = results.forces[atoms] - part.forces[atoms]
        known = systems & np.isfinite(part.stress).all(axis=(1, 2))
        rows[kind] = {
            "structures": int(systems.sum()),
            "energy MAE (meV/atom)": _rounded(1000 * energy.mean()),
            "force MAE (meV/Å)": _rounded(1000 * np.abs(force).mean()),
        }
        if np.abs(part.forces[atoms]).mean() > NO_FORCE:
            rows[kind]["force cosine"] = _rounded(_cosine(results.forces[atoms], part.forces[atoms]))
        if known.any():
            difference = np.abs(results.stress[known] - part.stress[known]).mean()
            rows[kind]["stress MAE (GPa)"] = _rounded(difference / units.GPa)
    return rows


def _structures(part: Dataset) -> list[Atoms]:
    return [
        Atoms(part.numbers[a:b], part.positions[a:b], cell=part.cell[i], pbc=part.pbc[i])
        for i, (a, b) in enumerate(pairwise(part.offsets))
    ]


def _rounded(value: float) -> float:
    return float(f"{float(value):.4g}")


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def gentle_rattles(
    potential: edgewise.Potential, data: Dataset, chosen: list[int], largest: float = 0.15
) -> dict[str, float]:
    """Return force errors over the crystals among the chosen structures whose rattle is small.

    Args:
        potential: The student.
        data: Labelled structures.
        chosen: Which of them to judge.
        largest: Å, standard deviation of the displacements.
    """
    small = [i for i in chosen if data.rattle[i] <= largest and data.kind[i] in CRYSTALS]
    if not small:
        return {}
    part = data.select(small)
    forces = potential.predict(_structures(part)).forces
    return {
        "structures": len(small),
        "force MAE (meV/Å)": _rounded(1000 * np.abs(forces - part.forces).mean()),
        "force cosine": _rounded(_cosine(forces, part.forces)),
    }


def lattice_and_modulus(symbol: str, calculator: ASECalculator) -> tuple[float, float]:
    """Return the fcc lattice constant in Å and the bulk modulus in GPa."""
    volumes, energies = [], []
    for scale in np.linspace(0.97, 1.03, 9):
        atoms = bulk(symbol, "fcc", a=LATTICE_CONSTANTS[symbol] * scale, cubic=True)
        atoms.calc = calculator
        volumes.append(atoms.get_volume())
        energies.append(atoms.get_potential_energy())
    volume, _, modulus = EquationOfState(volumes, energies, eos="birchmurnaghan").fit()
    return float(volume ** (1 / 3)), float(modulus / units.GPa)


def energy_drift(potential: edgewise.Potential, picoseconds: float) -> float:
    """Return the drift of the total energy of 32 copper atoms at 300 K, meV per atom over the run."""
    atoms = bulk("Cu", a=3.59, cubic=True).repeat(2)
    thermalize_momenta(atoms, temperature_K=600, rng=np.random.default_rng(0))
    Stationary(atoms)
    atoms.calc = edgewise.Calculator(potential)
    total = [
        atoms.get_total_energy() for _ in VelocityVerlet(atoms, timestep=2 * units.fs).irun(int(picoseconds * 500))
    ]
    return 1000 * float(np.polyfit(np.arange(len(total)), total, 1)[0] * len(total)) / len(atoms)


def short_dimers(potential: edgewise.Potential) -> dict[str, Any]:
    """Return how many dimers at 0.8 to 1.5 Å repel each other, and the weakest push in eV/Å."""
    symbols = list(LATTICE_CONSTANTS)
    distances = np.linspace(0.8, 1.5, 8)
    pairs = [
        Atoms(pair, [[0, 0, 0], [distance, 0, 0]])
        for pair in combinations_with_replacement(symbols, 2)
        for distance in distances
    ]
    push = potential.predict(pairs).forces.reshape(-1, 2, 3)[:, 1, 0]
    return {"tried": len(pairs), "repulsive": int((push > 0).sum()), "weakest push (eV/Å)": _rounded(push.min())}


def lone_atoms(potential: edgewise.Potential) -> dict[str, Any]:
    """Return whether lone atoms have finite energies, and their mean error in meV."""
    atoms = [Atoms([symbol]) for symbol in LATTICE_CONSTANTS]
    energy = np.asarray(potential.predict(atoms).energy)
    for item in atoms:
        item.calc = EMT()
    exact = np.array([item.get_potential_energy() for item in atoms])
    return {
        "finite": bool(np.isfinite(energy).all()),
        "energy MAE (meV)": _rounded(1000 * np.abs(energy - exact).mean()),
    }


def make_card(state: dict[str, Any], data: Dataset, model: str, picoseconds: float, seed: int) -> dict[str, Any]:
    """Return the card of a student.

    Args:
        state: What the trainer saved.
        data: The data set that it was trained on, held-out structures included.
        model: Name of the recipe.
        picoseconds: Length of the run that measures energy conservation.
        seed: Seed of the data set.
    """
    recipe = MODELS[model]
    checkpoint = checkpoint_from_state(state, recipe, {"elements": list(recipe.elements)})
    potential = edgewise.Potential(checkpoint)
    parts = split(data, recipe)
    errors = {
        f"{part}, {kind}": row
        for part in ("held-out compositions", "known compositions")
        for kind, row in errors_by_class(potential, data, parts[part]).items()
    }
    physical = {}
    for symbol in recipe.elements:
        student = lattice_and_modulus(symbol, edgewise.Calculator(potential))
        teacher = lattice_and_modulus(symbol, EMT())
        physical[symbol] = {
            "a (Å)": _rounded(student[0]),
            "EMT": _rounded(teacher[0]),
            "B (GPa)": _rounded(student[1]),
            "EMT's": _rounded(teacher[1]),
        }
    for part in ("held-out compositions", "known compositions"):
        physical[f"crystals rattled by at most 0.15 Å, {part}"] = gentle_rattles(potential, data, parts[part])
    drift = energy_drift(potential, picoseconds)
    physical["energy drift"] = {f"meV/atom in {picoseconds} ps, 32 Cu, 300 K, 2 fs": _rounded(drift)}
    physical["dimers at 0.8 to 1.5 Å"] = short_dimers(potential)
    physical["lone atoms"] = lone_atoms(potential)
    counts = Counter(data.kind[parts["train"]].tolist())
    symbols = ase.data.chemical_symbols
    return {
        "name": recipe.name,
        "description": "demonstration model: a 32-channel, 2-layer student of ASE's EMT potential for seven metals",
        "teacher": "effective medium theory as in ase.calculators.emt",
        "teacher_version": f"ase {ase.__version__}",
        "elements": list(recipe.elements),
        "task": recipe.task,
        "cutoff": recipe.model_config["backbone"]["cutoff"],
        "data": {"seed": seed, **{kind: int(count) for kind, count in sorted(counts.items())}},
        "held_out": ["-".join(symbols[number] for number in item) for item in recipe.held_out],
        "errors": errors,
        "physical": physical,
        "not_for": NOT_FOR,
        "trained": {
            "date": state["date"],
            "steps": state["step"],
            "steps of an earlier run that it starts from": state["earlier_steps"],
            "passes over the data": state["epoch"],
            "seconds": round(state["seconds"]),
            "device": state["device"],
        },
        "script": "training/label_emt.py, training/train.py, training/evaluate_emt.py, training/package.py",
        "licence": "MIT",
        "credit": "labels by the EMT implementation of ASE (LGPL); no data of others",
    }


def main() -> None:
    """Measure and write the card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True, help="state.pt of a run")
    parser.add_argument("--model", default="emt-mini", choices=sorted(MODELS))
    parser.add_argument("--picoseconds", type=float, default=5.0, help="length of the energy conservation run")
    parser.add_argument("--seed", type=int, default=1, help="seed that the data set was made with")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    start = time.monotonic()
    state = torch.load(arguments.state, map_location="cpu", weights_only=True)
    card = make_card(state, Dataset.load(arguments.data), arguments.model, arguments.picoseconds, arguments.seed)
    arguments.out.write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps({"errors": card["errors"], "physical": card["physical"]}, indent=2, ensure_ascii=False))
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
