"""Times the embeddings that are added to scalars in place, beside plain PyTorch; rows of edges do not matter here.

python benchmarks/ops/fused/embedding.py [copper | random]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from ops.fused import problem
from torch import Tensor
from torch.nn import functional

from edgewise.ops.fused.embedding import embedding

N_ELEMENTS = 100


def rows(graph: str, dtype: torch.dtype, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and type; tests give a problem of their own."""
    given = given or problem.make(graph, dtype)
    n, c = given.n_coefficients, given.channels
    x, at_atoms = given.nodes(), given.random(given.n_atoms, c, seed=4, dtype=torch.float32)
    table = given.random(N_ELEMENTS, c, seed=5, dtype=torch.float32)
    numbers = torch.arange(given.n_atoms, device=given.device) % N_ELEMENTS

    def ours() -> list[Tensor]:
        # The sum of messages that this adds to is made anew in a step; here it is copied, which is timed too.
        return [embedding(x.clone(), numbers, table, at_atoms)]

    def plain(to: torch.dtype) -> list[Tensor]:
        scalars = functional.embedding(numbers, table.to(to)) + at_atoms.to(to)
        return [x.to(to) + functional.pad(scalars[:, None], (0, 0, 0, n - 1))]

    return [problem.compare(given, "embedding", "forward", ours, plain)]


if __name__ == "__main__":
    problem.main(rows, __doc__)
