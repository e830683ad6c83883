"""Radial networks: values, and slopes against autograd."""

from __future__ import annotations

import pytest
import torch

from edgewise.ops.reference.radial_network import HiddenWeights, hidden, hidden_with_slope
from tests import tolerances


@pytest.mark.parametrize("n_edges", [0, 1, 17])
def test_values_and_slopes(n_edges: int) -> None:
    width = 6
    weights = HiddenWeights(
        *(
            torch.randn(*shape, dtype=torch.float64)
            for shape in ((width,), (width,), (width, width), (width,), (width,), (width,))
        )
    )
    distance = torch.rand(n_edges, dtype=torch.float64)
    direction, offset = torch.randn(2, n_edges, width, dtype=torch.float64)

    def of_distance(d: torch.Tensor) -> torch.Tensor:
        return hidden(torch.sin(3 * d[:, None] * direction) + offset, weights)

    first = torch.sin(3 * distance[:, None] * direction) + offset
    slope = 3 * direction * torch.cos(3 * distance[:, None] * direction)
    value, found = hidden_with_slope(first, slope, weights)
    expected_value, expected = torch.func.jvp(of_distance, (distance,), (torch.ones_like(distance),))
    torch.testing.assert_close(value, expected_value, **tolerances.WRITTEN_OUT)
    torch.testing.assert_close(found, expected, **tolerances.WRITTEN_OUT)
