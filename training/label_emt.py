"""Makes random structures and labels them with ASE's EMT potential.

python training/label_emt.py --out emt.npz
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.calculators.emt import EMT
from dataset import Dataset
from structures import KINDS, random_structure

LARGEST_FORCE = 25.0
"""eV/Å; structures beyond are dropped."""

LARGEST_CLOSE_FORCE = 5000.0
"""eV/Å; the same for the class of pairs that are too close on purpose."""

CHUNK = 50


def label(atoms: Atoms) -> Atoms:
    """Attach EMT's energy, forces and (where all axes are periodic) stress as a calculator."""
    atoms.calc = EMT()
    return atoms


def labelled_chunk(
    seed: tuple[int, int], kind_wanted: str | None = None
) -> list[tuple[str, Atoms, float, np.ndarray, np.ndarray]]:
    """Return one chunk of labelled structures; the seed decides all of it."""
    rng = np.random.default_rng(seed)
    made = []
    while len(made) < CHUNK:
        kind, atoms = random_structure(rng, kind_wanted)
        label(atoms)
        forces = atoms.get_forces()
        limit = LARGEST_CLOSE_FORCE if kind == "close pair" else LARGEST_FORCE
        if not np.isfinite(forces).all() or np.abs(forces).max() > limit:
            continue
        stress = atoms.get_stress(voigt=False) if atoms.pbc.all() else np.full((3, 3), np.nan)
        energy = float(atoms.get_potential_energy())
        # The calculator cannot travel between processes.
        atoms.calc = None
        made.append((kind, atoms, energy, forces, stress))
    return made


def main() -> None:
    """Make a data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=30000, help="number of structures")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=sorted(KINDS), help="make this class of structures only")
    parser.add_argument("--add-to", type=Path, help="put the structures behind those of this file")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    seeds = [(arguments.seed, chunk) for chunk in range(-(-arguments.n // CHUNK))]
    rows: list[tuple[str, Atoms, float, np.ndarray, np.ndarray]] = []
    start = time.monotonic()
    with multiprocessing.Pool(arguments.processes) as pool:
        for done, chunk in enumerate(pool.imap(partial(labelled_chunk, kind_wanted=arguments.kind), seeds), 1):
            rows += chunk
            if done % 20 == 0 or done == len(seeds):
                rate = len(rows) / (time.monotonic() - start)
                left = (len(seeds) - done) * CHUNK / rate
                print(f"{len(rows)} structures, {rate:.0f} a second, {left:.0f} s left", file=sys.stderr)
    made = Dataset(
        numbers=np.concatenate([atoms.numbers for _, atoms, *_ in rows]).astype(np.int64),
        positions=np.concatenate([atoms.positions for _, atoms, *_ in rows]),
        cell=np.stack([np.array(atoms.cell[:]) for _, atoms, *_ in rows]),
        pbc=np.stack([atoms.pbc for _, atoms, *_ in rows]),
        n_atoms=np.array([len(atoms) for _, atoms, *_ in rows], dtype=np.int64),
        energy=np.array([row[2] for row in rows]),
        forces=np.concatenate([row[3] for row in rows]),
        stress=np.stack([row[4] for row in rows]),
        kind=np.array([row[0] for row in rows]),
        rattle=np.array([atoms.info.get("rattle", 0.0) for _, atoms, *_ in rows]),
    )
    if arguments.add_to:
        made = Dataset.load(arguments.add_to).followed_by(made)
    made.save(arguments.out)


if __name__ == "__main__":
    main()
