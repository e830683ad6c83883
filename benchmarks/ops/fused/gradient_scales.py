"""Times the powers of two of gradients beside plain PyTorch; rows of edges do not matter here.

python benchmarks/ops/fused/gradient_scales.py [copper | random]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from ops.fused import problem
from torch import Tensor

from edgewise.ops.fused.gradient_scales import LARGEST_EXPONENT, gradient_scales
from edgewise.ops.fused.row_format import RowFormat


def rows(graph: str, row_format: RowFormat, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and format; tests give a problem of their own."""
    given = given or problem.make(graph, row_format)
    gradient = given.nodes()

    def plain(to: torch.dtype) -> list[Tensor]:
        _, exponent = torch.frexp(gradient.to(to).abs().amax((1, 2)))
        return [torch.ldexp(torch.ones_like(gradient[:, 0, 0], dtype=to), LARGEST_EXPONENT - exponent)]

    return [problem.compare(given, "gradient_scales", "forward", lambda: [gradient_scales(gradient)], plain)]


if __name__ == "__main__":
    problem.main(rows, __doc__)
