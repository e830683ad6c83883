"""Times SO(2) maps on rows of mode fused, and the adjoint, beside the same maps on blocks of their own.

python benchmarks/ops/fused/so2_linear.py [copper | random]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from ops.fused import problem
from torch import Tensor

from edgewise.ops import EdgeSegment, SO2Weights, reference
from edgewise.ops.fused.row_format import RowFormat
from edgewise.ops.fused.so2_linear import so2_linear, so2_linear_adjoint, so2_map
from edgewise.ops.reference import edge_steps


def rows(graph: str, row_format: RowFormat, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and format; tests give a problem of their own."""
    given = given or problem.make(graph, row_format)
    n, c, found = given.n_coefficients, given.channels, []
    segments = [EdgeSegment(0, given.n_edges, 0)]
    # The first map reads both ends and adds gate scalars; the second does neither.
    for title, width, extra in (("first map", 2 * c, problem.LMAX * c), ("second map", c, 0)):
        operands = given.rows(n * width // c)
        sizes = [block.shape[1] for block in given.split(operands, width)]
        outputs = [block.shape[1] for block in given.split(given.rows(n + extra // c), c, extra)]
        blocks = [
            given.random(n_out, n_in, seed=m) * n_in**-0.5
            for m, (n_in, n_out) in enumerate(zip(sizes, outputs, strict=True))
        ]
        no_bias = torch.zeros(outputs[0], device=given.device)
        gradient = given.rows(n + extra // c, seed=9)
        in_format = given.as_operands(operands, width), given.as_operands(gradient, c, extra)
        maps = [so2_map(SO2Weights(tuple(blocks), no_bias), given.row_format)]

        def weights(to: torch.dtype, blocks: list[Tensor] = blocks, no_bias: Tensor = no_bias) -> list[SO2Weights]:
            return [SO2Weights(tuple(block.to(to) for block in blocks), no_bias.to(to))]

        def plain(
            to: torch.dtype, operands: Tensor = operands, width: int = width, weights: Any = weights
        ) -> list[Tensor]:
            given_blocks = [block.to(to) for block in given.split(operands, width)]
            return [torch.cat(reference.so2_linear(given_blocks, weights(to), segments), dim=1)]

        def plain_adjoint(
            to: torch.dtype, gradient: Tensor = gradient, extra: int = extra, weights: Any = weights
        ) -> list[Tensor]:
            gradients = [block.to(to) for block in given.split(gradient, c, extra)]
            return [torch.cat(edge_steps.so2_linear_adjoint(gradients, weights(to), segments), dim=1)]

        def ours(operands: Tensor = in_format[0], maps: Any = maps) -> list[Tensor]:
            return [so2_linear(operands, maps, segments)]

        def adjoint(gradient: Tensor = in_format[1], maps: Any = maps) -> list[Tensor]:
            return [so2_linear_adjoint(gradient, maps, segments)]

        found.append(problem.compare(given, "so2_linear", f"{title}, forward", ours, plain))
        found.append(problem.compare(given, "so2_linear", f"{title}, adjoint", adjoint, plain_adjoint))
    return found


if __name__ == "__main__":
    problem.main(rows, __doc__)
