"""Times the feed-forward network on a grid and its adjoint beside plain PyTorch; rows of edges do not matter here.

python benchmarks/ops/fused/grid_feed_forward.py [copper | random]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from ops.fused import problem
from torch import Tensor

from edgewise.ops.fused.grid_feed_forward import grid_feed_forward, grid_feed_forward_adjoint, grid_tables
from edgewise.ops.reference import feed_forward as reference
from edgewise.so3 import grid_matrices


def rows(graph: str, dtype: torch.dtype, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and type; tests give a problem of their own."""
    given = given or problem.make(graph, dtype)
    c = given.channels
    h, base, gradient = (given.nodes(seed) for seed in (1, 2, 3))
    layers = [given.random(c, c, seed=seed, dtype=torch.float32) * c**-0.5 for seed in (4, 5, 6)]
    # What is exact is made of the very grid that the kernels read.
    grids = [item.to(given.device, torch.float32) for item in grid_matrices(problem.LMAX, problem.LMAX)]

    def weights(to: torch.dtype) -> reference.GridWeights:
        return reference.GridWeights(grids[0].to(to), grids[1].to(to), tuple(layer.to(to) for layer in layers))

    tables = grid_tables(weights(torch.float32))
    out, to_h = torch.empty_like(h), torch.empty_like(h)

    def plain(to: torch.dtype) -> list[Tensor]:
        return [base.to(to) + reference.feed_forward(h.to(to), weights(to))]

    def plain_adjoint(to: torch.dtype) -> list[Tensor]:
        return [reference.feed_forward_adjoint(h.to(to), weights(to), gradient.to(to))]

    name = "grid_feed_forward"
    return [
        problem.compare(given, name, "forward", lambda: [grid_feed_forward(h, tables, base, out)], plain),
        problem.compare(
            given, name, "adjoint", lambda: [grid_feed_forward_adjoint(h, tables, gradient, to_h)], plain_adjoint
        ),
    ]


if __name__ == "__main__":
    problem.main(rows, __doc__)
