"""Where everything stands in the rows of edges, against the orders of `so3` and the slabs of the reference."""

from __future__ import annotations

import pytest

from edgewise.ops.fused import layout
from edgewise.so3 import block_sizes, generators, m_major_order
from tests.ops.fused.problems import SHAPES


@pytest.mark.parametrize(("lmax", "mmax"), [*SHAPES, (6, 4)])
def test_places(lmax: int, mmax: int) -> None:
    order = m_major_order(lmax, mmax)
    assert layout.n_edge_coefficients(lmax, mmax) == len(order)
    sizes, taken = block_sizes(lmax, mmax), []
    for degree in range(lmax + 1):
        for m in range(-min(degree, mmax), min(degree, mmax) + 1):
            assert order[layout.coefficient(degree, m, lmax)] == degree * degree + degree + m
            slab = sum(sizes[: abs(m)]) + degree - abs(m)
            assert layout.radial_factor(degree, m, lmax) == slab
        if degree:
            top = layout.highest(degree, mmax)
            for m in range(-top, top + 1):
                first = layout.rotation(degree, m, mmax)
                taken += range(first, first + 2 * degree + 1)
    # The envelope stands in front of the rotations and its slope behind them; nothing lies over anything else.
    assert taken == list(range(1, layout.envelope_slope(lmax, mmax)))
    assert layout.geometry_width(lmax, mmax) % 4 == 0
    assert 0 <= layout.geometry_width(lmax, mmax) - layout.envelope_slope(lmax, mmax) - 1 < 4


@pytest.mark.parametrize("lmax", [1, 2, 4, 6])
def test_couplings_are_those_of_the_generators(lmax: int) -> None:
    order = list(m_major_order(lmax, lmax))
    about_x, about_z = generators(lmax)
    for degree in range(1, lmax + 1):
        row = {m: order.index(degree * degree + degree + m) for m in range(-degree, degree + 1)}
        for m in range(degree):
            c = layout.coupling(degree, m)
            assert float(about_x[row[m + 1], row[m]]) == pytest.approx(c)
            assert float(about_z[row[m], row[-m - 1]]) == pytest.approx(c)
            if m:
                assert float(about_x[row[-m - 1], row[-m]]) == pytest.approx(c)
                assert float(about_z[row[m + 1], row[-m]]) == pytest.approx(c)


@pytest.mark.parametrize(("degree", "rows"), [(0, 1), (1, 4), (2, 8), (3, 8), (4, 16)])
def test_tiles_hold_a_degree(degree: int, rows: int) -> None:
    assert layout.tile_rows(degree) == rows >= 2 * degree + 1
