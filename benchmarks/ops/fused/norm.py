"""Times the norm of nodes of mode fused, and its adjoint, beside plain PyTorch; rows of edges do not matter here.

python benchmarks/ops/fused/norm.py [copper | random]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from ops.fused import problem
from torch import Tensor

from edgewise.ops.fused.norm import norm, norm_adjoint, norm_tables
from edgewise.ops.fused.row_format import RowFormat
from edgewise.ops.reference import norm as reference


def rows(graph: str, row_format: RowFormat, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and format; tests give a problem of their own."""
    given = given or problem.make(graph, row_format)
    n, c = given.n_coefficients, given.channels
    x, gradient, base = (given.nodes(seed) for seed in (1, 2, 3))
    added = given.random(given.n_atoms, c, seed=4, dtype=torch.float32)
    weight, bias = given.random(n, c, seed=5, dtype=torch.float32), given.random(c, seed=6, dtype=torch.float32)
    bounds, balance = reference.groups("rms_norm_sh", problem.LMAX)

    def weights(to: torch.dtype) -> reference.NormWeights:
        return reference.NormWeights(bounds, balance.to(given.device), weight.to(to), bias.to(to))

    tables = norm_tables(weights(torch.float32))

    def plain(to: torch.dtype) -> list[Tensor]:
        y = reference.norm(x.to(to), weights(to))
        y[:, 0] += added.to(to)
        return [y]

    def plain_adjoint(to: torch.dtype) -> list[Tensor]:
        return [base.to(to) + reference.norm_adjoint(x.to(to), weights(to), gradient.to(to))]

    return [
        problem.compare(given, "norm", "forward", lambda: [norm(x, tables, added)], plain),
        problem.compare(given, "norm", "adjoint", lambda: [norm_adjoint(x, tables, gradient, base)], plain_adjoint),
    ]


if __name__ == "__main__":
    problem.main(rows, __doc__)
