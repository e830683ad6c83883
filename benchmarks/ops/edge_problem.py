"""The operations' inputs at the size of UMA-S, on the reference graph or on a random one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from structures import random_graph, reference_graph
from torch import Tensor

from edgewise.so3 import edge_rotations, packed_edge_rotations

CHANNELS = 128
BLOCK_SIZES = (3, 4, 2)


@dataclass(frozen=True)
class EdgeProblem:
    """Inputs of the operations in one type, lmax = mmax = 2."""

    edge_index: Tensor
    nodes: Tensor
    radial: Tensor
    dense: Tensor
    packed: Tensor
    n_atoms: int = 1000

    def blocks(self, channels: int = CHANNELS, extra: int = 0, seed: int = 1) -> list[Tensor]:
        """Return random m-blocks with `extra` more coefficients in front of block 0."""
        generator = torch.Generator("cuda").manual_seed(seed)
        n_edges = self.edge_index.shape[1]
        sizes = [(size + (extra if m == 0 else 0)) * channels for m, size in enumerate(BLOCK_SIZES)]
        return [torch.randn(n_edges, size, generator=generator, device="cuda").to(self.nodes.dtype) for size in sizes]

    def to(self, dtype: torch.dtype) -> EdgeProblem:
        """Return the same inputs in another type."""
        return EdgeProblem(
            self.edge_index,
            *(item.to(dtype) for item in (self.nodes, self.radial, self.dense, self.packed)),
        )


def make(graph: str = "copper") -> EdgeProblem:
    """Return float32 inputs on the graph "copper" or "random"."""
    device = torch.device("cuda")
    edge_index, vectors = reference_graph(device) if graph == "copper" else random_graph(device)
    directions = torch.nn.functional.normalize(vectors, dim=1)
    generator = torch.Generator("cuda").manual_seed(0)
    nodes = torch.randn(1000, 9, CHANNELS, generator=generator, device=device)
    radial = torch.randn(edge_index.shape[1], 2 * CHANNELS * 6, generator=generator, device=device)
    dense = edge_rotations(directions, 2, 2).float()
    return EdgeProblem(edge_index, nodes, radial, dense, packed_edge_rotations(directions, 2, 2).float())
