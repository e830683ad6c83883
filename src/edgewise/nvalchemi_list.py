"""The neighbour list of nvalchemi-toolkit-ops (extra `gpu`), with the definition and order of `edgewise.neighbors`.

The only module that knows that library. Its method is named, never left to the library's own choice, which goes by sizes
and can be many times slower.
"""

from __future__ import annotations

import torch
from torch import Tensor

from edgewise.cell_list import Candidates, translations
from edgewise.systems import SystemBatch

CUTOFF_MARGIN = 1e-9
"""Relative. The library is asked for a little more than the cutoff; what is inside is then decided here, inclusive."""


def find_edges(batch: SystemBatch, cutoff: float, device: torch.device) -> Candidates:
    """Find all edges within the cutoff, self-images included and unchecked.

    Args:
        batch: The structures, on the CPU.
        cutoff: Å, inclusive.
        device: Where to work and where the results lie.

    Raises:
        ImportError: The library is not installed.
    """
    positions, cells, where = (item.to(device) for item in (batch.positions, batch.cell, batch.system_idx))
    target, source, shifts = _pairs(positions, cells, batch.pbc.to(device), where, cutoff * (1 + CUTOFF_MARGIN))
    edge_vec = positions[source] - positions[target] + translations(shifts, cells[where[target]])
    squared = edge_vec.square().sum(1)
    order = _order(target, source, shifts)
    order = order[squared[order] <= cutoff * cutoff]
    return Candidates(torch.stack([source[order], target[order]]), shifts[order], edge_vec[order], squared[order])


def _pairs(
    positions: Tensor, cells: Tensor, pbc: Tensor, where: Tensor, cutoff: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return target [n], source [n] and shift [n, 3] of every pair, int64, in no order."""
    from nvalchemiops.neighbors.neighbor_utils import NeighborOverflowError
    from nvalchemiops.torch.neighbors import batch_cell_list

    most: int | None = None
    while True:
        try:
            pairs, _, shifts = batch_cell_list(
                positions,
                cutoff,
                cells.contiguous(),
                pbc,
                where.to(torch.int32),
                max_neighbors=most,
                return_neighbor_list=True,
            )
        except NeighborOverflowError as error:
            # The library's estimate was too small for the densest atom, and tells how many it has.
            most = error.num_neighbors
        else:
            target, source = pairs.to(torch.int64)
            return target, source, shifts.to(torch.int64)


def _order(target: Tensor, source: Tensor, shifts: Tensor) -> Tensor:
    """Return the order by target, source and shift: stable sorts from the last key to the first."""
    order = torch.arange(target.shape[0], device=target.device)
    for key in (shifts[:, 2], shifts[:, 1], shifts[:, 0], source, target):
        order = order[key[order].argsort(stable=True)]
    return order
