"""The neighbour list as tensor operations on the device of the structures, in a time that grows with the atoms.

Atoms and their periodic images near the structure are sorted into cubes as wide as the cutoff; every atom looks at the 27
cubes around it. The cubes are found by bisection in the sorted list, so that empty space costs nothing. The definition
of edges, shifts and order is that of `edgewise.neighbors`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from edgewise.systems import SystemBatch


@dataclass(frozen=True)
class Candidates:
    """All edges of a batch before the cap, sorted by target, source and shift.

    Attributes:
        edge_index: [2, n_edges] int64.
        shifts: [n_edges, 3] int64.
        edge_vec: [n_edges, 3], Å, float64.
        squared: [n_edges], Å^2, float64.
    """

    edge_index: Tensor
    shifts: Tensor
    edge_vec: Tensor
    squared: Tensor


@dataclass(frozen=True)
class _Images:
    """Atoms and their images, sorted by the cube: atom, shift of the wrapped atom, position, place before, cube."""

    atom: Tensor
    shift: Tensor
    position: Tensor
    order: Tensor
    cube: Tensor


def find_edges(batch: SystemBatch, cutoff: float, device: torch.device) -> Candidates:
    """Find all edges within the cutoff, self-images included and unchecked.

    Args:
        batch: The structures, on the CPU.
        cutoff: Å, inclusive.
        device: Where to work and where the results lie.
    """
    wrapped, turns = _wrapped(batch)
    low, high = _bounds(batch, wrapped)
    positions, where = torch.from_numpy(wrapped).to(device), batch.system_idx.to(device)
    cells = batch.cell.to(device)
    # A margin keeps atoms on the boundary inside; cubes are numbered system after system.
    origin = low - cutoff * 1.001
    shape = np.floor((high + cutoff * 1.001 - origin) / cutoff).astype(np.int64) + 3
    first = np.concatenate([[0], np.cumsum(np.prod(shape, axis=1))[:-1]])
    origins, shapes, firsts = (torch.from_numpy(item).to(device) for item in (origin, shape, first))
    grid = _Grid(origins, shapes, firsts, cutoff)
    images = _images(batch, positions, where, cells, grid)
    starts, counts = _ranges(images.cube, grid.rows(positions, where))
    target = torch.arange(positions.shape[0], device=device).repeat_interleave(counts.sum(1))
    image = _expand(starts.flatten(), counts.flatten())
    vector = images.position[image] - positions[target]
    squared = vector.square().sum(1)
    itself = (images.atom[image] == target) & (images.shift[image] == 0).all(1)
    # The check of coincident atoms looks at the distances, so only the atom itself is left out here.
    near = ((squared <= cutoff * cutoff) & ~itself).nonzero().flatten()
    target, image = target[near], image[near]
    key = target * images.order.shape[0] + images.order[image]
    arranged = key.argsort()
    target, image = target[arranged], image[arranged]
    source = images.atom[image]
    turns_there = torch.from_numpy(turns).to(device)
    shifts = images.shift[image] - turns_there[source] + turns_there[target]
    given = batch.positions.to(device)
    edge_vec = given[source] - given[target] + translations(shifts, cells[where[target]])
    return Candidates(torch.stack([source, target]), shifts, edge_vec, edge_vec.square().sum(1))


def translations(shifts: Tensor, cells: Tensor) -> Tensor:
    """Return the lattice vectors [n, 3] of shifts [n, 3] in cells [n, 3, 3]; sums, since a product of 1 x 3 is slow."""
    return (shifts.to(torch.float64)[:, :, None] * cells).sum(1)


@dataclass(frozen=True)
class _Grid:
    """Cubes of each system: origin [n_systems, 3], shape [n_systems, 3], number of the first cube [n_systems]."""

    origin: Tensor
    shape: Tensor
    first: Tensor
    width: float

    def coordinates(self, positions: Tensor, system: Tensor) -> Tensor:
        """Return the cube of each position, [n, 3]; one layer around the origin stays free."""
        return ((positions - self.origin[system]) / self.width).floor().to(torch.int64) + 1

    def number(self, cube: Tensor, system: Tensor) -> Tensor:
        """Return the running number of cubes."""
        shape = self.shape[system]
        return self.first[system] + (cube[:, 0] * shape[:, 1] + cube[:, 1]) * shape[:, 2] + cube[:, 2]

    def inside(self, cube: Tensor, system: Tensor) -> Tensor:
        """Tell which cubes are part of the grid without its outermost layer."""
        return ((cube >= 1) & (cube <= self.shape[system] - 2)).all(1)

    def rows(self, positions: Tensor, system: Tensor) -> Tensor:
        """Return the middle cube of the nine rows of three around each position, [n, 9]."""
        middle = self.number(self.coordinates(positions, system), system)
        along_x = self.shape[system, 1] * self.shape[system, 2]
        along_y = self.shape[system, 2]
        return torch.stack([middle + i * along_x + j * along_y for i in (-1, 0, 1) for j in (-1, 0, 1)], dim=1)


def _wrapped(batch: SystemBatch) -> tuple[np.ndarray, np.ndarray]:
    """Return positions inside the cells along periodic axes, and how many cells each atom was away from there."""
    cells = batch.cell.numpy()[batch.system_idx.numpy()]
    positions = batch.positions.numpy()
    fractions = np.linalg.solve(cells.transpose(0, 2, 1), positions[:, :, None])[:, :, 0]
    turns = np.where(batch.pbc.numpy()[batch.system_idx.numpy()], np.floor(fractions), 0.0)
    return positions - (turns[:, None] @ cells)[:, 0], turns.astype(np.int64)


def _bounds(batch: SystemBatch, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and highest coordinates of each system, [n_systems, 3]."""
    starts = np.array(batch.offsets()[:-1], dtype=np.int64)
    return np.minimum.reduceat(positions, starts), np.maximum.reduceat(positions, starts)


def _images(batch: SystemBatch, positions: Tensor, where: Tensor, cells: Tensor, grid: _Grid) -> _Images:
    """Return the atoms and images that lie in the grid."""
    device = positions.device
    atoms, shifts, offsets = [], [], batch.offsets()
    for system in range(batch.n_systems):
        around = _shifts(batch.cell[system].numpy(), batch.pbc[system].numpy(), grid.width).to(device)
        numbers = torch.arange(offsets[system], offsets[system + 1], device=device)
        atoms.append(numbers.repeat_interleave(around.shape[0]))
        shifts.append(around.repeat(numbers.shape[0], 1))
    atom, shift = torch.cat(atoms), torch.cat(shifts)
    system = where[atom]
    position = positions[atom] + translations(shift, cells[system])
    cube = grid.coordinates(position, system)
    kept = grid.inside(cube, system).nonzero().flatten()
    numbers = grid.number(cube[kept], system[kept])
    numbers, arranged = numbers.sort(stable=True)
    kept = kept[arranged]
    # Atoms come in order and the shifts of each in order, so the place before sorting puts edges in order.
    return _Images(atom[kept], shift[kept], position[kept], arranged, numbers)


def _shifts(cell: np.ndarray, pbc: np.ndarray, cutoff: float) -> Tensor:
    """Return the shifts of images that can lie within the cutoff of the cell, [n, 3], in order."""
    spacings = 1 / np.linalg.norm(np.linalg.inv(cell), axis=0)
    highest = [math.ceil(cutoff / spacing) if periodic else 0 for spacing, periodic in zip(spacings, pbc, strict=True)]
    return torch.cartesian_prod(*(torch.arange(-n, n + 1) for n in highest))


def _ranges(cubes: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return start and number of the images in three neighbouring cubes each, by bisection in the sorted cubes."""
    start = torch.searchsorted(cubes, rows - 1)
    return start, torch.searchsorted(cubes, rows + 1, right=True) - start


def _expand(starts: Tensor, counts: Tensor) -> Tensor:
    """Return start, start + 1, ... for every range, one after the other."""
    ends = counts.cumsum(0)
    base = (starts - (ends - counts)).repeat_interleave(counts)
    return base + torch.arange(base.shape[0], device=base.device)
