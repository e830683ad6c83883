"""Edges against a brute-force search: direction, shifts, order, tiny and skewed cells, the neighbour cap."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.errors import InvalidStructureError
from edgewise.neighbors import build_edges
from edgewise.systems import batch_from_atoms
from tests.cases import copper_cube, copper_primitive, salt, slab, water


def brute_force(atoms: Atoms, cutoff: float) -> set[tuple[int, int, int, int, int]]:
    """Return (source, target, shift) of all edges by looking at every image."""
    cell = np.array(atoms.cell[:]) if atoms.pbc.any() else np.eye(3)
    spacings = 1 / np.linalg.norm(np.linalg.inv(cell), axis=0)
    # Atoms may lie outside the cell, so the range of images grows with their spread.
    scaled = atoms.positions @ np.linalg.inv(cell)
    spread = np.ptp(scaled, axis=0)
    ranges = [
        range(-int(np.ceil(cutoff / h + s)), int(np.ceil(cutoff / h + s)) + 1) if periodic else range(1)
        for h, s, periodic in zip(spacings, spread, atoms.pbc, strict=True)
    ]
    found = set()
    for shift in itertools.product(*ranges):
        vectors = atoms.positions[:, None] + np.array(shift) @ cell - atoms.positions[None]
        distances = np.linalg.norm(vectors, axis=-1)
        for source, target in np.argwhere((distances <= cutoff) & (distances > 0)):
            found.add((int(source), int(target), *shift))
    return found


def edge_set(atoms: Atoms, cutoff: float) -> set[tuple[int, int, int, int, int]]:
    edges = build_edges(batch_from_atoms([atoms], ["omat"]), cutoff)
    rows = torch.cat([edges.edge_index.T, edges.shifts], dim=1).tolist()
    assert len(rows) == len(set(map(tuple, rows)))
    return set(map(tuple, rows))


@pytest.mark.parametrize(
    ("atoms", "n_edges"), [(water(), 6), (copper_primitive(), 78), (copper_cube(), 312), (salt(), 256), (slab(9), 142)]
)
def test_known_counts(atoms: Atoms, n_edges: int) -> None:
    assert len(edge_set(atoms, 6.0)) == n_edges


@pytest.mark.parametrize("height", [0.0, 0.5, 4.0, 50.0])
def test_height_of_a_slab_cell_does_not_matter(height: float) -> None:
    assert len(edge_set(slab(height), 6.0)) == 142


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n_atoms=st.integers(1, 4),
    pbc=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    skew=st.floats(0, 0.6),
)
def test_edges_equal_brute_force(seed: int, n_atoms: int, pbc: tuple[bool, bool, bool], skew: float) -> None:
    rng = np.random.default_rng(seed)
    cell = np.diag(rng.uniform(2.0, 5.0, 3)) + skew * rng.uniform(-2, 2, (3, 3))
    if abs(np.linalg.det(cell)) < 4:
        cell = np.diag([3.0, 3.5, 4.0])
    atoms = Atoms(f"H{n_atoms}", rng.uniform(-8, 8, (n_atoms, 3)), cell=cell, pbc=pbc)
    assert edge_set(atoms, 4.0) == brute_force(atoms, 4.0)


def test_vectors_point_from_target_to_source_image() -> None:
    """A two-atom triclinic cell fixes the direction of edges and shifts."""
    cell = np.array([[3.0, 0.0, 0.0], [1.0, 3.5, 0.0], [-0.5, 0.7, 4.0]])
    atoms = Atoms("HO", [[0.1, 0.2, 0.3], [1.4, 1.1, 2.0]], cell=cell, pbc=True)
    edges = build_edges(batch_from_atoms([atoms], ["omat"]), 5.0)
    source, target = edges.edge_index.numpy()
    expected = atoms.positions[source] + edges.shifts.numpy() @ cell - atoms.positions[target]
    np.testing.assert_allclose(edges.edge_vec.numpy(), expected, atol=1e-14)


def test_edges_are_sorted_by_target_and_grouped_by_system() -> None:
    edges = build_edges(batch_from_atoms([salt(), water()], ["omat", "omol"]), 6.0)
    assert edges.edges_per_system == (256, 6)
    assert (edges.edge_index[1].diff() >= 0).all()
    assert edges.edge_index[:, 256:].min() == 8


@pytest.mark.parametrize("cap", [1, 5, 12, 20, 77, 78, 79, 0, None])
def test_cap_keeps_everything_up_to_the_margin(cap: int | None) -> None:
    atoms = bulk("Cu", a=3.61, cubic=True).repeat(2)
    atoms.rattle(0.02, seed=3)
    batch = batch_from_atoms([atoms], ["omat"])
    everything = build_edges(batch, 6.0)
    capped = build_edges(batch, 6.0, cap)
    kept = {tuple(row) for row in torch.cat([capped.edge_index.T, capped.shifts], 1).tolist()}
    distances = everything.edge_vec.norm(dim=1).numpy()
    target = everything.edge_index[1].numpy()
    expected = set()
    for atom in range(len(atoms)):
        edges = np.flatnonzero(target == atom)
        limit = np.inf
        if cap and len(edges) > cap:
            limit = np.sort(distances[edges] ** 2)[cap] + 0.01
        for edge in edges[distances[edges] ** 2 <= limit]:
            row = torch.cat([everything.edge_index[:, edge], everything.shifts[edge]])
            expected.add(tuple(row.tolist()))
    assert kept == expected
    assert (capped.n_capped > 0) == (len(kept) < everything.edge_index.shape[1])


@pytest.mark.parametrize(
    ("atoms", "words"),
    [
        (Atoms("HO", [[0, 0, 0], [0, 0, 5e-4]]), ["atoms", "0", "1", "5.00e-04"]),
        (Atoms("HOH", [[0, 0, 0], [0, 0, 1], [0, 0, 0]]), ["0 and 2", "0.00e+00"]),
        (Atoms("HO", [[0, 0, 0], [0, 0, 5.0]], cell=[5, 5, 5], pbc=True), ["image"]),
        (Atoms("H", cell=[0.05, 0.05, 0.05], pbc=True), ["so small"]),
        # Beyond this, neighbour lists divide by zero or count past their integers.
        (Atoms("H2", [[0, 0, 0], [0, 0, 1e6]]), ["1e+06 Å wide", "unit"]),
        (Atoms("H2", [[0, 0, 0], [1e9, 1e9, 1e9]]), ["wide"]),
        (Atoms("H2", [[0, 0, 0], [0, 0, 1]], cell=[10, 10, 1e7], pbc=True), ["1e+07 Å wide"]),
    ],
)
def test_coincident_atoms_and_absurd_cells_are_refused(atoms: Atoms, words: list[str]) -> None:
    with pytest.raises(InvalidStructureError) as caught:
        build_edges(batch_from_atoms([atoms], ["omat"]), 6.0)
    for word in words:
        assert word in str(caught.value)


def test_wide_structures_that_can_be_meant_are_served() -> None:
    far = Atoms("H2", [[0, 0, 0], [0, 0, 1.7e5]])
    unwrapped = Atoms("H2", [[0, 0, 0], [0, 0, 1e6 + 0.5]], cell=[20, 20, 5], pbc=True)
    for atoms, n_edges in ((far, 0), (unwrapped, 10)):
        assert build_edges(batch_from_atoms([atoms], ["omat"]), 6.0).edge_index.shape[1] == n_edges


def test_no_structures_and_no_edges() -> None:
    assert build_edges(batch_from_atoms([], []), 6.0).edge_index.shape == (2, 0)
    lone = Atoms("H", [[100, -50, 3]])
    assert build_edges(batch_from_atoms([lone], ["omol"]), 6.0).edges_per_system == (0,)
