"""Times the balance of charge and its adjoint, in place, beside plain PyTorch; rows of edges do not matter here.

python benchmarks/ops/fused/balance.py [copper | random]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from ops.fused import problem
from torch import Tensor

from edgewise.ops.fused.balance import balance, balance_adjoint
from edgewise.ops.reference import balance as reference

CHANNELS = (0, 1, 2)
"""Those of UMA-S."""


def rows(graph: str, dtype: torch.dtype, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and type; tests give a problem of their own."""
    given = given or problem.make(graph, dtype)
    x, n_atoms = given.nodes(), torch.tensor([given.n_atoms], device=given.device)
    starts = torch.tensor([0, given.n_atoms], dtype=torch.int32, device=given.device)
    charge = torch.tensor([1], device=given.device)
    systems = torch.zeros(given.n_atoms, dtype=torch.int64, device=given.device), n_atoms
    # Balanced features stay what they are, to rounding, so that one tensor serves all repeats.
    balanced, free = x.clone(), x.clone()

    def plain(to: torch.dtype) -> list[Tensor]:
        return [reference.balance(x.to(to), CHANNELS, charge, *systems)]

    def plain_adjoint(to: torch.dtype) -> list[Tensor]:
        return [reference.balance_adjoint(x.to(to), CHANNELS, *systems)]

    return [
        problem.compare(
            given, "balance", "forward", lambda: [balance(balanced, CHANNELS, (), starts, charge, charge)], plain
        ),
        problem.compare(
            given, "balance", "adjoint", lambda: [balance_adjoint(free, CHANNELS, (), starts)], plain_adjoint
        ),
    ]


if __name__ == "__main__":
    problem.main(rows, __doc__)
