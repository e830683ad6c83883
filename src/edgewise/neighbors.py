"""Directed edges between atoms within the cutoff, sorted by target: by vesin on the CPU, by `cell_list` on GPUs.

This module decides the direction of edges and shifts once (MODEL.md section 3): an edge goes from a source to a
target, and its vector points from the target to the source image, r_source + shift . cell - r_target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from vesin import NeighborList

from edgewise import cell_list, nvalchemi_list
from edgewise.errors import InvalidStructureError
from edgewise.systems import SystemBatch

SMALLEST_DISTANCE = 1e-3
"""Å. Two atoms (images included) closer than this are an error in the structure."""

CAP_MARGIN = 0.01
"""Å^2. A capped atom keeps every neighbour up to this much beyond the squared distance of the first dropped one."""

LARGEST_IMAGE_COUNT = 100_000
"""More periodic images than this within the cutoff mean a cell that is too small to be meant."""

LARGEST_EXTENT = 30_000
"""Cutoffs. Structures that are wider are not meant, and neighbour lists cannot count their cells."""


@dataclass(frozen=True)
class EdgeList:
    """Directed edges of a batch, grouped by system and sorted by target, then source, then shift.

    Attributes:
        edge_index: [2, n_edges] int64, row 0 source, row 1 target.
        shifts: [n_edges, 3] int64, lattice translations of the source.
        edge_vec: [n_edges, 3], Å, float64, from target to source.
        edges_per_system: Number of edges of each system.
        n_capped: Number of atoms whose neighbours were cut by the cap.
    """

    edge_index: Tensor
    shifts: Tensor
    edge_vec: Tensor
    edges_per_system: tuple[int, ...]
    n_capped: int

    def to(self, device: torch.device | str) -> EdgeList:
        """Return the list with its tensors on another device."""
        return replace(
            self,
            edge_index=self.edge_index.to(device),
            shifts=self.shifts.to(device),
            edge_vec=self.edge_vec.to(device),
        )


def build_edges(
    batch: SystemBatch,
    cutoff: float,
    max_neighbors: int | None = None,
    device: torch.device | None = None,
    *,
    by_nvalchemi: bool = False,
) -> EdgeList:
    """Find all edges within the cutoff, self-images included.

    Args:
        batch: The structures, on the CPU.
        cutoff: Å. Whether an edge of just this length is listed is open: it has no weight in any model.
        max_neighbors: Cap on the neighbours of each atom, not strict: with t the squared distance of the first one
            past the cap, all with d^2 <= t + 0.01 Å^2 stay. None or a number below 1 keeps all.
        device: Where to work. None and the CPU take vesin; every other device works itself and keeps the result.
        by_nvalchemi: Let nvalchemi-toolkit-ops find the edges, on the given device, the CPU included.

    Raises:
        ImportError: `by_nvalchemi`, and the library is not installed.
        InvalidStructureError: Two atoms, or an atom and an image, are closer than 1e-3 Å; the cell is so small that an
            atom would see an absurd number of images; or the structure is absurdly wide.
    """
    check_sizes(batch, cutoff)
    by_vesin = (device is None or device.type == "cpu") and not by_nvalchemi
    if device is None or by_vesin or batch.n_systems == 0:
        return _edges_on_cpu(batch, cutoff, max_neighbors)
    find_edges = nvalchemi_list.find_edges if by_nvalchemi else cell_list.find_edges
    return _edges_on_device(batch, cutoff, max_neighbors, device, find_edges)


def _name(batch: SystemBatch, system: int) -> str:
    return "the structure" if batch.n_systems == 1 else f"structure {system}"


def _edges_on_cpu(batch: SystemBatch, cutoff: float, max_neighbors: int | None) -> EdgeList:
    offsets = batch.offsets()
    indices, shifts, vectors, counts = [], [], [], []
    n_capped = 0
    for system in range(batch.n_systems):
        start, stop = offsets[system], offsets[system + 1]
        index, shift, vector, distance = _system_edges(
            batch.positions[start:stop].numpy(), batch.cell[system].numpy(), batch.pbc[system].numpy(), cutoff
        )
        _check_distances(index, shift, distance, _name(batch, system))
        if max_neighbors is not None and max_neighbors > 0:
            keep, capped = _apply_cap(index[1], distance, max_neighbors, stop - start)
            index, shift, vector = index[:, keep], shift[keep], vector[keep]
            n_capped += capped
        indices.append(index + start)
        shifts.append(shift)
        vectors.append(vector)
        counts.append(index.shape[1])
    return EdgeList(
        edge_index=torch.from_numpy(np.concatenate(indices, axis=1) if indices else np.zeros((2, 0), dtype=np.int64)),
        shifts=torch.from_numpy(np.concatenate(shifts) if shifts else np.zeros((0, 3), dtype=np.int64)),
        edge_vec=torch.from_numpy(np.concatenate(vectors) if vectors else np.zeros((0, 3))),
        edges_per_system=tuple(counts),
        n_capped=n_capped,
    )


def _edges_on_device(
    batch: SystemBatch,
    cutoff: float,
    max_neighbors: int | None,
    device: torch.device,
    find_edges: Callable[[SystemBatch, float, torch.device], cell_list.Candidates],
) -> EdgeList:
    """Find the edges on the device; what is rare, an error or a cap that binds, is settled on the CPU."""
    found = find_edges(batch, cutoff, device)
    n_atoms, target = batch.positions.shape[0], found.edge_index[1]
    per_atom = torch.bincount(target, minlength=n_atoms)
    per_system = torch.zeros(batch.n_systems, dtype=torch.int64, device=device)
    per_system = per_system.index_add(0, batch.system_idx.to(device), per_atom)
    nearest = found.squared.min()[None] if target.shape[0] else torch.full((1,), torch.inf, device=device)
    # One transfer tells everything that the host has to know.
    summary = torch.cat(
        [nearest.to(torch.float64), per_atom.max()[None].to(torch.float64), per_system.to(torch.float64)]
    )
    smallest, most, *counts = summary.tolist()
    capped = max_neighbors is not None and 0 < max_neighbors < most
    if capped or smallest < SMALLEST_DISTANCE**2:
        return _edges_on_cpu(batch, cutoff, max_neighbors).to(device)
    return EdgeList(found.edge_index, found.shifts, found.edge_vec, tuple(int(count) for count in counts), 0)


def _system_edges(
    positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return edge index [2, n], shifts [n, 3], vectors [n, 3] and distances [n] of one structure, sorted."""
    finder = NeighborList(cutoff=cutoff, full_list=True, sorted=False)
    target, source, shift = finder.compute(
        points=positions, box=cell if pbc.any() else np.zeros((3, 3)), periodic=pbc, quantities="ijS"
    )
    target, source, shift = target.astype(np.int64), source.astype(np.int64), shift.astype(np.int64)
    order = np.lexsort((shift[:, 2], shift[:, 1], shift[:, 0], source, target))
    target, source, shift = target[order], source[order], shift[order]
    vector = positions[source] - positions[target] + shift @ cell
    return np.stack([source, target]), shift, vector, np.linalg.norm(vector, axis=1)


def check_sizes(batch: SystemBatch, cutoff: float) -> None:
    """Refuse cells that are absurdly small and structures that are absurdly wide.

    Raises:
        InvalidStructureError: There is one.
    """
    offsets = batch.offsets()
    for system in range(batch.n_systems):
        positions = batch.positions[offsets[system] : offsets[system + 1]].numpy()
        pbc, where = batch.pbc[system].numpy(), _name(batch, system)
        widths = np.ptp(positions, axis=0)
        if pbc.any():
            inverse = np.linalg.inv(batch.cell[system].numpy())
            spacings = 1 / np.linalg.norm(inverse, axis=0)
            _check_image_count(spacings, pbc, cutoff, where)
            # Along axes that are not periodic it is the atoms that count, along others the cell.
            widths = spacings if pbc.all() else spacings * np.where(pbc, 1.0, np.ptp(positions @ inverse, axis=0))
        if widths.max() > LARGEST_EXTENT * cutoff:
            message = (
                f"{where} is {widths.max():.3g} Å wide, more than {LARGEST_EXTENT} cutoffs of {cutoff} Å; "
                "check positions and cell and their unit (Å), or whether the run has exploded"
            )
            raise InvalidStructureError(message)


def _check_image_count(spacings: np.ndarray, pbc: np.ndarray, cutoff: float, where: str) -> None:
    n_images = math.prod(2 * math.ceil(cutoff / spacing) + 1 for spacing in spacings[pbc])
    if n_images > LARGEST_IMAGE_COUNT:
        message = (
            f"cell of {where} is so small that {n_images} images lie within the cutoff of {cutoff} Å "
            f"(lattice planes {np.round(spacings, 4).tolist()} Å apart); check the cell and its unit (Å)"
        )
        raise InvalidStructureError(message)


def _check_distances(index: np.ndarray, shift: np.ndarray, distance: np.ndarray, where: str) -> None:
    if len(distance) == 0 or distance.min() >= SMALLEST_DISTANCE:
        return
    edge = int(distance.argmin())
    source, target = index[:, edge].tolist()
    image = "" if not shift[edge].any() else f" (image {shift[edge].tolist()})"
    message = (
        f"atoms {target} and {source}{image} of {where} are {distance[edge]:.2e} Å apart; "
        f"distances have to be at least {SMALLEST_DISTANCE} Å: remove one of them or check the cell"
    )
    raise InvalidStructureError(message)


def _apply_cap(target: np.ndarray, distance: np.ndarray, cap: int, n_atoms: int) -> tuple[np.ndarray, int]:
    """Return which edges stay under the non-strict cap, and for how many atoms it binds."""
    keep = np.ones(len(target), dtype=bool)
    counts = np.bincount(target, minlength=n_atoms)
    ends = np.cumsum(counts)
    capped = 0
    for atom in np.flatnonzero(counts > cap):
        edges = slice(ends[atom] - counts[atom], ends[atom])
        squared = distance[edges] ** 2
        limit = np.partition(squared, cap)[cap] + CAP_MARGIN
        keep[edges] = squared <= limit
        capped += int(not keep[edges].all())
    return keep, capped
