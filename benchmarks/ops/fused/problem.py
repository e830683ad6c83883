"""Edges and rows of mode fused at the size of UMA-S, for the benchmarks of its kernels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
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
from edgewise.ops.fused.shapes import EdgeTables, edge_tables
from edgewise.ops.reference import edge_steps

LMAX = edge_problem.LMAX
N_BASIS = 32
N_SLICES = 4
"""Slices of an atom's edges, as the engine cuts them for 1000 atoms."""

BOUNDS = {torch.float32: measure.FLOAT32_BOUND, torch.float16: 1e-3}
"""Largest relative L2 difference by the type of the rows: float16 rounds what is stored at up to 5e-4."""


@dataclass(frozen=True)
class FusedProblem:
    """Random rows of a type on a graph; what is exact is made of the very same rows in float64."""

    edge_index: Tensor
    edge_vec: Tensor
    dtype: torch.dtype
    channels: int = CHANNELS
    n_atoms: int = edge_problem.N_ATOMS

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

    def split(self, rows: Tensor, width: int, extra: int = 0) -> list[Tensor]:
        """Return the m-blocks of rows."""
        sizes = [(1 if m == 0 else 2) * size * width for m, size in enumerate(self.shape.sizes)]
        sizes[0] += extra
        return list(rows.split(sizes, dim=1))


def make(graph: str, dtype: torch.dtype) -> FusedProblem:
    """Return a problem on the graph "copper" or "random"."""
    device = torch.device("cuda")
    return FusedProblem(*(reference_graph(device) if graph == "copper" else random_graph(device)), dtype)


Timed = Callable[[], Iterable[Tensor]]


def compare(
    given: FusedProblem, op: str, name: str, ours: Timed, plain: Callable[[torch.dtype], Iterable[Tensor]]
) -> dict[str, Any]:
    """Return one row: the kernel beside plain PyTorch in float32, each with its error against float64."""
    found = measure.compare(
        name,
        lambda: list(ours()),
        lambda: list(plain(torch.float32)),
        bound=BOUNDS[given.dtype],
        exact=list(plain(torch.float64)),
    )
    return {"op": op, "rows": str(given.dtype).removeprefix("torch."), **found}


def main(rows: Callable[[str, torch.dtype], list[dict[str, Any]]], description: str | None) -> None:
    """Print the rows of an op for both types on the graph that the command line names."""
    graph = edge_problem.chosen_graph(description)
    for dtype in BOUNDS:
        for row in rows(graph, dtype):
            print(json.dumps(row))
