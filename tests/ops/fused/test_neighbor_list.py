"""The neighbour list of mode fused equals the one by vesin: edges, order, shifts, vectors, cap and what the host is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.engine.runner import _sum_at_atoms, _virial
from edgewise.neighbors import CAP_MARGIN, EdgeList, build_edges
from edgewise.ops import MessageShape
from edgewise.ops.fused.edge_geometry import edge_geometry, forces_and_virial
from edgewise.ops.fused.edge_order import edge_order
from edgewise.ops.fused.layout import geometry_width
from edgewise.ops.fused.neighbor_list import (
    SearchInputs,
    SearchPlan,
    Summary,
    count_edges,
    fill_edges,
    neighbor_list,
    read_summary,
    search_plan,
)
from edgewise.ops.fused.neighbor_list_kernels import PLAN_TOO_SMALL, ROOM_TOO_SMALL
from edgewise.ops.fused.shapes import edge_tables
from edgewise.ops.reference import edge_steps
from edgewise.systems import SystemBatch, batch_from_atoms
from tests import tolerances
from tests.cases import copper_cube, copper_primitive, salt, slab, water
from tests.ops.fused.problems import poisoned
from tests.ops.kernel_problems import DEVICE
from tests.test_cell_list import random_structure

pytestmark = pytest.mark.kernels

ROOM = 96


def batch_of(structures: list[Atoms]) -> SystemBatch:
    return batch_from_atoms(structures, ["omat"] * len(structures))


def plan_of(batch: SystemBatch, cutoff: float) -> SearchPlan:
    plan = search_plan(batch.positions.numpy(), batch.cell.numpy(), batch.pbc.numpy(), batch.offsets(), cutoff)
    assert plan is not None
    return plan


def inputs_of(batch: SystemBatch, plan: SearchPlan) -> SearchInputs:
    return SearchInputs(
        positions=batch.positions.to(DEVICE),
        cells=batch.cell.to(DEVICE),
        system_idx=batch.system_idx.to(DEVICE, torch.int32),
        atom_starts=torch.tensor(batch.offsets(), device=DEVICE),
        plan=torch.from_numpy(plan.table).to(DEVICE),
    )


def assert_equals_the_cpu(batch: SystemBatch, cutoff: float, cap: int | None = None, room: int = ROOM) -> EdgeList:
    plan = plan_of(batch, cutoff)
    assert plan.serves(batch.cell.numpy(), cutoff)
    found, candidates, summary = neighbor_list(
        inputs_of(batch, plan), plan.n_bins, cutoff, (cap, CAP_MARGIN) if cap else None, room
    )
    expected = build_edges(batch, cutoff, cap)
    assert summary.overflow == 0
    assert torch.equal(found.ends.long().cpu(), expected.edge_index)
    assert found.shifts is not None
    assert torch.equal(found.shifts.long().cpu(), expected.shifts)
    torch.testing.assert_close(found.edge_vec.cpu(), expected.edge_vec, rtol=0, atol=1e-13)
    n_atoms = batch.positions.shape[0]
    starts = torch.searchsorted(expected.edge_index[1].contiguous(), torch.arange(n_atoms + 1))
    assert torch.equal(candidates.target_starts.long().cpu(), starts)
    n_edges = expected.edge_index.shape[1]
    assert found.n_live.tolist() == [n_edges]
    assert (summary.n_edges, summary.edges_per_system) == (n_edges, expected.edges_per_system)
    assert summary.n_capped == expected.n_capped
    everything = build_edges(batch, cutoff)
    nearest = float(everything.edge_vec.square().sum(1).min()) if everything.edge_vec.shape[0] else np.inf
    assert summary.smallest == pytest.approx(nearest)
    per_atom = everything.edge_index[1].bincount(minlength=max(1, n_atoms))
    assert summary.most == int(per_atom.max())
    return expected


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), n_systems=st.integers(1, 4))
def test_random_batches(seed: int, n_systems: int) -> None:
    rng = np.random.default_rng(seed)
    assert_equals_the_cpu(batch_of([random_structure(rng) for _ in range(n_systems)]), 4.0)


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_many_bins(seed: int) -> None:
    """Cells of several cutoffs, with some axes periodic and atoms outside."""
    rng = np.random.default_rng(seed)
    cell = np.diag(rng.uniform(4, 10, 3)) + rng.uniform(-2, 2, (3, 3))
    positions = rng.uniform(-12, 12, (31, 3))
    atoms = Atoms("H31", positions, cell=cell, pbc=rng.integers(0, 2, 3).astype(bool))
    assert_equals_the_cpu(batch_of([atoms]), 1.7, int(rng.integers(1, 9)))


def test_known_structures_alone_and_together() -> None:
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
        assert_equals_the_cpu(batch_of(chosen), 6.0)


def test_tiny_cells_need_many_images() -> None:
    assert_equals_the_cpu(batch_of([bulk("Cu", a=1.7)]), 6.0, room=32)
    skewed = Atoms("H2", [[0, 0, 0], [0.9, 0.4, 0.5]], cell=[[2, 0, 0], [5.9, 2, 0], [-3.7, 4.4, 2]], pbc=True)
    assert_equals_the_cpu(batch_of([skewed]), 4.0)


def test_no_edges_and_no_structures() -> None:
    assert_equals_the_cpu(batch_of([Atoms("H"), Atoms("H2", [[0, 0, 0], [0, 0, 99]])]), 6.0)
    assert_equals_the_cpu(batch_of([]), 6.0)


def test_atoms_on_the_boundary_and_far_outside() -> None:
    for position in ([0, 0, 0], [3.6, 3.6, 3.6], [-1e-17, 1.8, 1.8], [3.6 - 1e-16, 0, 0]):
        assert_equals_the_cpu(batch_of([Atoms("Cu", [position], cell=[3.6] * 3, pbc=True)]), 6.0)
    far = Atoms("H2", [[0, 0, 0], [0, 0, 1.7e5]])
    unwrapped = Atoms("H2", [[0, 0, 0], [0, 0, 1e5 + 0.5]], cell=[20, 20, 5], pbc=True)
    assert_equals_the_cpu(batch_of([far, unwrapped]), 6.0)


def test_distances_at_the_cutoff() -> None:
    """Shells of a perfect crystal at the cutoff within rounding: the same decisions, atom by atom."""
    atoms = bulk("Cu", a=3.61, cubic=True).repeat(2)
    atoms.positions += 0.1234
    for factor in (1, np.sqrt(2), np.sqrt(1.5)):
        assert_equals_the_cpu(batch_of([atoms]), float(3.61 * factor))


@pytest.mark.parametrize("cap", [1, 5, 12, 40, 78, 1000, 0, None])
def test_cap(cap: int | None) -> None:
    rattled = copper_cube()
    rattled.rattle(0.05, seed=1)
    assert_equals_the_cpu(batch_of([copper_cube(), water(), rattled]), 6.0, cap)


def told(batch: SystemBatch, plan: SearchPlan, cutoff: float, room: int = ROOM) -> Summary:
    return read_summary(count_edges(inputs_of(batch, plan), plan.n_bins, cutoff, None, room).summary)


def test_the_host_is_told_what_does_not_fit() -> None:
    batch = batch_of([copper_cube(), water()])
    plan = plan_of(batch, 6.0)
    short = told(batch, plan, 6.0, room=77)
    assert (short.overflow, short.most) == (ROOM_TOO_SMALL, 78)
    smaller = batch_of([copper_cube(), water()])
    smaller.cell[0] *= 0.8
    assert not plan.serves(smaller.cell.numpy(), 6.0)
    assert told(smaller, plan, 6.0).overflow & PLAN_TOO_SMALL
    for wrong in (1e30, np.nan, -1e9):
        exploded = batch_of([copper_cube(), water()])
        exploded.positions[1, 2] = wrong
        assert told(exploded, plan, 6.0).overflow & PLAN_TOO_SMALL
    coincident = batch_of([copper_cube(), Atoms("H2", [[0, 0, 0], [0, 0, 0]])])
    assert told(coincident, plan_of(coincident, 6.0), 6.0).smallest == 0


def test_a_plan_outlives_small_changes_and_moves() -> None:
    batch = batch_of([copper_cube(), water()])
    plan = plan_of(batch, 6.0)
    moved = batch_of([copper_cube(), water()])
    moved.cell[0] *= 0.995
    moved.positions[:] = moved.positions + 40 * torch.randn(moved.positions.shape, dtype=torch.float64)
    assert plan.serves(moved.cell.numpy(), 6.0)
    found, _, summary = neighbor_list(inputs_of(moved, plan), plan.n_bins, 6.0, None, ROOM)
    assert summary.overflow == 0
    assert torch.equal(found.ends.long().cpu(), build_edges(moved, 6.0).edge_index)


def test_absurdly_small_cells_have_no_plan() -> None:
    assert search_plan(np.zeros((1, 3)), np.eye(3)[None] * 1e-3, np.ones((1, 3), dtype=bool), [0, 1], 6.0) is None


def test_rows_beyond_the_last_edge_are_left_alone() -> None:
    batch = batch_of([water()])
    plan = plan_of(batch, 6.0)
    inputs = inputs_of(batch, plan)
    candidates = count_edges(inputs, plan.n_bins, 6.0, None, ROOM)
    found = fill_edges(inputs, candidates, 11)
    assert found.shifts is None
    assert found.n_live.tolist() == [6]
    assert torch.equal(found.ends[:, :6].long().cpu(), build_edges(batch, 6.0).edge_index)


def test_less_room_than_edges() -> None:
    """What follows may be under way before the host has seen the number: it has to find a list that is safe to read."""
    batch = batch_of([copper_cube(), water()])
    plan = plan_of(batch, 6.0)
    inputs, expected = inputs_of(batch, plan), build_edges(batch, 6.0)
    found = fill_edges(inputs, count_edges(inputs, plan.n_bins, 6.0, None, ROOM), 100)
    assert found.n_live.tolist() == [100]
    assert torch.equal(found.ends.long().cpu(), expected.edge_index[:, :100])
    n_atoms = batch.positions.shape[0]
    starts = torch.searchsorted(expected.edge_index[1].contiguous(), torch.arange(n_atoms + 1)).clamp(max=100)
    assert torch.equal(found.target_starts.long().cpu(), starts)


def test_an_incomplete_search_has_no_edges() -> None:
    batch = batch_of([copper_cube(), water()])
    plan = plan_of(batch, 6.0)
    inputs = inputs_of(batch, plan)
    found = fill_edges(inputs, count_edges(inputs, plan.n_bins, 6.0, None, 77), 400)
    assert found.n_live.tolist() == [0]
    assert not found.target_starts.any()


@pytest.mark.parametrize("spare", [0, 5])
def test_from_positions_to_the_tables_of_edges(spare: int) -> None:
    """All steps in a row make what the engine lays out from the list on the CPU."""
    batch, shape, cutoff = batch_of([copper_cube(), water()]), MessageShape(2, 2, 4, 4), 6.0
    plan = plan_of(batch, cutoff)
    inputs, n_atoms = inputs_of(batch, plan), batch.positions.shape[0]
    candidates = count_edges(inputs, plan.n_bins, cutoff, None, ROOM)
    capacity = read_summary(candidates.summary).n_edges + spare
    found = fill_edges(inputs, candidates, capacity)
    by_source, source_starts = edge_order(found.ends, found.n_live, n_atoms)
    geometry, distance = poisoned(capacity, geometry_width(2, 2)), poisoned(capacity)
    edge_geometry(found.edge_vec, found.n_live, cutoff, shape, geometry, distance)
    edges = build_edges(batch, cutoff).to(DEVICE)
    order = edge_steps.edge_order(edges.edge_index, n_atoms)
    centres = torch.linspace(0, cutoff, 4, dtype=torch.float64, device=DEVICE)
    exact = edge_steps.edge_geometry(edges.edge_vec, cutoff, centres, 2, torch.float64)
    expected, n = edge_tables(order, exact, shape, capacity), capacity - spare
    assert torch.equal(found.ends[:, :n], expected.ends[:, :n])
    assert torch.equal(by_source[:n], expected.by_source[:n])
    assert torch.equal(found.target_starts, expected.target_starts)
    assert torch.equal(source_starts, expected.source_starts)
    assert torch.equal(found.n_live, expected.n_live)
    torch.testing.assert_close(geometry[:n], expected.geometry[:n], **tolerances.ROUNDED_ONCE)
    torch.testing.assert_close(distance[:n], exact.distance.float(), **tolerances.ROUNDED_ONCE)
    # Forces and virial of any gradient are those that the runner sums.
    gradient = torch.full((capacity, 3), torch.nan, dtype=torch.float64, device=DEVICE)
    gradient[:n] = edges.edge_vec.sin()
    tables = replace(
        expected,
        ends=found.ends,
        by_source=by_source,
        source_starts=source_starts,
        target_starts=candidates.target_starts,
    )
    forces, virial = forces_and_virial(gradient, found.edge_vec, tables, inputs.atom_starts.int())
    on_device = batch.to(DEVICE)
    torch.testing.assert_close(forces, _sum_at_atoms(gradient[:n], edges.edge_index, n_atoms), **tolerances.WRITTEN_OUT)
    torch.testing.assert_close(virial, _virial(on_device, edges, gradient[:n]), **tolerances.WRITTEN_OUT)


def test_tensors_that_do_not_fit_are_refused() -> None:
    batch = batch_of([water()])
    plan = plan_of(batch, 6.0)
    inputs = inputs_of(batch, SearchPlan(plan.table.astype(np.int64), plan.n_bins))
    with pytest.raises(ValueError, match=r"plan is torch\.int64"):
        count_edges(inputs, plan.n_bins, 6.0, None, ROOM)
