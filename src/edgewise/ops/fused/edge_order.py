"""The edges in the order of their sources, on the device: `reference.edge_steps.edge_order` for edges sorted by target.

A stable sort of the sources with the targets' order kept, so that sums over the edges out of an atom have a fixed order. Edges
that are not there are sorted behind all others. It uses one kernel and three of torch's operations, all of fixed shapes, so that
it works in a captured graph.
"""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgewise.ops.fused.edge_geometry import check

EDGES = 512
"""Edges of a program."""


@triton.jit
def _sort_keys(ends, n_live, keys, n_edges, n_atoms, ROWS: tl.constexpr):
    """Copy the sources of a tile of edges, and put a number beyond all atoms where there is no edge."""
    edge = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = edge < n_edges
    source = tl.load(ends + edge, mask=inside & (edge < tl.load(n_live)), other=0)
    tl.store(keys + edge, tl.where(edge < tl.load(n_live), source, n_atoms), mask=inside)


def edge_order(ends: Tensor, n_live: Tensor, n_atoms: int) -> tuple[Tensor, Tensor]:
    """Return the edges in the order of their sources.

    Args:
        ends: [2, capacity] int32, source and target; sorted by target.
        n_live: [1] int32 on the device, the number of edges.
        n_atoms: Number of atoms.

    Returns:
        by_source [capacity] int32, the edges in that order, and source_starts [n_atoms + 1] int32, where the edges out of each
        atom begin in it.

    Raises:
        ValueError: Tensors that do not fit together.
    """
    capacity = ends.shape[1]
    check("ends", ends, (2, capacity), torch.int32)
    check("n_live", n_live, (1,), torch.int32)
    # Radix sorts take a turn for each byte of the type.
    dtype = torch.int16 if n_atoms <= torch.iinfo(torch.int16).max else torch.int32
    keys = torch.empty(capacity, dtype=dtype, device=ends.device)
    if capacity:
        _sort_keys[(triton.cdiv(capacity, EDGES),)](ends, n_live, keys, capacity, n_atoms, ROWS=EDGES, num_warps=4)
    sources, by_source = torch.sort(keys, stable=True)
    atoms = torch.arange(n_atoms + 1, dtype=dtype, device=ends.device)
    return by_source.to(torch.int32), torch.searchsorted(sources, atoms, out_int32=True)
