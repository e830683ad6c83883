"""Sums over the edges out of each atom: in float64 by hand, atoms without edges included."""

from __future__ import annotations

import pytest

from edgewise.ops.fused.segment_sum import segment_sum
from tests import tolerances
from tests.ops.fused.problems import SIZES, Problem, poisoned

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize(("n_edges", "channels"), [*SIZES, (101, 4)])
@pytest.mark.parametrize("n_slices", [1, 2])
def test_rows_and_slices(n_edges: int, channels: int, n_slices: int) -> None:
    given = Problem(2, 2, n_edges, channels, n_atoms=7)
    rows, parts = given.filled(given.random(n_edges, 9, channels)), given.random(n_slices, 7, 9, channels)
    found = segment_sum(rows.float(), parts.float(), given.edges, poisoned(7, 9, channels))
    unscaled = rows[:n_edges] / given.scale_of_edge[:, :, None]
    expected = parts.sum(0).index_add(0, given.order.source, unscaled)
    # Sums lose what is small beside their terms.
    terms = parts.abs().sum(0).index_add(0, given.order.source, unscaled.abs())
    assert ((found.double() - expected).abs() <= tolerances.FLOAT32_SUM * terms).all()
