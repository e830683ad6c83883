"""What the kernels in CUDA C++ write in the formats of rows: the values of float32, order by order as in `RowFormat`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from edgewise.ops.fused import gather_rotate as gathering
from edgewise.ops.fused import rotate_sum as summing
from edgewise.ops.fused.row_format import FLOAT16, FLOAT32, LOW_SCALE, SPLIT, TF32, RowFormat
from edgewise.ops.reference import edge_steps
from tests.ops.fused.cuda.cases import CASES
from tests.ops.fused.problems import Problem, joined, poisoned
from tests.ops.kernel_problems import DEVICE

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("somewhere")]

gather_rotate = partial(gathering.gather_rotate, in_cuda=True)
rotate_sum_adjoint = partial(summing.rotate_sum_adjoint, in_cuda=True)

Writer = Callable[[Tensor, RowFormat], object]

FORMATS = pytest.mark.parametrize("row_format", [FLOAT16, SPLIT, TF32], ids=lambda item: item.name)

BOUNDS = {SPLIT: 1e-6, TF32: 1e-3}
"""Relative L2 error: results of float32, and their rounding to 10 bits."""


def writers(given: Problem) -> dict[str, tuple[int, Writer, Callable[[], Tensor]]]:
    """Return what writes operands: channels of a coefficient, the call, and what is exact."""
    channels, n, lmax = given.channels, given.n_edge_coefficients, given.lmax
    nodes, edges, shape = given.nodes().float(), given.edges, given.shape
    # Numbers that float16 holds too, so that the rows are the same in every format.
    radial, features = (given.rows(columns).half() for columns in (2 * channels * sum(shape.sizes), n * channels))
    bias, tangents = given.random((lmax + 1) * channels).float(), given.tangents(lmax + 1)

    def gathered() -> Tensor:
        factors = radial[: given.n_edges].double()
        return joined(edge_steps.gather_rotate(nodes.double(), given.order, given.geometry, factors, shape))

    def gather(out: Tensor, row_format: RowFormat) -> None:
        gather_rotate(nodes, edges, radial.to(row_format.results), shape, out, row_format=row_format)

    def to_features(out: Tensor, row_format: RowFormat) -> None:
        rows = features.to(row_format.results)
        rotate_sum_adjoint(nodes, rows, bias, edges, shape, out, tangents.clone(), row_format=row_format)

    def of_features() -> Tensor:
        blocks = given.split(features.double(), channels)
        found, _ = edge_steps.rotate_sum_adjoint(nodes.double(), blocks, given.order, given.geometry, shape)
        return joined(found) * given.scale_of_edge

    return {
        "gather_rotate": (2 * channels, gather, gathered),
        "rotate_sum adjoint": (channels, to_features, of_features),
    }


def written(given: Problem, width: int, write: Writer, row_format: RowFormat) -> Tensor:
    n_columns = row_format.parts * given.n_edge_coefficients * width
    out = poisoned(given.capacity, n_columns, dtype=row_format.operands)
    write(out, row_format)
    assert out[given.n_edges :].isnan().all(), "rows that hold no edge are not written"
    return out[: given.n_edges]


def values(given: Problem, operands: Tensor, width: int, row_format: RowFormat) -> Tensor:
    """Return what operands stand for, float64."""
    if row_format.parts == 1:
        return operands.double()
    pairs = (block.double().chunk(2, dim=1) for block in given.split(operands, 2 * width))
    return joined([high + low / LOW_SCALE for high, low in pairs])


@pytest.mark.parametrize(("lmax", "mmax", "n_edges", "channels"), CASES)
@FORMATS
def test_values_are_those_of_float32(lmax: int, mmax: int, n_edges: int, channels: int, row_format: RowFormat) -> None:
    given = Problem(lmax, mmax, n_edges, channels)
    for name, (width, write, exact) in writers(given).items():
        found = written(given, width, write, row_format)
        in_float32 = written(given, width, write, FLOAT32)
        expected = joined([row_format.operand(block) for block in given.split(in_float32, width)])
        named = {"rtol": 0.0, "atol": 0.0, "msg": lambda text, name=name: f"{name}: {text}"}
        if row_format is SPLIT and DEVICE == "cuda":
            # The compiler may take the rest that high leaves before the product in front of it is rounded.
            stands_for = values(given, found, width, row_format)
            named |= {"rtol": 2.0**-21, "atol": 2.0**-35}
            torch.testing.assert_close(stands_for, in_float32.double(), **named)
        else:
            torch.testing.assert_close(found, expected, **named)
        if row_format in BOUNDS:
            difference = values(given, found, width, row_format) - exact()
            assert difference.norm() <= BOUNDS[row_format] * exact().norm(), name


def test_no_number_stays_none_in_tf32() -> None:
    """GPUs write NaN with all bits set; rounding by adding to them would make a zero of it."""
    given = Problem(1, 1, 1, 4)
    radial = given.rows(2 * 4 * sum(given.shape.sizes)).float()
    radial[:] = torch.tensor(-1, dtype=torch.int32).view(torch.float32)
    out = torch.zeros(given.capacity, given.n_edge_coefficients * 8, device=DEVICE)
    gather_rotate(given.nodes().float(), given.edges, radial, given.shape, out, row_format=TF32)
    assert out[0].isnan().all()


@pytest.mark.parametrize("row_format", [SPLIT, TF32], ids=lambda item: item.name)
def test_numbers_of_every_size_are_written_as_rounded(row_format: RowFormat) -> None:
    """Ties, the smallest numbers, and those that are too large for a format: scalars are not turned, so all are known."""
    given = Problem(0, 0, 1, 16)
    ties = [1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-11, -1 - 3 * 2.0**-11, 1 + 2.0**-11 + 2.0**-23, 65519.0, 65520.0]
    sizes = [0.0, -0.0, 2.0**-14, 3 * 2.0**-24, -(2.0**-25), 2.0**-126, 3.4e38, torch.inf, -torch.inf]
    row = torch.tensor([*ties, *sizes], device=DEVICE)
    nodes, radial = row.expand(5, 1, 16).contiguous(), torch.ones(given.capacity, 32, device=DEVICE)
    out = poisoned(given.capacity, row_format.parts * 32, dtype=row_format.operands)
    gather_rotate(nodes, given.edges, radial, given.shape, out, row_format=row_format)
    expected = row_format.operand(torch.cat([row, row]))
    torch.testing.assert_close(out[0], expected, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("row_format", [SPLIT, TF32], ids=lambda item: item.name)
def test_rows_that_do_not_fit_are_refused(row_format: RowFormat) -> None:
    given = Problem(2, 1, 3, 4)
    for width, write, _ in writers(given).values():
        columns = row_format.parts * given.n_edge_coefficients * width
        with pytest.raises(ValueError, match="out has shape"):
            write(poisoned(given.capacity, columns + 4, dtype=row_format.operands), row_format)
        other = torch.float32 if row_format is SPLIT else torch.float16
        with pytest.raises(ValueError, match="operands are"):
            write(poisoned(given.capacity, columns, dtype=other), row_format)
    narrow = given.rows(2 * 4 * sum(given.shape.sizes)).half()
    out = poisoned(given.capacity, row_format.parts * given.n_edge_coefficients * 8, dtype=row_format.operands)
    with pytest.raises(ValueError, match="radial"):
        gather_rotate(given.nodes().float(), given.edges, narrow, given.shape, out, row_format=row_format)
