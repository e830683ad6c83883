"""Times copies of positions between the GPU and pinned memory of the host beside those of the copy engine.

python benchmarks/ops/fused/transfer.py [copper | random]
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
from edgewise.ops.fused.transfer import transfer


def rows(graph: str, row_format: RowFormat, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and format; tests give a problem of their own."""
    given = given or problem.make(graph, row_format)
    on_device = torch.rand(3 * given.n_atoms, dtype=torch.float64, device=given.device)
    on_host = torch.empty(on_device.shape, dtype=torch.float64, pin_memory=on_device.is_cuda).copy_(on_device)
    found = []
    for name, source, out in (("to the GPU", on_host, on_device), ("to the host", on_device, on_host)):

        def ours(source: Tensor = source, out: Tensor = out) -> list[Tensor]:
            return [transfer(source, out)]

        def plain(to: torch.dtype, source: Tensor = source, out: Tensor = out) -> list[Tensor]:
            return [torch.empty_like(out, dtype=to).copy_(source.to(to), non_blocking=True)]

        found.append(problem.compare(given, "transfer", name, ours, plain))
    return found


if __name__ == "__main__":
    problem.main(rows, __doc__)
