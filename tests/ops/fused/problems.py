"""Random edges and what mode fused makes of them, for the tests of its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from edgewise.ops.fused.layout import n_edge_coefficients
from edgewise.ops.fused.shapes import EdgeTables, edge_tables
from edgewise.ops.reference import MessageShape, edge_steps
from tests.ops.kernel_problems import DEVICE

CUTOFF = 2.5

SHAPES = [(2, 2), (2, 1), (4, 2), (3, 3), (1, 0)]
"""lmax and mmax: UMA-S and eSEN, the other published ones, and two that nobody publishes."""

SIZES = [(0, 4), (1, 4), (7, 6), (17, 8)]
"""Edges and channels: none, one, primes, widths that are powers of two and not."""

if DEVICE == "cuda":
    SIZES += [(1009, 128)]

SPARE = 3
"""Rows of capacity beyond the last edge."""


@dataclass
class Problem:
    """Edges between a few atoms, some of them longer than the cutoff, and random features in float64."""

    lmax: int
    mmax: int
    n_edges: int
    channels: int
    n_atoms: int = 5

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(100 * self.n_edges + self.lmax)
        self.shape = MessageShape(self.lmax, self.mmax, self.channels, self.channels)
        index = torch.randint(self.n_atoms, (2, self.n_edges), generator=self.generator)
        index[1] = index[1].sort().values
        self.edge_index = index.to(DEVICE)
        self.edge_vec = self.random(self.n_edges, 3)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64).to(DEVICE)

    @property
    def capacity(self) -> int:
        return self.n_edges + SPARE

    @property
    def n_coefficients(self) -> int:
        return (self.lmax + 1) ** 2

    @property
    def n_edge_coefficients(self) -> int:
        return n_edge_coefficients(self.lmax, self.mmax)

    @cached_property
    def order(self) -> edge_steps.EdgeOrder:
        return edge_steps.edge_order(self.edge_index, self.n_atoms)

    @cached_property
    def geometry(self) -> edge_steps.EdgeGeometry:
        centres = torch.linspace(0, CUTOFF, 4, dtype=torch.float64, device=DEVICE)
        return edge_steps.edge_geometry(self.edge_vec, CUTOFF, centres, self.lmax, torch.float64)

    @cached_property
    def edges(self) -> EdgeTables:
        made = edge_tables(self.order, self.geometry, self.shape, self.capacity)
        # Powers of two, so that they change no digit.
        scales = torch.exp2(torch.randint(-6, 7, (self.n_atoms,), generator=self.generator).float())
        return replace(made, scales=scales.to(DEVICE))

    @property
    def scale_of_edge(self) -> Tensor:
        """The scale of each edge's target, [n_edges, 1] float64."""
        return self.edges.scales[self.order.target].double()[:, None]

    def nodes(self) -> Tensor:
        return self.random(self.n_atoms, self.n_coefficients, self.channels)

    def rows(self, width: int) -> Tensor:
        """Return rows of edges; those beyond the last edge are NaN, since nothing may read them."""
        return self.filled(self.random(self.n_edges, width))

    def filled(self, rows: Tensor) -> Tensor:
        return torch.cat([rows, torch.full((SPARE, *rows.shape[1:]), torch.nan, dtype=rows.dtype, device=DEVICE)])

    def split(self, rows: Tensor, width: int, extra: int = 0) -> list[Tensor]:
        """Return the m-blocks of the edges there are."""
        sizes = [(1 if m == 0 else 2) * size * width for m, size in enumerate(self.shape.sizes)]
        sizes[0] += extra
        return list(rows[: self.n_edges].split(sizes, dim=1))

    def tangents(self, n_tasks: int) -> Tensor:
        """Return what other layers have left in the tangents, float32."""
        return self.random(n_tasks, self.capacity, 3).float()


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return memory for an output, NaN where a kernel leaves it out."""
    return torch.full(shape, torch.nan, dtype=dtype, device=DEVICE)


def joined(blocks: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(blocks), dim=1)
