"""Structures and graphs that benchmarks share."""

from __future__ import annotations

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk
from sizes import CUTOFF, REFERENCE_EDGES
from torch import Tensor

from edgewise.cell_list import find_edges
from edgewise.systems import batch_from_atoms


def copper(
    n: tuple[int, int, int] = (10, 10, 10), *, seed: int = 1, rattle: float = 0.08, rounded: bool = False
) -> Atoms:
    """Return a rattled fcc copper crystal, a = 3.61 Å; the default has 1000 atoms.

    Args:
        n: Repetitions of the primitive cell.
        seed: Of the displacements.
        rattle: Their standard deviation along each axis, Å.
        rounded: Round cell and positions to float32, so that engines that work in it see the same structure.
    """
    return _rattled(bulk("Cu", "fcc", a=3.61).repeat(n), seed, rattle, rounded=rounded)


def cubic_copper(repeats: int) -> Atoms:
    """Return a rattled crystal of 4 repeats^3 atoms, a = 3.6 Å."""
    return _rattled(bulk("Cu", "fcc", a=3.6, cubic=True).repeat(repeats), 1, 0.12, wrap=False)


def _rattled(atoms: Atoms, seed: int, rattle: float, *, wrap: bool = True, rounded: bool = False) -> Atoms:
    atoms.positions += np.random.default_rng(seed).normal(0, rattle, atoms.positions.shape)
    if rounded:
        atoms.set_cell(atoms.cell.array.astype(np.float32).astype(float))
    if wrap:
        atoms.wrap()
    if rounded:
        atoms.positions = atoms.positions.astype(np.float32).astype(float)
    return atoms


def count_edges(atoms: Atoms, device: str) -> int:
    """Return the number of edges within the cutoff of UMA-S."""
    return find_edges(batch_from_atoms([atoms], ["omat"]), CUTOFF, torch.device(device)).edge_index.shape[1]


def reference_graph(device: torch.device, n_edges: int = REFERENCE_EDGES) -> tuple[Tensor, Tensor]:
    """Return edge index [2, n_edges] and vectors [n_edges, 3] of 1000 copper atoms, the cutoff tuned to the count."""
    found = find_edges(batch_from_atoms([copper()], ["omat"]), 7.0, device)
    chosen = found.squared.argsort()[:n_edges].sort().values
    return found.edge_index[:, chosen], found.edge_vec[chosen]


def random_graph(device: torch.device, n_edges: int = REFERENCE_EDGES, n_atoms: int = 1000) -> tuple[Tensor, Tensor]:
    """Return a graph whose edges join atoms at random, sorted by target, with random vectors."""
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, n_atoms, (2, n_edges), generator=generator)
    edge_index = edge_index[:, edge_index[1].argsort(stable=True)]
    vectors = 2 * torch.randn(n_edges, 3, generator=generator, dtype=torch.float64)
    return edge_index.to(device), vectors.to(device)
