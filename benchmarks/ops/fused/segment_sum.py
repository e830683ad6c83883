"""Times the sums over the edges out of each atom beside plain PyTorch.

python benchmarks/ops/fused/segment_sum.py [copper | random]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from ops.fused import problem
from torch import Tensor

from edgewise.ops.fused.row_format import RowFormat
from edgewise.ops.fused.segment_sum import segment_sum
from edgewise.ops.reference import edge_steps


def rows(graph: str, row_format: RowFormat, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and format; tests give a problem of their own."""
    given = given or problem.make(graph, row_format)
    n, c = given.n_coefficients, given.channels
    shares = given.rows(n).unflatten(1, (n, c))
    parts = given.random(problem.N_SLICES, given.n_atoms, n, c, seed=2, dtype=torch.float32)

    def ours() -> list[Tensor]:
        return [segment_sum(shares, parts, given.edges, torch.empty_like(parts[0]))]

    def plain(to: torch.dtype) -> list[Tensor]:
        in_order = shares[given.order.by_source].to(to)
        return [parts.to(to).sum(0) + edge_steps.segment_sum(in_order, given.order.source_starts)]

    return [problem.compare(given, "segment_sum", "rows and slices", ours, plain)]


if __name__ == "__main__":
    problem.main(rows, __doc__)
