"""Times the radial networks up to their last layer in CUDA C++ beside the kernel of Triton.

python benchmarks/ops/fused/cuda/radial_hidden.py [copper | random]
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent.parent))

import torch
from ops import measure
from ops.fused import problem
from ops.fused.radial_hidden import Networks

from edgewise.ops.fused.row_format import RowFormat


def rows(graph: str, row_format: RowFormat, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and format; tests give a problem of their own."""
    networks = Networks(given or problem.make(graph, row_format))
    found = measure.compare(
        "values and slopes",
        partial(networks.kernel, in_cuda=True),
        partial(networks.kernel, in_cuda=False),
        bound=problem.BOUNDS[row_format],
        exact=networks.plain(torch.float64),
        read=networks.read,
        read_replaced=networks.read,
    )
    return [{"op": "radial_hidden in CUDA C++", "rows": row_format.name, **found}]


if __name__ == "__main__":
    problem.main(rows, __doc__)
