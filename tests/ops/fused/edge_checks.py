"""Checks of the edge kernels against the reference in float64, for their forms in Triton and in CUDA C++ alike."""

from __future__ import annotations

import torch

from edgewise.ops.fused.gather_rotate import gather_rotate, gather_rotate_adjoint
from edgewise.ops.fused.rotate_sum import rotate_sum, rotate_sum_adjoint
from edgewise.ops.reference import edge_steps
from tests import tolerances
from tests.ops.fused.problems import Problem, joined, poisoned


def check_gather_rotate(lmax: int, mmax: int, n_edges: int, channels: int, *, in_cuda: bool) -> None:
    """Compare the forward kernel with the reference, in rows that are NaN before."""
    given = Problem(lmax, mmax, n_edges, channels)
    nodes, radial = given.nodes(), given.rows(2 * channels * sum(given.shape.sizes))
    out = poisoned(given.capacity, given.n_edge_coefficients * 2 * channels)
    gather_rotate(nodes.float(), given.edges, radial.float(), given.shape, out, in_cuda=in_cuda)
    expected = edge_steps.gather_rotate(nodes, given.order, given.geometry, radial[:n_edges], given.shape)
    torch.testing.assert_close(out[:n_edges].double(), joined(expected), **tolerances.FUSED)
    assert out[n_edges:].isnan().all(), "rows that hold no edge are not written"


def check_gather_rotate_adjoint(
    lmax: int, mmax: int, n_edges: int, channels: int, n_slices: int, *, in_cuda: bool, n_atoms: int = 5
) -> None:
    """Compare the adjoint's kernels and the sum behind them with the reference."""
    given = Problem(lmax, mmax, n_edges, channels, n_atoms)
    nodes, width = given.nodes(), 2 * channels * sum(given.shape.sizes)
    radial, slope = given.rows(width), given.rows(width)
    gradient = given.rows(given.n_edge_coefficients * 2 * channels)
    parts = poisoned(n_slices, given.n_atoms, given.n_coefficients, channels)
    tangents = given.tangents(2 * (lmax + 1))
    beyond = tangents[:, n_edges:].clone()
    before = tangents.double().sum(0)[:n_edges]
    scaled = gradient.clone()
    scaled[:n_edges] *= given.scale_of_edge
    inputs = scaled.float(), nodes.float(), given.edges, radial.float(), slope.float(), given.shape
    found = gather_rotate_adjoint(*inputs, parts, tangents, in_cuda=in_cuda)
    expected, expected_tangents = edge_steps.gather_rotate_adjoint(
        given.split(gradient, 2 * channels),
        nodes,
        given.order,
        given.geometry,
        radial[:n_edges],
        slope[:n_edges],
        given.shape,
    )
    torch.testing.assert_close(found.double(), expected, **tolerances.FUSED_SUMS)
    found_tangents = tangents.double().sum(0)[:n_edges] - before
    torch.testing.assert_close(found_tangents, expected_tangents, **tolerances.FUSED_SUMS)
    assert torch.equal(tangents[:, n_edges:], beyond), "edges that there are not have nothing added"


def check_rotate_sum(
    lmax: int, mmax: int, n_edges: int, channels: int, n_slices: int, *, embedding: bool, in_cuda: bool
) -> None:
    """Compare the forward kernel with the reference."""
    given = Problem(lmax, mmax, n_edges, channels)
    features = given.rows((lmax + 1 if embedding else given.n_edge_coefficients) * channels)
    bias = given.random((lmax + 1) * channels)
    nodes = poisoned(n_slices, given.n_atoms, given.n_coefficients, channels)
    inputs = features.float(), bias.float(), given.edges, given.shape, nodes
    rotate_sum(*inputs, embedding=embedding, in_cuda=in_cuda)
    features[:, : (lmax + 1) * channels] += bias
    expected = edge_steps.rotate_sum([features[:n_edges]], given.order, given.geometry, channels)
    torch.testing.assert_close(nodes.sum(0).double(), expected, **tolerances.FUSED_SUMS)


def check_rotate_sum_adjoint(
    lmax: int, mmax: int, n_edges: int, channels: int, *, embedding: bool, in_cuda: bool
) -> None:
    """Compare the adjoint's kernel with the reference."""
    given = Problem(lmax, mmax, n_edges, channels)
    width = (lmax + 1 if embedding else given.n_edge_coefficients) * channels
    features, slope, gradient = given.rows(width), given.rows(width), given.nodes()
    bias = given.random((lmax + 1) * channels)
    out, tangents = poisoned(given.capacity, width), given.tangents(lmax + 1)
    before, beyond = tangents.double().sum(0)[:n_edges], tangents[:, n_edges:].clone()
    rotate_sum_adjoint(
        gradient.float(),
        features.float(),
        bias.float(),
        given.edges,
        given.shape,
        out,
        tangents,
        features_slope=slope.float() if embedding else None,
        in_cuda=in_cuda,
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
    assert torch.equal(tangents[:, n_edges:], beyond), "edges that there are not have nothing added"
