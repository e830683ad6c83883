"""Whole steps from positions to energies, forces and stresses on the device, recorded for each kind of batch.

A step is two recordings: the search finds and counts neighbours, and the host reads how many there are; then everything else
works with room for just as many (`capacity`). In a simulation the host guesses the room and looks when all is done. What a
recording takes for given is in the key that it is kept under; everything else may change from call to call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from edgewise.engine.fused.capacity import capacity_of
from edgewise.engine.fused.kernel_edges import KernelEdges
from edgewise.engine.fused.nodes import AtomPlan, atom_plan
from edgewise.engine.fused.recorded import Recorded
from edgewise.engine.fused.step import Step, StepInputs
from edgewise.engine.fused.weights import StepWeights
from edgewise.engine.fused.workspace import Workspace
from edgewise.model.network import Network
from edgewise.neighbors import CAP_MARGIN, SMALLEST_DISTANCE
from edgewise.ops import EdgeSegment
from edgewise.ops.fused.edge_geometry import forces_and_virial
from edgewise.ops.fused.neighbor_list import (
    ROOM_TOO_SMALL,
    Candidates,
    SearchInputs,
    SearchPlan,
    Summary,
    count_edges,
    fill_edges,
    read_summary,
    search_plan,
)
from edgewise.ops.fused.row_format import RowFormat
from edgewise.ops.fused.streams import Branch
from edgewise.ops.fused.transfer import transfer
from edgewise.ops.reference.edge_steps import segment_sum
from edgewise.systems import SystemBatch

Made = TypeVar("Made")

Around = Callable[[], AbstractContextManager[None]]
"""Sets what torch's operations need."""

MOST_KEPT = 16
"""Recordings of steps that are kept; they share their memory."""

SMALLEST_ROOM = 128
"""Neighbours of an atom that a first search has room for."""


@dataclass(frozen=True)
class RawOutputs:
    """What a step returns before it is scaled, float64 on the CPU.

    Attributes:
        energy: [n_systems], sum of node energies.
        forces: [n_atoms, 3], dE/d(positions); of a model with direct forces, those.
        stress: [n_systems, 3, 3], the virial; of a model with direct stress, that; zeros if it has none.
        n_edges: Number of edges.
        n_capped: Number of atoms whose neighbours the cap has cut.
        padding: Share of the rows of edges that held none.
    """

    energy: Tensor
    forces: Tensor
    stress: Tensor
    n_edges: int
    n_capped: int
    padding: float


_KINDS = ("atomic_numbers", "charge", "spin")
"""Tensors of a batch that seldom change from call to call."""


class _Atoms:
    """The atoms of batches with the same numbers of atoms, in tensors that stay where they are.

    Positions and cells wait in memory of the host, from where the search copies them as its first act; the summary of the search
    and the results of the step come back into such memory. So a recording moves all that changes by itself.
    """

    def __init__(self, batch: SystemBatch, device: torch.device, network: Network, around: Around) -> None:
        self._embed, self._around = network.backbone.system_embedding, around
        n_atoms, n_systems = batch.positions.shape[0], batch.n_systems
        on_host = partial(torch.empty, dtype=torch.float64, pin_memory=device.type == "cuda")
        on_device = partial(torch.empty, dtype=torch.float64, device=device)
        self._given, self._positions, self._cell = _positions_and_cell(n_atoms, n_systems, on_host)
        self._fetched, positions, cell = _positions_and_cell(n_atoms, n_systems, on_device)
        # Copies, on the CPU too: what the caller has is not ours to write.
        copies = {name: getattr(batch, name).to(device, copy=True) for name in _KINDS}
        self.batch = replace(batch.to(device), positions=positions, cell=cell, **copies)
        self.offsets = batch.offsets()
        starts = torch.tensor(self.offsets, device=device)
        self.atom_starts = starts.to(torch.int32)
        self.search = SearchInputs(
            positions=positions,
            cells=cell,
            system_idx=self.batch.system_idx.to(torch.int32),
            atom_starts=starts,
            plan=torch.zeros(n_systems, 8, dtype=torch.int32, device=device),
        )
        n_values = 10 * n_systems + 3 * n_atoms
        self.summary, self.values, self.results = on_host(5 + n_systems), on_host(n_values), on_device(n_values)
        self.at_atoms = self._embedding()
        self._plan: SearchPlan | None = None
        self._loaded: SystemBatch | None = None

    def load(self, batch: SystemBatch) -> None:
        """Put a batch where recordings find it."""
        self._positions.copy_(batch.positions)
        self._cell.copy_(batch.cell)
        known = self._loaded
        if known is None or not batch.agrees(known, _KINDS):
            for name in _KINDS:
                getattr(self.batch, name).copy_(getattr(batch, name))
            self.at_atoms.copy_(self._embedding())

    def fetch(self) -> None:
        """Copy positions and cells to the device; part of a recording."""
        transfer(self._given, self._fetched)

    def _embedding(self) -> Tensor:
        """Return the embedding of each atom's system, [n_atoms, channels]."""
        with self._around(), torch.no_grad():
            return self._embed(self.batch)[self.batch.system_idx]

    def plan(self, batch: SystemBatch, cutoff: float) -> SearchPlan | None:
        """Return a plan of the search that serves the cells, and put it into its tensor; None if there is none."""
        known, self._loaded = self._loaded, batch
        if known is not None and batch.agrees(known, ("cell", "pbc")):
            return self._plan
        cells = batch.cell.numpy()
        same_axes = known is not None and torch.equal(batch.pbc, known.pbc)
        if self._plan is None or not same_axes or not self._plan.serves(cells, cutoff):
            self._plan = search_plan(batch.positions.numpy(), cells, batch.pbc.numpy(), self.offsets, cutoff)
            if self._plan is not None:
                self.search.plan.copy_(torch.from_numpy(np.ascontiguousarray(self._plan.table)))
        return self._plan


def _positions_and_cell(n_atoms: int, n_systems: int, place: Callable[[int], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return memory for positions and cells in one piece, and what of it is which."""
    whole = place(3 * n_atoms + 9 * n_systems)
    positions, cell = whole.split([3 * n_atoms, 9 * n_systems])
    return whole, positions.view(n_atoms, 3), cell.view(n_systems, 3, 3)


class _Kept(OrderedDict[Hashable, Made]):
    """What was made for each key, the least recently used out first.

    What a recording reads is part of its key as itself, not by its own key: once that has gone and was made anew, a recording
    of the old tensors must not be found any more.
    """

    def of(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what is kept under a key, or make it."""
        if key not in self:
            while len(self) >= MOST_KEPT:
                self.popitem(last=False)
            self[key] = make()
        self.move_to_end(key)
        return self[key]


@dataclass(frozen=True)
class BegunStep:
    """A step that the device is working on.

    Attributes:
        atoms: What it reads.
        plan: Of its search.
        weights: Likewise.
        search: Its search.
        guess: The capacity with which all of it has been begun; None if it is the search alone.
    """

    atoms: _Atoms
    plan: SearchPlan
    weights: StepWeights
    search: Recorded[Candidates]
    guess: int | None


class SystemSteps:
    """Steps of one network on one device."""

    def __init__(
        self,
        network: Network,
        step: Step,
        row_format: RowFormat,
        device: torch.device,
        around: Around = nullcontext,
    ) -> None:
        """Begin without recordings.

        Args:
            network: The network.
            step: Its steps.
            row_format: How rows of edges are stored.
            device: Where.
            around: Is set around torch's operations; recordings that are played need nothing.
        """
        self._network, self._step, self._format, self._device = network, step, row_format, device
        self._around = around
        self._atoms: _Kept[_Atoms] = _Kept()
        self._searches: _Kept[Recorded[Candidates]] = _Kept()
        self._steps: _Kept[Recorded[Tensor]] = _Kept()
        self._latest: WeakKeyDictionary[Recorded[Candidates], tuple[StepWeights, int, int]] = WeakKeyDictionary()
        self._room = SMALLEST_ROOM
        self._workspace = Workspace()

    @property
    def n_recorded(self) -> int:
        """Number of steps whose recordings are in memory."""
        return sum(step.is_recorded for step in self._steps.values())

    def begin(self, batch: SystemBatch, weights: StepWeights) -> BegunStep | None:
        """Begin a step: the search, and where the last two steps of this kind had the same capacity, all the rest.

        No result depends on such a guess: if it is wrong, `finish` does the rest again as if nothing had happened.

        Args:
            batch: Structures that share their weights and their dataset, on the CPU.
            weights: The weights.

        Returns:
            None where a search of this kind cannot be made: another list has to look.
        """
        sizes = tuple(batch.n_atoms.tolist())
        # The embedding of a system reads its dataset, which is no tensor.
        make = partial(_Atoms, batch, self._device, self._network, self._around)
        atoms = self._atoms.of((sizes, batch.tasks), make)
        atoms.load(batch)
        plan = atoms.plan(batch, self._network.config.cutoff)
        return None if plan is None else self._begun(atoms, plan, weights)

    def _begun(self, atoms: _Atoms, plan: SearchPlan, weights: StepWeights) -> BegunStep:
        search = self._search_of(atoms, plan)
        search()
        guess = self._guess(search, weights)
        if guess is not None:
            self._step_of(atoms, search, guess, weights)()
        return BegunStep(atoms, plan, weights, search, guess)

    def finish(self, begun: BegunStep) -> RawOutputs | None:
        """Wait for a step, and do what is left of it.

        Returns:
            None where atoms are too close or too far away: another list has to look.
        """
        atoms = begun.atoms
        summary = self._summary(begun)
        if summary.overflow & ROOM_TOO_SMALL:
            self._room = 1 << max(0, summary.most - 1).bit_length()
            begun = self._begun(atoms, begun.plan, begun.weights)
            summary = self._summary(begun)
        if summary.overflow or summary.smallest < SMALLEST_DISTANCE**2:
            return None
        capacity = capacity_of(summary.n_edges)
        if capacity != begun.guess:
            self._step_of(atoms, begun.search, capacity, begun.weights)()
            self._wait()
        self._remember(begun.search, begun.weights, capacity)
        n_systems, n_atoms = len(atoms.offsets) - 1, atoms.offsets[-1]
        # The next call writes where these stand.
        energy, forces, stress = atoms.values.clone().split([n_systems, 3 * n_atoms, 9 * n_systems])
        return RawOutputs(
            energy=energy,
            forces=forces.view(n_atoms, 3),
            stress=stress.view(n_systems, 3, 3),
            n_edges=summary.n_edges,
            n_capped=summary.n_capped,
            padding=capacity / summary.n_edges - 1 if summary.n_edges else 0.0,
        )

    def _summary(self, begun: BegunStep) -> Summary:
        self._wait()
        return read_summary(begun.atoms.summary)

    def _guess(self, search: Recorded[Candidates], weights: StepWeights) -> int | None:
        """Return the capacity that the next step is likely to need, if there is reason to think so."""
        known = self._latest.get(search)
        return known[1] if known is not None and known[0] is weights and known[2] > 1 else None

    def _remember(self, search: Recorded[Candidates], weights: StepWeights, capacity: int) -> None:
        known = self._latest.get(search)
        same = known is not None and known[0] is weights and known[1] == capacity
        self._latest[search] = weights, capacity, 1 + (known[2] if same and known is not None else 0)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _search_of(self, atoms: _Atoms, plan: SearchPlan) -> Recorded[Candidates]:
        config, room = self._network.config, self._room

        def work() -> Candidates:
            with self._around(), torch.no_grad():
                atoms.fetch()
                found = count_edges(atoms.search, plan.n_bins, config.cutoff, _cap(config.max_neighbors), room)
                transfer(found.summary, atoms.summary)
                return found

        return self._searches.of((atoms, plan.n_bins, room), lambda: Recorded(work, self._device))

    def _step_of(
        self, atoms: _Atoms, search: Recorded[Candidates], capacity: int, weights: StepWeights
    ) -> Recorded[Tensor]:
        def made() -> Recorded[Tensor]:
            with self._around():
                plan = atom_plan(atoms.batch, atoms.batch.n_atoms.tolist(), self._step.energy)

            def work() -> Tensor:
                with self._around(), torch.no_grad():
                    return self._work(atoms, search, capacity, weights, plan)

            # Almost all memory is that of rows of edges.
            return Recorded(work, self._device, self._workspace, size=capacity)

        return self._steps.of((atoms, search, capacity, weights), made)

    def _work(
        self, atoms: _Atoms, search: Recorded[Candidates], capacity: int, weights: StepWeights, plan: AtomPlan
    ) -> Tensor:
        """Do everything after the search; return energies, forces and stresses one after the other."""
        batch, candidates = atoms.batch, search.latest
        assert candidates is not None
        found = fill_edges(atoms.search, candidates, capacity)
        branch = Branch(self._device)
        edges = KernelEdges.found(found, self._step.shape, self._network.config.cutoff, self._format, branch)
        n_atoms = batch.positions.shape[0]
        inputs = StepInputs(
            batch=batch,
            at_atoms=atoms.at_atoms,
            edges=edges,
            segments=(EdgeSegment(0, capacity, 0),),
            atom_segments=(EdgeSegment(0, n_atoms, 0),),
            weights=[weights],
            plan=plan,
            branch=branch,
        )
        output, gradient = self._step.evaluate(inputs)
        if gradient is None:
            assert output.direct_forces is not None
            forces = output.direct_forces.to(torch.float64)
            stress = forces.new_zeros(batch.n_systems, 3, 3) if output.direct_stress is None else output.direct_stress
            stress = stress.to(forces)
        else:
            forces, stress = forces_and_virial(gradient, found.edge_vec, edges.tables, atoms.atom_starts)
        energy = sum_of_systems(output.node_energy.to(torch.float64)[:, None], atoms.atom_starts)
        torch.cat([energy.flatten(), forces.flatten(), stress.flatten()], out=atoms.results)
        transfer(atoms.results, atoms.values)
        return atoms.results


def _cap(max_neighbors: int | None) -> tuple[int, float] | None:
    """Return the cap and its margin as a search takes them; None for none."""
    return None if max_neighbors is None or max_neighbors < 1 else (max_neighbors, CAP_MARGIN)


def sum_of_systems(values: Tensor, starts: Tensor) -> Tensor:
    """Sum values of atoms [n_atoms, n] over each system, in a fixed order."""
    if starts.shape[0] == 2:
        return values.sum(0, keepdim=True)
    return segment_sum(values, starts)
