"""Times the order of edges by source beside plain PyTorch; rows of edges do not matter here.

python benchmarks/ops/fused/edge_order.py [copper | random]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from ops.fused import problem
from torch import Tensor

from edgewise.ops.fused.edge_order import edge_order
from edgewise.ops.reference import edge_steps


def rows(graph: str, dtype: torch.dtype, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and type; tests give a problem of their own."""
    given = given or problem.make(graph, dtype)
    ends = given.edge_index.to(torch.int32)
    n_live = torch.tensor([given.n_edges], dtype=torch.int32, device=given.device)

    def plain(to: torch.dtype) -> list[Tensor]:
        order = edge_steps.edge_order(given.edge_index, given.n_atoms)
        return [order.by_source.to(to), order.source_starts.to(to)]

    def ours() -> list[Tensor]:
        return list(edge_order(ends, n_live, given.n_atoms))

    return [problem.compare(given, "edge_order", "by source", ours, plain)]


if __name__ == "__main__":
    problem.main(rows, __doc__)
