"""Times the energy head with its gradient beside plain PyTorch; rows of edges do not matter here.

python benchmarks/ops/fused/energy_head.py [copper | random]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from ops.fused import problem
from torch import Tensor

from edgewise.ops.fused.energy_head import ATOMS, energy_head, head_tables
from edgewise.ops.reference.feed_forward import scalar_network, scalar_network_adjoint


def rows(graph: str, dtype: torch.dtype, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and type; tests give a problem of their own."""
    given = given or problem.make(graph, dtype)
    n_atoms, c, float32 = given.n_atoms, given.channels, torch.float32
    x = given.nodes()
    layers = [
        given.random(1, n_out, c, seed=seed, dtype=float32) * c**-0.5 for seed, n_out in enumerate((c, c, 1), start=4)
    ]
    biases = [given.random(layer.shape[1], seed=seed, dtype=float32) for seed, layer in enumerate(layers, start=7)]
    tables = head_tables(layers, biases)
    tiles = [(start, min(start + ATOMS, n_atoms), 0) for start in range(0, n_atoms, ATOMS)]
    planned = torch.tensor(tiles, dtype=torch.int32, device=given.device)
    energy, gradient = given.empty(n_atoms, dtype=float32), given.empty(n_atoms, c, dtype=float32)

    def ours() -> list[Tensor]:
        energy_head(x, planned, tables, energy, gradient)
        return [energy, gradient]

    def plain(to: torch.dtype) -> list[Tensor]:
        scalars, own = x[:, 0].to(to), ([layer[0].to(to) for layer in layers], [bias.to(to) for bias in biases])
        return [
            scalar_network(scalars, *own)[:, 0],
            scalar_network_adjoint(scalars, *own, scalars.new_ones(n_atoms, 1)),
        ]

    return [problem.compare(given, "energy_head", "energies and gradients", ours, plain)]


if __name__ == "__main__":
    problem.main(rows, __doc__)
