"""Times the feed-forward network of nodes and its adjoint beside plain PyTorch; rows of edges do not matter here.

python benchmarks/ops/fused/feed_forward.py [copper | random]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from ops.fused import problem
from torch import Tensor

from edgewise.ops.fused.feed_forward import feed_forward, feed_forward_adjoint, spectral_tables
from edgewise.ops.reference import feed_forward as reference
from edgewise.so3 import degree_index


def rows(graph: str, dtype: torch.dtype, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and type; tests give a problem of their own."""
    given = given or problem.make(graph, dtype)
    n_atoms, n, c, lmax = given.n_atoms, given.n_coefficients, given.channels, problem.LMAX
    h, base, gradient = (given.nodes(seed) for seed in (1, 2, 3))
    degrees = degree_index(lmax).to(given.device)

    def weights(to: torch.dtype) -> reference.SpectralWeights:
        def random(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
            return (given.random(*shape, seed=seed, dtype=torch.float32) * scale).to(to)

        return reference.SpectralWeights(
            gate=random(lmax * c, c, seed=4, scale=c**-0.5),
            gate_bias=random(lmax * c, seed=5),
            first=random(lmax + 1, c, c, seed=6, scale=c**-0.5)[degrees],
            first_bias=random(c, seed=7),
            second=random(lmax + 1, c, c, seed=8, scale=c**-0.5)[degrees],
            second_bias=random(c, seed=9),
            degrees=degrees[1:] - 1,
        )

    tables = spectral_tables(weights(torch.float32))
    kept, before_gate, products = (given.empty(n_atoms, size, c, dtype=torch.float32) for size in (n, problem.LMAX, n))
    out, to_h = torch.empty_like(h), torch.empty_like(h)

    def plain(to: torch.dtype) -> list[Tensor]:
        return [base.to(to) + reference.feed_forward(h.to(to), weights(to))]

    def plain_adjoint(to: torch.dtype) -> list[Tensor]:
        return [reference.feed_forward_adjoint(h.to(to), weights(to), gradient.to(to))]

    return [
        problem.compare(
            given, "feed_forward", "forward", lambda: [feed_forward(h, tables, base, kept, before_gate, out)], plain
        ),
        problem.compare(
            given,
            "feed_forward",
            "adjoint",
            lambda: [feed_forward_adjoint(gradient, tables, kept, before_gate, products, to_h)],
            plain_adjoint,
        ),
    ]


if __name__ == "__main__":
    problem.main(rows, __doc__)
