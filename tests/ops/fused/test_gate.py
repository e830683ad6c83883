"""The gate of mode fused, and its adjoint: any shape, against the reference in float64."""

from __future__ import annotations

import pytest
import torch

from edgewise.ops import reference
from edgewise.ops.fused.gate import EDGES, gate, gate_adjoint
from edgewise.ops.reference import edge_steps
from tests import tolerances
from tests.ops.fused.problems import SHAPES, SIZES, Problem, joined, poisoned

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize(("lmax", "mmax"), SHAPES)
@pytest.mark.parametrize(("n_edges", "channels"), [*SIZES, (EDGES + 1, 4), (EDGES - 3, 4)])
def test_forward_and_adjoint(lmax: int, mmax: int, n_edges: int, channels: int) -> None:
    given = Problem(lmax, mmax, n_edges, channels)
    width, extra = given.n_edge_coefficients * channels, lmax * channels
    before, gradient, bias = given.rows(width + extra), given.rows(width), given.random((2 * lmax + 1) * channels)
    out = gate(before.float(), bias.float(), given.edges, given.shape, poisoned(given.capacity, width))
    blocks = given.split(before, channels, extra)
    blocks[0] = blocks[0] + bias
    expected = joined(reference.gate(blocks, lmax, channels))
    torch.testing.assert_close(out[:n_edges].double(), expected, **tolerances.FUSED)
    to_before = poisoned(given.capacity, width + extra)
    gate_adjoint(gradient.float(), before.float(), bias.float(), given.edges, given.shape, to_before)
    expected = joined(edge_steps.gate_adjoint(given.split(gradient, channels), blocks, given.shape))
    torch.testing.assert_close(to_before[:n_edges].double(), expected, **tolerances.FUSED)
    assert out[n_edges:].isnan().all()
    assert to_before[n_edges:].isnan().all()
