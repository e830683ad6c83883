"""Times the geometry of edges, and the sums of their gradients at atoms and systems, beside plain PyTorch.

python benchmarks/ops/fused/edge_geometry.py [copper | random]

Rows of edges do not matter here: everything is float32 outside and float64 inside.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from ops.fused import problem
from sizes import CUTOFF
from torch import Tensor

from edgewise.ops.fused.edge_geometry import edge_geometry, edge_gradient, forces_and_virial
from edgewise.ops.fused.layout import geometry_width
from edgewise.ops.fused.shapes import edge_tables
from edgewise.ops.reference import edge_steps


def rows(graph: str, dtype: torch.dtype, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and type; tests give a problem of their own."""
    given = given or problem.make(graph, dtype)
    n, n_atoms = given.n_edges, given.n_atoms
    width = geometry_width(given.shape.lmax, given.shape.mmax)
    n_live = torch.tensor([n], dtype=torch.int32, device=given.device)
    table, distance = (given.empty(n, *shape, dtype=torch.float32) for shape in ((width,), ()))
    of_ends, of_sums = (given.random(tasks, n, 3, seed=tasks, dtype=torch.float32) for tasks in (6, 3))
    starts = torch.tensor([0, n_atoms], dtype=torch.int32, device=given.device)

    def ours() -> list[Tensor]:
        edge_geometry(given.edge_vec, n_live, CUTOFF, given.shape, table, distance)
        return [table, distance]

    def plain(to: torch.dtype) -> list[Tensor]:
        geometry = given.geometry(to)
        return [edge_tables(given.order, geometry, given.shape, n).geometry, geometry.distance]

    def our_sums() -> list[Tensor]:
        gradient = edge_gradient(given.edge_vec, n_live, of_ends, of_sums, torch.empty_like(given.edge_vec))
        return list(forces_and_virial(gradient, given.edge_vec, given.edges, starts))

    def plain_sums(to: torch.dtype) -> list[Tensor]:
        tangents = of_ends.to(to).sum(0) + of_sums.to(to).sum(0)
        gradient = edge_steps.edge_gradient(given.geometry(to), tangents).double()
        forces = gradient.new_zeros(n_atoms, 3).index_add_(0, given.order.source, gradient)
        forces.index_add_(0, given.order.target, gradient, alpha=-1)
        return [forces, (gradient.T @ given.edge_vec)[None]]

    return [
        problem.compare(given, "edge_geometry", "tables", ours, plain),
        problem.compare(given, "edge_geometry", "forces and virial", our_sums, plain_sums),
    ]


if __name__ == "__main__":
    problem.main(rows, __doc__)
