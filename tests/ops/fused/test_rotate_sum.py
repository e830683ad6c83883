"""Rotating back and summing in mode fused, and the adjoint: any shape, against the reference in float64."""

from __future__ import annotations

import pytest
import torch

from edgewise.ops.fused.rotate_sum import rotate_sum, rotate_sum_adjoint
from edgewise.ops.reference import edge_steps
from tests import tolerances
from tests.ops.fused.problems import SHAPES, SIZES, Problem, joined, poisoned

pytestmark = pytest.mark.kernels

EMBEDDING = pytest.mark.parametrize("embedding", [False, True], ids=["messages", "embedding"])


@pytest.mark.parametrize(("lmax", "mmax"), SHAPES)
@pytest.mark.parametrize(("n_edges", "channels"), SIZES)
@pytest.mark.parametrize("n_slices", [1, 3])
@EMBEDDING
def test_forward(lmax: int, mmax: int, n_edges: int, channels: int, n_slices: int, embedding: bool) -> None:
    given = Problem(lmax, mmax, n_edges, channels)
    features = given.rows((lmax + 1 if embedding else given.n_edge_coefficients) * channels)
    bias = given.random((lmax + 1) * channels)
    nodes = poisoned(n_slices, given.n_atoms, given.n_coefficients, channels)
    rotate_sum(features.float(), bias.float(), given.edges, given.shape, nodes, embedding=embedding)
    features[:, : (lmax + 1) * channels] += bias
    expected = edge_steps.rotate_sum([features[:n_edges]], given.order, given.geometry, channels)
    torch.testing.assert_close(nodes.sum(0).double(), expected, **tolerances.FUSED_SUMS)


@pytest.mark.parametrize(("lmax", "mmax"), SHAPES)
@pytest.mark.parametrize(("n_edges", "channels"), SIZES)
@EMBEDDING
def test_adjoint(lmax: int, mmax: int, n_edges: int, channels: int, embedding: bool) -> None:
    given = Problem(lmax, mmax, n_edges, channels)
    width = (lmax + 1 if embedding else given.n_edge_coefficients) * channels
    features, slope, gradient = given.rows(width), given.rows(width), given.nodes()
    bias = given.random((lmax + 1) * channels)
    out, tangents = poisoned(given.capacity, width), given.tangents(lmax + 1)
    before = tangents.double().sum(0)[:n_edges]
    rotate_sum_adjoint(
        gradient.float(),
        features.float(),
        bias.float(),
        given.edges,
        given.shape,
        out,
        tangents,
        features_slope=slope.float() if embedding else None,
    )
    features[:, : (lmax + 1) * channels] += bias
    blocks = [features[:n_edges]] if embedding else given.split(features, channels)
    expected, expected_tangents = edge_steps.rotate_sum_adjoint(
        gradient, blocks, given.order, given.geometry, given.shape
    )
    if embedding:
        expected_tangents[:, 2] += (expected[0] * slope[:n_edges]).sum(1)
        assert out.isnan().all(), "the embedding's features have no gradient to write"
    else:
        found = out[:n_edges].double() / given.scale_of_edge
        torch.testing.assert_close(found, joined(expected), **tolerances.FUSED)
        assert out[n_edges:].isnan().all()
    found_tangents = tangents.double().sum(0)[:n_edges] - before
    torch.testing.assert_close(found_tangents, expected_tangents, **tolerances.FUSED_SUMS)
