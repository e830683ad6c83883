"""Random structures of a few classes, made from prototypes only: nothing is licensed in, nothing is downloaded.

Each structure's `info["rattle"]` is the standard deviation of its random displacements in Å.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from ase import Atoms
from ase.build import bulk, fcc100, fcc110, fcc111
from numpy.random import Generator

LATTICE_CONSTANTS = {"Al": 3.99, "Cu": 3.59, "Ag": 4.06, "Au": 4.06, "Ni": 3.49, "Pd": 3.88, "Pt": 3.92}
"""Å. Fcc lattice constants near which structures are made."""

VOLUME_RANGE = (0.85, 1.20)
LARGEST_STRAIN = 0.06
RATTLES = (0.02, 0.35)
"""Å, standard deviation of the displacements, drawn log-uniformly."""

CLOSE_DISTANCES = (0.65, 1.9)
"""Å. Distances of the pairs that teach the wall of the potential."""


def _mean_constant(symbols: Sequence[str]) -> float:
    return float(np.mean([LATTICE_CONSTANTS[symbol] for symbol in symbols]))


def _strained(atoms: Atoms, rng: Generator) -> Atoms:
    """Change volume and shape at random."""
    strain = rng.normal(0, LARGEST_STRAIN / 2, (3, 3)).clip(-LARGEST_STRAIN, LARGEST_STRAIN)
    scale = rng.uniform(*VOLUME_RANGE) ** (1 / 3)
    atoms.set_cell(atoms.cell[:] @ (np.eye(3) + (strain + strain.T) / 2) * scale, scale_atoms=True)
    return atoms


def _rattled(atoms: Atoms, rng: Generator) -> Atoms:
    width = np.exp(rng.uniform(*np.log(RATTLES)))
    atoms.positions += rng.normal(0, width, atoms.positions.shape)
    atoms.info["rattle"] = float(width)
    return atoms


def _some_elements(rng: Generator, most: int = 3) -> list[str]:
    n = int(rng.choice(np.arange(1, most + 1), p=np.array([0.35, 0.45, 0.2][:most]) / sum([0.35, 0.45, 0.2][:most])))
    return list(rng.choice(list(LATTICE_CONSTANTS), n, replace=False))


def _decorated(atoms: Atoms, symbols: Sequence[str], rng: Generator) -> Atoms:
    chosen = rng.choice(list(symbols), len(atoms))
    chosen[: len(symbols)] = symbols[: len(atoms)]
    atoms.set_chemical_symbols(list(rng.permutation(chosen)))
    return atoms


def element_crystal(rng: Generator) -> Atoms:
    """One element in fcc, bcc, hcp or simple cubic, 1 to 16 atoms."""
    symbol = str(rng.choice(list(LATTICE_CONSTANTS)))
    a = LATTICE_CONSTANTS[symbol]
    kind = str(rng.choice(["fcc", "bcc", "hcp", "sc"], p=[0.55, 0.2, 0.2, 0.05]))
    spacing = a / np.sqrt(2)
    cells: dict[str, Callable[[], Atoms]] = {
        "fcc": lambda: bulk(symbol, "fcc", a=a, cubic=bool(rng.integers(2))),
        "bcc": lambda: bulk(symbol, "bcc", a=a * 0.794, cubic=bool(rng.integers(2))),
        "hcp": lambda: bulk(symbol, "hcp", a=spacing, c=1.633 * spacing),
        "sc": lambda: bulk(symbol, "sc", a=a * 0.65),
    }
    atoms = cells[kind]()
    if len(atoms) <= 2:
        atoms = atoms.repeat(rng.integers(1, 3, 3))
    return _rattled(_strained(atoms, rng), rng)


def ordered_alloy(rng: Generator) -> Atoms:
    """L1_2, L1_0 or B2 of two elements."""
    first, second = rng.choice(list(LATTICE_CONSTANTS), 2, replace=False)
    a = _mean_constant([first, second])
    kind = str(rng.choice(["L12", "L10", "B2"]))
    if kind == "B2":
        atoms = Atoms([first, second], scaled_positions=[(0, 0, 0), (0.5, 0.5, 0.5)], cell=[a * 0.794] * 3, pbc=True)
        atoms = atoms.repeat(rng.integers(1, 3, 3))
    else:
        atoms = bulk("Cu", "fcc", a=a, cubic=True)
        symbols = [first, second, second, second] if kind == "L12" else [first, first, second, second]
        atoms.set_chemical_symbols(symbols)
        atoms = atoms.repeat([1, 1, int(rng.integers(1, 3))])
    return _rattled(_strained(atoms, rng), rng)


def random_alloy(rng: Generator) -> Atoms:
    """One to three elements at random on fcc sites, 4 to 32 atoms, with a vacancy now and then."""
    symbols = _some_elements(rng)
    atoms = bulk("Cu", "fcc", a=_mean_constant(symbols), cubic=True).repeat(
        rng.choice([[1, 1, 2], [1, 2, 2], [2, 2, 2]])
    )
    atoms = _decorated(atoms, symbols, rng)
    if rng.random() < 0.25:
        del atoms[int(rng.integers(len(atoms)))]
    return _rattled(_strained(atoms, rng), rng)


def slab(rng: Generator) -> Atoms:
    """Fcc slabs with two periodic axes, 3 to 5 layers, one or two elements."""
    symbols = _some_elements(rng, 2)
    build = (fcc111, fcc100, fcc110)[int(rng.integers(3))]
    size = (int(rng.integers(1, 3)), int(rng.integers(1, 3)), int(rng.integers(3, 6)))
    atoms = build("Cu", size=size, a=_mean_constant(symbols), vacuum=6.0)
    atoms = _decorated(atoms, symbols, rng)
    atoms.pbc = (True, True, False)
    return _rattled(atoms, rng)


def cluster(rng: Generator) -> Atoms:
    """2 to 13 atoms without periodic axes: pieces of a crystal, pulled apart or squeezed."""
    symbols = _some_elements(rng, 2)
    piece = bulk("Cu", "fcc", a=_mean_constant(symbols), cubic=True).repeat(3)
    centre = piece.positions[int(rng.integers(len(piece)))]
    nearest = np.argsort(np.linalg.norm(piece.positions - centre, axis=1))[: int(rng.integers(2, 14))]
    atoms = Atoms(piece.numbers[nearest], piece.positions[nearest] * rng.uniform(0.85, 1.4))
    return _rattled(_decorated(atoms, symbols, rng), rng)


def dimer(rng: Generator) -> Atoms:
    """Two atoms 1.4 to 6.5 Å apart, or one atom."""
    symbols = [str(item) for item in rng.choice(list(LATTICE_CONSTANTS), 2)]
    if rng.random() < 0.1:
        return Atoms(symbols[:1], [[0, 0, 0]])
    return Atoms(symbols, [[0, 0, 0], [rng.uniform(1.4, 6.5), 0, 0]])


def close_pair(rng: Generator) -> Atoms:
    """Two atoms much too close: a dimer, or a crystal or cluster with one atom pushed towards its neighbour."""
    distance = rng.uniform(*CLOSE_DISTANCES)
    if rng.random() < 0.5:
        symbols = [str(item) for item in rng.choice(list(LATTICE_CONSTANTS), 2)]
        return Atoms(symbols, [[0, 0, 0], [distance, 0, 0]])
    atoms = (random_alloy, cluster)[int(rng.integers(2))](rng)
    moved = int(rng.integers(len(atoms)))
    others = np.delete(np.arange(len(atoms)), moved)
    away = atoms.get_distances(moved, others, mic=True, vector=True)
    nearest = away[np.argmin(np.linalg.norm(away, axis=1))]
    atoms.positions[moved] += nearest * (1 - distance / np.linalg.norm(nearest))
    return atoms


def perfect_crystal(rng: Generator) -> Atoms:
    """One element, or L1_2, L1_0 or B2 of two, without strain or rattle, at any volume of the range."""
    a_scale = rng.uniform(*VOLUME_RANGE) ** (1 / 3)
    first, second = rng.choice(list(LATTICE_CONSTANTS), 2, replace=False)
    kind = str(rng.choice(["fcc", "bcc", "hcp", "L12", "L10", "B2"], p=[0.5, 0.1, 0.1, 0.1, 0.1, 0.1]))
    if kind in ("fcc", "bcc", "hcp"):
        second = first
    a = _mean_constant([first, second]) * a_scale
    if kind in ("bcc", "B2"):
        return Atoms([first, second], scaled_positions=[(0, 0, 0), (0.5, 0.5, 0.5)], cell=[a * 0.794] * 3, pbc=True)
    if kind == "hcp":
        return bulk(first, "hcp", a=a / np.sqrt(2), c=1.633 * a / np.sqrt(2))
    atoms = bulk("Cu", "fcc", a=a, cubic=True)
    atoms.set_chemical_symbols([first, first if kind == "L10" else second, second, second])
    return atoms


KINDS: dict[str, tuple[float, Callable[[Generator], Atoms]]] = {
    "element crystal": (0.28, element_crystal),
    "ordered alloy": (0.17, ordered_alloy),
    "random alloy": (0.30, random_alloy),
    "slab": (0.10, slab),
    "cluster": (0.06, cluster),
    "dimer": (0.05, dimer),
    "close pair": (0.04, close_pair),
    "perfect crystal": (0.0, perfect_crystal),
}
"""Share and maker of each class; those without a share are made on demand only."""


def random_structure(rng: Generator, kind: str | None = None) -> tuple[str, Atoms]:
    """Return the class and a random structure.

    Args:
        rng: Decides everything.
        kind: The class, or None to draw one.
    """
    names = list(KINDS)
    if kind is None:
        kind = str(rng.choice(names, p=[KINDS[name][0] for name in names]))
    return kind, KINDS[kind][1](rng)
