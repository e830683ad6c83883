"""The operations' inputs at the size of UMA-S, on the reference graph or on a random one."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from machine import require_gpu
from sizes import CHANNELS
from structures import random_graph, reference_graph
from torch import Tensor

from edgewise.so3 import block_sizes, edge_rotations, packed_edge_rotations

LMAX = 2
"""Also the largest order: lmax = mmax."""

N_ATOMS = 1000
N_COEFFICIENTS = (LMAX + 1) ** 2
BLOCK_SIZES = tuple(size * (1 if m == 0 else 2) for m, size in enumerate(block_sizes(LMAX, LMAX)))
"""Coefficients of each m-block: those of +m and of -m."""

N_RADIAL = 2 * CHANNELS * sum(block_sizes(LMAX, LMAX))
"""Radial factors of an edge: +m and -m share one."""


@dataclass(frozen=True)
class EdgeProblem:
    """Inputs of the operations in one type, lmax = mmax = 2."""

    edge_index: Tensor
    nodes: Tensor
    radial: Tensor
    dense: Tensor
    packed: Tensor
    n_atoms: int = N_ATOMS

    def blocks(self, channels: int = CHANNELS, extra: int = 0, seed: int = 1) -> list[Tensor]:
        """Return random m-blocks with `extra` more coefficients in front of block 0."""
        generator = torch.Generator("cuda").manual_seed(seed)
        n_edges = self.edge_index.shape[1]
        sizes = [(size + (extra if m == 0 else 0)) * channels for m, size in enumerate(BLOCK_SIZES)]
        return [torch.randn(n_edges, size, generator=generator, device="cuda").to(self.nodes.dtype) for size in sizes]

    def to(self, dtype: torch.dtype) -> EdgeProblem:
        """Return the same inputs in another type."""
        nodes, radial, dense, packed = (item.to(dtype) for item in (self.nodes, self.radial, self.dense, self.packed))
        return EdgeProblem(self.edge_index, nodes, radial, dense, packed, self.n_atoms)


def chosen_graph(description: str | None) -> str:
    """Return the graph that the command line names, after making sure of a GPU; for the benchmarks of operations."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", nargs="?", choices=("copper", "random"), default="copper")
    chosen = parser.parse_args().graph
    require_gpu(parser)
    return chosen


def make(graph: str = "copper") -> EdgeProblem:
    """Return float32 inputs on the graph "copper" or "random"."""
    device = torch.device("cuda")
    edge_index, vectors = reference_graph(device) if graph == "copper" else random_graph(device)
    directions = torch.nn.functional.normalize(vectors, dim=1)
    generator = torch.Generator("cuda").manual_seed(0)
    nodes = torch.randn(N_ATOMS, N_COEFFICIENTS, CHANNELS, generator=generator, device=device)
    radial = torch.randn(edge_index.shape[1], N_RADIAL, generator=generator, device=device)
    dense = edge_rotations(directions, LMAX, LMAX).float()
    return EdgeProblem(edge_index, nodes, radial, dense, packed_edge_rotations(directions, LMAX, LMAX).float())
