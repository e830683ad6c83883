"""The neighbour lists for devices equal the one by vesin: edges, shifts, order, vectors, cap and errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise import cell_list, nvalchemi_list
from edgewise.errors import InvalidStructureError
from edgewise.neighbors import EdgeList, _edges_on_device, build_edges
from edgewise.systems import SystemBatch, batch_from_atoms
from tests.cases import copper_cube, copper_primitive, potential, salt, slab, water

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

FindEdges = Callable[[SystemBatch, float, torch.device], cell_list.Candidates]

EVERY_LIST = pytest.mark.parametrize(
    "find_edges", [cell_list.find_edges, nvalchemi_list.find_edges], ids=["tensors", "nvalchemi"]
)


def batch_of(structures: list[Atoms]) -> SystemBatch:
    return batch_from_atoms(structures, ["omat"] * len(structures))


def on_device(batch: SystemBatch, cutoff: float, cap: int | None, find_edges: FindEdges) -> EdgeList:
    return _edges_on_device(batch, cutoff, cap, DEVICE, find_edges).to("cpu")


def assert_equal(found: EdgeList, expected: EdgeList) -> None:
    assert torch.equal(found.edge_index, expected.edge_index)
    assert torch.equal(found.shifts, expected.shifts)
    assert found.edges_per_system == expected.edges_per_system
    assert found.n_capped == expected.n_capped
    torch.testing.assert_close(found.edge_vec, expected.edge_vec, rtol=0, atol=1e-13)


def random_structure(rng: np.random.Generator) -> Atoms:
    n_atoms = int(rng.integers(1, 6))
    cell = np.diag(rng.uniform(2.0, 9.0, 3)) + rng.uniform(0, 0.6) * rng.uniform(-2, 2, (3, 3))
    if abs(np.linalg.det(cell)) < 4:
        cell = np.diag([3.0, 3.5, 4.0])
    return Atoms(f"H{n_atoms}", rng.uniform(-9, 9, (n_atoms, 3)), cell=cell, pbc=rng.integers(0, 2, 3).astype(bool))


@EVERY_LIST
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), n_systems=st.integers(1, 4))
def test_random_batches(find_edges: FindEdges, seed: int, n_systems: int) -> None:
    rng = np.random.default_rng(seed)
    batch = batch_of([random_structure(rng) for _ in range(n_systems)])
    assert_equal(on_device(batch, 4.0, None, find_edges), build_edges(batch, 4.0))


@EVERY_LIST
def test_known_structures_alone_and_together(find_edges: FindEdges) -> None:
    rattled = bulk("Cu", cubic=True).repeat(2)
    rattled.rattle(0.1, seed=3)
    structures = [
        water(),
        copper_primitive(),
        copper_cube(),
        salt(),
        slab(9),
        rattled,
        fcc111("Pt", (1, 2, 3), vacuum=7),
    ]
    for chosen in [*([item] for item in structures), structures]:
        batch = batch_of(chosen)
        assert_equal(on_device(batch, 6.0, None, find_edges), build_edges(batch, 6.0))


@EVERY_LIST
def test_no_edges_and_lone_atoms(find_edges: FindEdges) -> None:
    batch = batch_of([Atoms("H"), Atoms("H2", [[0, 0, 0], [0, 0, 99]])])
    assert_equal(on_device(batch, 6.0, None, find_edges), build_edges(batch, 6.0))


@EVERY_LIST
@pytest.mark.parametrize("cap", [5, 40, 78, 1000])
def test_cap(cap: int, find_edges: FindEdges) -> None:
    batch = batch_of([copper_cube(), water()])
    assert_equal(on_device(batch, 6.0, cap, find_edges), build_edges(batch, 6.0, cap))


@EVERY_LIST
def test_coincident_atoms_are_named(find_edges: FindEdges) -> None:
    batch = batch_of([water(), Atoms("H2", [[0, 0, 0], [0, 0, 1e-5]])])
    with pytest.raises(InvalidStructureError, match=r"atoms \d and \d of structure 1"):
        on_device(batch, 6.0, None, find_edges)


@EVERY_LIST
def test_an_atom_on_the_boundary_of_its_cell(find_edges: FindEdges) -> None:
    for position in ([0, 0, 0], [3.6, 3.6, 3.6], [-1e-17, 1.8, 1.8], [3.6 - 1e-16, 0, 0]):
        batch = batch_of([Atoms("Cu", [position], cell=[3.6] * 3, pbc=True)])
        assert_equal(on_device(batch, 6.0, None, find_edges), build_edges(batch, 6.0))


def test_more_neighbours_than_the_library_expects() -> None:
    batch = batch_of([bulk("Cu", a=1.23)])
    assert_equal(on_device(batch, 6.0, None, nvalchemi_list.find_edges), build_edges(batch, 6.0))


def test_it_is_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []
    original = nvalchemi_list.find_edges

    def counted(batch: SystemBatch, cutoff: float, device: torch.device) -> cell_list.Candidates:
        calls.append(cutoff)
        return original(batch, cutoff, device)

    monkeypatch.setattr(nvalchemi_list, "find_edges", counted)
    found = potential(device=str(DEVICE), internal_graph_gen_version=3).predict([salt()], "omat")
    assert calls == [6.0]
    expected = potential().predict([salt()], "omat")
    assert np.abs(found.forces - expected.forces).max() < 1e-12
    assert len(calls) == 1
