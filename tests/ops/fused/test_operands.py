"""What kernels write in the formats of rows: the same values as in float32, order by order as `RowFormat` lays them out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from edgewise.ops.fused.gate import gate, gate_adjoint
from edgewise.ops.fused.gather_rotate import gather_rotate
from edgewise.ops.fused.rotate_sum import rotate_sum_adjoint
from edgewise.ops.fused.row_format import FLOAT16, FLOAT32, LOW_SCALE, SPLIT, TF32, RowFormat
from tests.ops.fused.problems import SHAPES, Problem, joined, poisoned

pytestmark = pytest.mark.kernels

Writer = Callable[[Tensor, RowFormat], object]

SMALLEST_LOW = 2.0**-24 / LOW_SCALE
"""What stands between two numbers of the low part where they are closest."""


def writers(given: Problem) -> dict[str, tuple[int, int, Writer]]:
    """Return what writes operands: channels of a coefficient, coefficients in front of m = 0, and the call."""
    lmax, channels, n = given.lmax, given.channels, given.n_edge_coefficients
    nodes, radial = given.nodes().float(), given.rows(2 * channels * sum(given.shape.sizes)).float()
    before, gradient = given.rows((n + lmax) * channels).float(), given.rows(n * channels).float()
    bias, of_features = (given.random((size + lmax + 1) * channels).float() for size in (lmax, 0))
    edges, shape = given.edges, given.shape

    def to_features(out: Tensor, row_format: RowFormat) -> None:
        tangents = given.tangents(lmax + 1)
        rotate_sum_adjoint(nodes, gradient, of_features, edges, shape, out, tangents, row_format=row_format)

    return {
        "gather_rotate": (
            2 * channels,
            0,
            lambda out, row_format: gather_rotate(nodes, edges, radial, shape, out, row_format=row_format),
        ),
        "gate": (channels, 0, lambda out, row_format: gate(before, bias, edges, shape, out, row_format=row_format)),
        "gate adjoint": (
            channels,
            lmax,
            lambda out, row_format: gate_adjoint(gradient, before, bias, edges, shape, out, row_format=row_format),
        ),
        "rotate_sum adjoint": (channels, 0, to_features),
    }


def in_one_part(block: Tensor) -> Tensor:
    """Return the values of operands [high | low] of one order."""
    high, low = block.double().chunk(2, dim=1)
    return high + low / LOW_SCALE


@pytest.mark.parametrize(("lmax", "mmax"), SHAPES)
@pytest.mark.parametrize(("n_edges", "channels"), [(0, 4), (1, 4), (9, 6)])
@pytest.mark.parametrize("row_format", [FLOAT16, SPLIT, TF32], ids=lambda item: item.name)
def test_values_are_those_of_float32(lmax: int, mmax: int, n_edges: int, channels: int, row_format: RowFormat) -> None:
    given = Problem(lmax, mmax, n_edges, channels)
    for name, (width, extra, write) in writers(given).items():
        columns = (given.n_edge_coefficients + extra) * width
        wide = poisoned(given.capacity, columns)
        write(wide, FLOAT32)
        out = poisoned(given.capacity, row_format.parts * columns, dtype=row_format.operands)
        write(out, row_format)
        if row_format is SPLIT:
            # A compiler may round the product in front once more or less, after which both parts may be others.
            found = joined([in_one_part(block) for block in given.split(out, 2 * width, 2 * extra * width)])
            error = (found[:n_edges] - wide[:n_edges].double()).abs()
            assert (error <= 2.0**-21 * wide[:n_edges].abs() + SMALLEST_LOW).all(), name
        else:
            expected = joined([row_format.operand(block) for block in given.split(wide, width, extra * width)])
            assert torch.equal(out[:n_edges], expected[:n_edges]), name
        assert out[n_edges:].isnan().all(), "rows that hold no edge are not written"


@pytest.mark.parametrize("row_format", [SPLIT, TF32], ids=lambda item: item.name)
def test_rows_that_do_not_fit_are_refused(row_format: RowFormat) -> None:
    given = Problem(2, 1, 3, 4)
    for width, extra, write in writers(given).values():
        columns = row_format.parts * (given.n_edge_coefficients + extra) * width
        with pytest.raises(ValueError, match="out has shape"):
            write(poisoned(given.capacity, columns + 4, dtype=row_format.operands), row_format)
        other = torch.float32 if row_format is SPLIT else torch.float16
        with pytest.raises(ValueError, match="operands are"):
            write(poisoned(given.capacity, columns, dtype=other), row_format)


def test_no_number_stays_none_in_tf32() -> None:
    """GPUs write NaN with all bits set; rounding by adding to them would make a zero of it."""
    given = Problem(1, 1, 1, 4)
    before = given.rows(given.n_edge_coefficients * 4 + 4).float()
    before[:] = torch.tensor(-1, dtype=torch.int32).view(torch.float32)
    bias = given.random(3 * 4).float()
    out = gate(
        before, bias, given.edges, given.shape, torch.zeros(given.capacity, 16, device=before.device), row_format=TF32
    )
    assert out[0].isnan().all()
