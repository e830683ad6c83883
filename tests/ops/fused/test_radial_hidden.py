"""Radial networks in one kernel: values and slopes against the reference in float64."""

from __future__ import annotations

import pytest

from edgewise.ops.fused.radial_hidden import EDGES
from edgewise.ops.fused.row_format import FLOAT16, SPLIT, TF32, RowFormat
from tests.ops.fused.radial_checks import check_layout, check_some_of_the_networks, check_values_and_slopes

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("n_edges", [0, 1, 17, EDGES + 1])
@pytest.mark.parametrize(("n_hidden", "n_basis"), [(8, 8), (20, 5), (32, 32)])
def test_values_and_slopes(n_edges: int, n_hidden: int, n_basis: int) -> None:
    check_values_and_slopes(n_edges, n_hidden, n_basis, in_cuda=False)


@pytest.mark.parametrize("row_format", [FLOAT16, SPLIT, TF32], ids=lambda item: item.name)
def test_values_are_laid_out_for_last_layers(row_format: RowFormat) -> None:
    check_layout(row_format, 20, 5, in_cuda=False)


def test_some_of_the_networks() -> None:
    check_some_of_the_networks(20, 5, in_cuda=False)
