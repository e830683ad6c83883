"""Edges and rows of mode fused at the size of UMA-S, for the benchmarks of its kernels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from ops import edge_problem, measure
from sizes import CHANNELS, CUTOFF
from structures import random_graph, reference_graph
from torch import Tensor

from edgewise.ops import MessageShape
from edgewise.ops.fused.layout import n_edge_coefficients
from edgewise.ops.fused.row_format import FLOAT16, FLOAT32, LOW_SCALE, SPLIT, TF32, RowFormat
from edgewise.ops.fused.shapes import EdgeTables, edge_tables
from edgewise.ops.reference import edge_steps

LMAX = edge_problem.LMAX
N_BASIS = 32
N_SLICES = 4
"""Slices of an atom's edges, as the engine cuts them for 1000 atoms."""

BOUNDS = {FLOAT32: measure.FLOAT32_BOUND, SPLIT: measure.FLOAT32_BOUND, TF32: 1e-3, FLOAT16: 1e-3}
"""Largest relative L2 difference by the format of rows: float16 and TF32 round operands at up to 5e-4."""


@dataclass(frozen=True)
class FusedProblem:
    """Random rows in a format on a graph; what is exact is made of the very same results in float64."""

    edge_index: Tensor
    edge_vec: Tensor
    row_format: RowFormat
    channels: int = CHANNELS
    n_atoms: int = edge_problem.N_ATOMS

    @property
    def dtype(self) -> torch.dtype:
        """Type of results in rows."""
        return self.row_format.results

    @property
    def device(self) -> torch.device:
        """Where everything is."""
        return self.edge_vec.device

    @property
    def shape(self) -> MessageShape:
        """Sizes."""
        return MessageShape(LMAX, LMAX, self.channels, self.channels)

    @property
    def n_edges(self) -> int:
        """Number of edges."""
        return self.edge_index.shape[1]

    @property
    def n_coefficients(self) -> int:
        """Coefficients of an edge; as many as a node's, since mmax = lmax."""
        return n_edge_coefficients(LMAX, LMAX)

    @cached_property
    def order(self) -> edge_steps.EdgeOrder:
        """The edges of each atom."""
        return edge_steps.edge_order(self.edge_index, self.n_atoms)

    def geometry(self, dtype: torch.dtype) -> edge_steps.EdgeGeometry:
        """Return the geometry in a type."""
        centres = torch.linspace(0, CUTOFF, N_BASIS, dtype=torch.float64, device=self.device)
        return edge_steps.edge_geometry(self.edge_vec, CUTOFF, centres, LMAX, dtype)

    @cached_property
    def edges(self) -> EdgeTables:
        """The edges as the kernels read them."""
        return edge_tables(self.order, self.geometry(torch.float64), self.shape, self.n_edges)

    def random(self, *shape: int, seed: int = 0, dtype: torch.dtype | None = None) -> Tensor:
        """Return normal numbers, in the type of the rows unless another is given."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(*shape, generator=generator, device=self.device).to(dtype or self.dtype)

    def rows(self, coefficients: int, seed: int = 1) -> Tensor:
        """Return rows of so many coefficients."""
        return self.random(self.n_edges, coefficients * self.channels, seed=seed)

    def nodes(self, seed: int = 2) -> Tensor:
        """Return features of nodes, float32."""
        return self.random(self.n_atoms, self.n_coefficients, self.channels, seed=seed, dtype=torch.float32)

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return memory for an output."""
        return torch.empty(*shape, device=self.device, dtype=dtype or self.dtype)

    def operands(self, coefficients: int) -> Tensor:
        """Return memory for operands of so many coefficients."""
        n_columns = self.row_format.parts * coefficients * self.channels
        return self.empty(self.n_edges, n_columns, dtype=self.row_format.operands)

    def as_operands(self, rows: Tensor, width: int, extra: int = 0) -> Tensor:
        """Return rows as operands."""
        return torch.cat([self.row_format.operand(block) for block in self.split(rows, width, extra)], dim=1)

    def values(self, operands: Tensor, width: int, extra: int = 0) -> Tensor:
        """Return what operands stand for, in the type of results."""
        if self.row_format.parts == 1:
            return operands
        blocks = self.split(operands, 2 * width, 2 * extra)
        return torch.cat([value_of_parts(*block.float().chunk(2, dim=1)) for block in blocks], dim=1)

    def split(self, rows: Tensor, width: int, extra: int = 0) -> list[Tensor]:
        """Return the m-blocks of rows."""
        sizes = [(1 if m == 0 else 2) * size * width for m, size in enumerate(self.shape.sizes)]
        sizes[0] += extra
        return list(rows.split(sizes, dim=1))


def value_of_parts(high: Tensor, low: Tensor) -> Tensor:
    """Return what two parts of an operand stand for."""
    return high + low / LOW_SCALE


def make(graph: str, row_format: RowFormat) -> FusedProblem:
    """Return a problem on the graph "copper" or "random"."""
    device = torch.device("cuda")
    return FusedProblem(*(reference_graph(device) if graph == "copper" else random_graph(device)), row_format)


Timed = Callable[[], Iterable[Tensor]]


def compare(
    given: FusedProblem,
    op: str,
    name: str,
    ours: Timed,
    plain: Callable[[torch.dtype], Iterable[Tensor]],
    read: Callable[[Sequence[Tensor]], Sequence[Tensor]] | None = None,
) -> dict[str, Any]:
    """Return one row: the kernel beside plain PyTorch in float32, each with its error against float64.

    `read` turns operands that the kernel has written into values.
    """
    found = measure.compare(
        name,
        lambda: list(ours()),
        lambda: list(plain(torch.float32)),
        bound=BOUNDS[given.row_format],
        exact=list(plain(torch.float64)),
        read=read,
    )
    return {"op": op, "rows": given.row_format.name, **found}


def main(rows: Callable[[str, RowFormat], list[dict[str, Any]]], description: str | None) -> None:
    """Print the rows of an op for every format on the graph that the command line names."""
    graph = edge_problem.chosen_graph(description)
    for row_format in BOUNDS:
        for row in rows(graph, row_format):
            print(json.dumps(row))
