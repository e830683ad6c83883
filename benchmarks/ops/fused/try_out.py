"""Checks every benchmark of this folder on a few edges, without timing anything: what can be done without a GPU.

TRITON_INTERPRET=1 python benchmarks/ops/fused/try_out.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from ops import measure
from ops.fused import problem
from ops.fused.all_ops import OPS
from structures import random_graph

N_EDGES, N_ATOMS, CHANNELS = 18, 5, 16


def main() -> None:
    """Print the errors of each."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    measure.milliseconds = lambda function, repeats=0: 0.0 * len(list(function())) * repeats
    measure.peak_mebibytes = lambda function: 0.0 * len(list(function()))
    edge_index, edge_vec = random_graph(device, N_EDGES, N_ATOMS)
    for op in OPS:
        for row_format in problem.BOUNDS:
            given = problem.FusedProblem(edge_index, edge_vec, row_format, channels=CHANNELS, n_atoms=N_ATOMS)
            for row in op.rows("random", row_format, given):
                print(
                    f"{row['op']}, {row['rows']}, {row['row']}: error {row['error']:.1e}, plain {row['error_replaced']:.1e}"
                )


if __name__ == "__main__":
    main()
