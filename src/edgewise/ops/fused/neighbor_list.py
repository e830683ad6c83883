"""The neighbour list on the device in two steps with one look by the host between them; both work in a captured graph.

`count_edges` sorts atoms into bins, lets each look at the bins around it, and counts what is near; the host reads its summary
and chooses a capacity; `fill_edges` writes the edges. Edges, order, cap and vectors are those of `edgewise.neighbors`.

Bins divide a system along its lattice vectors. Along a periodic axis n bins fill the cell, bin b stands for all b + k n, and k
is the image. Along another axis bins are as wide as the cutoff and bin b stands for all b + k n without any image: atoms may be
anywhere, and those that share a bin by chance cost time alone. Whatever the bins, an atom is found as long as those that are
visited reach as far as the cutoff; cells are checked for it on the device.
"""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import triton
from torch import Tensor

from edgewise.ops.fused.edge_geometry import check
from edgewise.ops.fused.neighbor_list_kernels import (
    ROOM_TOO_SMALL,
    add_up,
    apply_cap,
    look_around,
    put_into_bins,
    write_edges,
)

SLACK = 1.03
"""Bins reach so much farther than the cutoff when they are planned, so that a plan outlives small changes of the cell."""

FARTHEST_IMAGE = 1000
"""Images of one axis that fit into the keys, with one to spare on either side."""

FEWEST_BINS = 27
"""A system gets so many bins even if it has fewer atoms."""

ATOMS = 128
VISITS = 32
CANDIDATES = 16
NEIGHBOURS = 32
COUNTED_AT_ONCE = 2048
"""Sizes of tiles: atoms that are binned, bins and atoms of each that are looked at, neighbours that are put in order, and atoms
whose counts are added."""


@dataclass(frozen=True, eq=False)
class SearchPlan:
    """Which bins a search makes and visits, made by the host from the cells.

    Attributes:
        table: [n_systems, 8] int32 on the CPU: bins along each axis, bins visited along each axis, the number of the first bin,
            and a bit for each periodic axis.
        n_bins: Bins that there is room for; all of a plan that a captured graph depends on.
    """

    table: np.ndarray
    n_bins: int

    def serves(self, cells: np.ndarray, cutoff: float) -> bool:
        """Tell whether the plan is good for other cells [n_systems, 3, 3] of the same systems, which costs next to nothing."""
        n, visited = self.table[:, :3], self.table[:, 3:6]
        periodic = (self.table[:, 7:] >> np.arange(3)) & 1 == 1
        reach = _spacings(cells) * ((visited - 1) // 2) / n
        return bool((reach[periodic] >= cutoff * (1 + 1e-5)).all())


@dataclass(frozen=True)
class SearchInputs:
    """What a search reads, on the device.

    Attributes:
        positions: [n_atoms, 3], Å, float64, as given.
        cells: [n_systems, 3, 3], Å, float64, without zero rows.
        system_idx: [n_atoms] int32, ascending.
        atom_starts: [n_systems + 1] int64, where the atoms of each system begin, and the end.
        plan: [n_systems, 8] int32, the table of a `SearchPlan`.
    """

    positions: Tensor
    cells: Tensor
    system_idx: Tensor
    atom_starts: Tensor
    plan: Tensor


@dataclass(frozen=True)
class Candidates:
    """What `count_edges` has found.

    Attributes:
        target_starts: [n_atoms + 1] int32, where the edges into each atom begin.
        summary: [5 + n_systems] float64, for `read_summary`.
        keys: [n_atoms, room] int64, source and image of each neighbour, in no order.
        found: [n_atoms] int32, neighbours before the cap.
        turns: [3, n_atoms] int32, how many cells each atom is away from the one at the origin.
    """

    target_starts: Tensor
    summary: Tensor
    keys: Tensor
    found: Tensor
    turns: Tensor


@dataclass(frozen=True)
class FoundEdges:
    """The edges of a batch, sorted by target, source and shift; what lies beyond the last one is not written.

    Attributes:
        ends: [2, capacity] int32, source and target.
        edge_vec: [capacity, 3], Å, float64, from target to source.
        n_live: [1] int32, the number of edges, or the capacity if that is less.
        target_starts: [n_atoms + 1] int32, where the edges into each atom begin, at most the capacity.
        shifts: [capacity, 3] int32, lattice translations of the source; None unless asked for.
    """

    ends: Tensor
    edge_vec: Tensor
    n_live: Tensor
    target_starts: Tensor
    shifts: Tensor | None


@dataclass(frozen=True)
class Summary:
    """What the host has to know before edges are written.

    Attributes:
        n_edges: Number of edges.
        smallest: Smallest squared distance, Å^2, before the cap; infinite where there is no edge.
        n_capped: Number of atoms whose neighbours the cap has cut.
        most: Most neighbours of an atom, before the cap.
        overflow: 0 if the search has found everything. Bits: `ROOM_TOO_SMALL`, count again with room for `most`;
            `PLAN_TOO_SMALL`, a cell has changed so much that it needs another plan, or an atom is farther away than can be
            meant: use another list.
        edges_per_system: Number of edges of each system.
    """

    n_edges: int
    smallest: float
    n_capped: int
    most: int
    overflow: int
    edges_per_system: tuple[int, ...]


def read_summary(summary: Tensor) -> Summary:
    """Read a summary; on a GPU the one moment at which the host waits."""
    n_edges, smallest, n_capped, most, overflow, *ends = summary.tolist()
    per_system = tuple(int(end - start) for start, end in pairwise([0.0, *ends]))
    return Summary(int(n_edges), smallest, int(n_capped), int(most), int(overflow), per_system)


def _spacings(cells: np.ndarray) -> np.ndarray:
    """Return the distances between the lattice planes of each axis, [n_systems, 3]."""
    return 1 / np.linalg.norm(np.linalg.inv(cells), axis=1)


def search_plan(
    positions: np.ndarray, cells: np.ndarray, pbc: np.ndarray, offsets: Sequence[int], cutoff: float
) -> SearchPlan | None:
    """Choose the bins of a search.

    Args:
        positions: [n_atoms, 3], Å. Where atoms are decides how fast the search is, never what it finds.
        cells: [n_systems, 3, 3], Å, without zero rows.
        pbc: [n_systems, 3] bool.
        offsets: Where the atoms of each system begin, and the end.
        cutoff: Å.

    Returns:
        None for cells that are so small that images cannot be numbered.
    """
    table = np.zeros((len(cells), 8), dtype=np.int32)
    n_bins = 0
    for system, (spacings, periodic) in enumerate(zip(_spacings(cells), pbc, strict=True)):
        own = positions[offsets[system] : offsets[system + 1]]
        widths = np.ptp(own @ np.linalg.inv(cells[system]), axis=0) * spacings if len(own) else np.zeros(3)
        n = np.where(periodic, spacings / (SLACK * cutoff), widths / cutoff + 1).astype(np.int64).clip(1)
        while n.prod() > max(FEWEST_BINS, len(own)):
            n[n.argmax()] = (n.max() + 1) // 2
        images = np.ceil(SLACK * cutoff * n / spacings)
        if (images[periodic] > FARTHEST_IMAGE).any():
            return None
        table[system, :3] = n
        table[system, 3:6] = np.where(periodic, 2 * images + 1, np.minimum(n, 3))
        table[system, 6] = n_bins
        table[system, 7] = periodic @ (1, 2, 4)
        n_bins += int(n.prod())
    return SearchPlan(table, 1 << max(0, n_bins - 1).bit_length())


def neighbor_list(
    inputs: SearchInputs, n_bins: int, cutoff: float, cap: tuple[int, float] | None, room: int
) -> tuple[FoundEdges, Candidates, Summary]:
    """Find the edges of a batch, outside captured graphs: both steps, and the look between them.

    Args:
        inputs: As in `count_edges`.
        n_bins: Likewise.
        cutoff: Likewise.
        cap: Likewise.
        room: Neighbours of an atom to make room for at first; more if there are more.

    Returns:
        The edges with their shifts, what was counted, and the summary; with an overflow the edges are not to be used.

    Raises:
        ValueError: Tensors that do not fit together.
    """
    candidates = count_edges(inputs, n_bins, cutoff, cap, room)
    summary = read_summary(candidates.summary)
    if summary.overflow == ROOM_TOO_SMALL:
        candidates = count_edges(inputs, n_bins, cutoff, cap, summary.most)
        summary = read_summary(candidates.summary)
    return fill_edges(inputs, candidates, summary.n_edges, with_shifts=True), candidates, summary


def count_edges(
    inputs: SearchInputs, n_bins: int, cutoff: float, cap: tuple[int, float] | None, room: int
) -> Candidates:
    """Find and count the neighbours of every atom.

    Args:
        inputs: Atoms, cells and plan.
        n_bins: Of the plan.
        cutoff: Å; atoms at just the cutoff are no neighbours, as for vesin.
        cap: A cap on the neighbours of each atom, and the margin that makes it not strict, Å^2: with t the squared distance
            of the first one past the cap, all with d^2 <= t + margin stay. None keeps all.
        room: Neighbours of an atom, before the cap, that there is room for.

    Raises:
        ValueError: Tensors that do not fit together.
    """
    n_atoms, n_systems, device = inputs.positions.shape[0], inputs.cells.shape[0], inputs.positions.device
    check("positions", inputs.positions, (n_atoms, 3), torch.float64)
    check("cells", inputs.cells, (n_systems, 3, 3), torch.float64)
    check("system_idx", inputs.system_idx, (n_atoms,), torch.int32)
    check("atom_starts", inputs.atom_starts, (n_systems + 1,), torch.int64)
    check("plan", inputs.plan, (n_systems, 8), torch.int32)
    turns, places = (torch.empty(3, n_atoms, dtype=torch.int32, device=device) for _ in range(2))
    bins, flags, found = (torch.empty(n_atoms, dtype=torch.int32, device=device) for _ in range(3))
    nearest = torch.empty(n_atoms, dtype=torch.float64, device=device)
    keys = torch.empty(n_atoms, room, dtype=torch.int64, device=device)
    target_starts = torch.empty(n_atoms + 1, dtype=torch.int32, device=device)
    summary = torch.empty(5, dtype=torch.float64, device=device)
    kept, where = found, (inputs.positions, inputs.cells, inputs.system_idx)
    if n_atoms:
        put_into_bins[(triton.cdiv(n_atoms, ATOMS),)](
            *where, inputs.plan, turns, places, bins, flags, n_atoms, CUTOFF=cutoff, ROWS=ATOMS, num_warps=4
        )
        # Atoms of a bin stay in order, so that neighbours are found in the same order in every run.
        bins, order = torch.sort(bins, stable=True)
        numbers = torch.arange(n_bins + 1, dtype=torch.int32, device=device)
        starts = torch.searchsorted(bins, numbers, out_int32=True)
        look_around[(n_atoms,)](
            *where, inputs.plan, turns, places, order, starts, keys, found, nearest, n_atoms,
            CUTOFF=cutoff, ROOM=room, VISITS=VISITS, CANDIDATES=CANDIDATES, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
        if cap is not None:
            kept = torch.empty_like(found)
            apply_cap[(n_atoms,)](
                *where, turns, keys, found, kept, n_atoms,
                CAP=cap[0], MARGIN=cap[1], ROOM=room, ROWS=NEIGHBOURS, num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip
    add_up[(1,)](
        found, kept, nearest, flags, target_starts, summary, n_atoms, ROOM=room, ROWS=COUNTED_AT_ONCE, num_warps=8
    )
    summary = torch.cat([summary, target_starts[inputs.atom_starts[1:]].to(torch.float64)])
    return Candidates(target_starts, summary, keys, found, turns)


def fill_edges(inputs: SearchInputs, candidates: Candidates, capacity: int, *, with_shifts: bool = False) -> FoundEdges:
    """Write the edges that `count_edges` has found.

    Args:
        inputs: As they were then.
        candidates: What was found; with an overflow no edges are written.
        capacity: Number of edges to make room for. With less than there are some are missing, and no kernel goes astray.
        with_shifts: Write the shifts too.
    """
    n_atoms, device = inputs.positions.shape[0], inputs.positions.device
    ends = torch.empty(2, capacity, dtype=torch.int32, device=device)
    vectors = torch.empty(capacity, 3, dtype=torch.float64, device=device)
    shifts = torch.empty(capacity, 3, dtype=torch.int32, device=device) if with_shifts else None
    n_live, starts = (torch.zeros(size, dtype=torch.int32, device=device) for size in (1, n_atoms + 1))
    if n_atoms:
        write_edges[(n_atoms,)](
            inputs.positions, inputs.cells, inputs.system_idx, candidates.turns, candidates.keys, candidates.found,
            candidates.target_starts, candidates.summary, ends, vectors, ends if shifts is None else shifts, n_live, starts,
            n_atoms, capacity,
            ROOM=candidates.keys.shape[1], ROWS=NEIGHBOURS, SHIFTS=with_shifts, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return FoundEdges(ends, vectors, n_live, starts, shifts)
