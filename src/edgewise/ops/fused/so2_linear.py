"""SO(2) linear maps on rows of edges: one matrix product for each order, on the columns of that order.

The products read and write columns of longer rows in place, so nothing is joined or split. Biases belong to m = 0 alone and
are added by what reads the results next: a product that adds them would have to write rows of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from edgewise.ops.fused.row_format import RowFormat
from edgewise.ops.fused.streams import at_once
from edgewise.ops.reference.edges import EdgeSegment, SO2Weights


@dataclass(frozen=True, eq=False)
class SO2Map:
    """Weights of one map for both directions. Each is itself alone, so that more can be kept of it.

    Attributes:
        blocks: One [n_out, n_in] matrix for each order, in the parts of the format.
        transposed: The same, [n_in, n_out]: products are fastest where both operands run along the sum.
        bias: [n_out of m = 0], float32 or float64.
        row_format: Of the rows that are multiplied.
    """

    blocks: tuple[Tensor, ...]
    transposed: tuple[Tensor, ...]
    bias: Tensor
    row_format: RowFormat

    @property
    def n_inputs(self) -> int:
        """Number of values of a row that the map is applied to."""
        return sum(matrix.shape[0] for matrix in self.transposed)

    @property
    def n_outputs(self) -> int:
        """Number of values of a row that the map returns."""
        return sum(matrix.shape[0] for matrix in self.blocks)


def so2_map(weights: SO2Weights, row_format: RowFormat) -> SO2Map:
    """Lay out the weights of a map for rows of a format, rounded to nearest."""
    blocks = tuple(row_format.matrix(block) for block in weights.blocks)
    return SO2Map(blocks, tuple(row_format.matrix(block.T) for block in weights.blocks), weights.bias, row_format)


def so2_linear(
    rows: Tensor, maps: Sequence[SO2Map], segments: Sequence[EdgeSegment], *, out: Tensor | None = None
) -> Tensor:
    """Apply an SO(2) map without its bias.

    Args:
        rows: [n_rows, sum of n_in] in the parts of the format, the columns of the orders one after the other.
        maps: One for each distinct mixture of experts.
        segments: Runs of rows that share weights; they cover all of them in order.
        out: Where to; None for new memory.

    Returns:
        [n_rows, sum of n_out], in the format's type of results.
    """
    return _products(rows, [item.blocks for item in maps], segments, maps[0].row_format, out)


def so2_linear_adjoint(
    gradient: Tensor, maps: Sequence[SO2Map], segments: Sequence[EdgeSegment], *, out: Tensor | None = None
) -> Tensor:
    """Return the gradient of the rows for that of the results.

    Args:
        gradient: [n_rows, sum of n_out], an operand, in the parts of the format.
        maps: As before.
        segments: As before.
        out: As before.

    Returns:
        [n_rows, sum of n_in], in the format's type of results.
    """
    return _products(gradient, [item.transposed for item in maps], segments, maps[0].row_format, out)


def _products(
    rows: Tensor,
    matrices: Sequence[tuple[Tensor, ...]],
    segments: Sequence[EdgeSegment],
    row_format: RowFormat,
    out: Tensor | None = None,
) -> Tensor:
    if out is None:
        n_out = sum(item.shape[0] for item in matrices[0])
        out = torch.empty(rows.shape[0], n_out, dtype=row_format.results, device=rows.device)
    for segment in segments:
        run = slice(None) if len(segments) == 1 else slice(segment.start, segment.stop)
        products = [
            partial(row_format.product, rows[run, columns_in], matrix, out[run, columns_out])
            for columns_in, columns_out, matrix in _columns(matrices[segment.weights])
        ]
        at_once(products, rows.device)
    return out


def _columns(matrices: Sequence[Tensor]) -> Iterator[tuple[slice, slice, Tensor]]:
    start_in = start_out = 0
    for matrix in matrices:
        n_out, n_in = matrix.shape
        yield slice(start_in, start_in + n_in), slice(start_out, start_out + n_out), matrix
        start_in, start_out = start_in + n_in, start_out + n_out
