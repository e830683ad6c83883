"""Times both steps of the neighbour list beside the list of tensor operations; neither graph nor rows matter here.

python benchmarks/ops/fused/neighbor_list.py [copper | random]

The structures are copper of 100 to 10,000 atoms. What is timed first checks that both find the same edges.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from ops.fused import problem
from sizes import CUTOFF, REPEATS
from structures import copper
from torch import Tensor

from edgewise.cell_list import find_edges
from edgewise.ops.fused.neighbor_list import SearchInputs, count_edges, fill_edges, read_summary, search_plan
from edgewise.systems import SystemBatch, batch_from_atoms

ROOM = 128

SIZES = (100, 1000, 10000)


def rows(_graph: str, _dtype: torch.dtype, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return one row for each size; with a problem of the tests, one of a few atoms."""
    repeats = [(1, 1, 2)] if given else [REPEATS[size] for size in SIZES]
    given = given or problem.make("random", torch.float32)
    return [row(given, batch_from_atoms([copper(n)], ["omat"])) for n in repeats]


def row(given: problem.FusedProblem, batch: SystemBatch) -> dict[str, Any]:
    """Return the row of one structure."""
    device = given.device
    plan = search_plan(batch.positions.numpy(), batch.cell.numpy(), batch.pbc.numpy(), batch.offsets(), CUTOFF)
    assert plan is not None
    inputs = SearchInputs(
        positions=batch.positions.to(device),
        cells=batch.cell.to(device),
        system_idx=batch.system_idx.to(device, torch.int32),
        atom_starts=torch.tensor(batch.offsets(), device=device),
        plan=torch.from_numpy(plan.table).to(device),
    )
    n_edges = read_summary(count_edges(inputs, plan.n_bins, CUTOFF, None, ROOM).summary).n_edges

    def ours() -> list[Tensor]:
        candidates = count_edges(inputs, plan.n_bins, CUTOFF, None, ROOM)
        found = fill_edges(inputs, candidates, n_edges)
        return [found.ends, found.edge_vec]

    def plain(_to: torch.dtype) -> list[Tensor]:
        found = find_edges(batch, CUTOFF, device)
        return [found.edge_index, found.edge_vec]

    return problem.compare(given, "neighbor_list", f"{batch.positions.shape[0]} atoms", ours, plain)


if __name__ == "__main__":
    problem.main(rows, __doc__)
