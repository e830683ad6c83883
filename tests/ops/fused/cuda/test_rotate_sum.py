"""Rotating back and summing in CUDA C++, and the adjoint: on a GPU or in the emulator, against the reference in float64."""

from __future__ import annotations

import pytest
import torch

from edgewise.ops.fused.cuda.rotate_sum import rotate_sum, rotate_sum_adjoint
from edgewise.ops.reference import edge_steps
from tests import tolerances
from tests.ops.fused.cuda.cases import CASES
from tests.ops.fused.problems import Problem, joined, poisoned
from tests.ops.kernel_problems import DEVICE

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("somewhere")]

EMBEDDING = pytest.mark.parametrize("embedding", [False, True], ids=["messages", "embedding"])


@pytest.mark.parametrize(("lmax", "mmax", "n_edges", "channels"), CASES)
@pytest.mark.parametrize("n_slices", [1, 3] if DEVICE == "cuda" else [2])
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


@pytest.mark.parametrize(("lmax", "mmax", "n_edges", "channels"), CASES)
@EMBEDDING
def test_adjoint(lmax: int, mmax: int, n_edges: int, channels: int, embedding: bool) -> None:
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


def test_float16_rows_are_rounded_once_and_runs_repeat_to_the_bit() -> None:
    given = Problem(
        2, 2, 17 if DEVICE == "cpu" else 78_848, 8 if DEVICE == "cpu" else 128, 5 if DEVICE == "cpu" else 1000
    )
    channels, n = given.channels, given.n_edges
    features, bias = given.rows(9 * channels).half(), given.random(3 * channels).float()
    gradient = given.nodes().float()

    def results(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        nodes, tangents = poisoned(1, given.n_atoms, 9, channels), torch.zeros(3, given.capacity, 3, device=DEVICE)
        out = poisoned(given.capacity, 9 * channels, dtype=dtype)
        rotate_sum(features.to(dtype), bias, given.edges, given.shape, nodes)
        rotate_sum_adjoint(gradient, features.to(dtype), bias, given.edges, given.shape, out, tangents)
        return out[:n], nodes, tangents

    wide, narrow = results(torch.float32), results(torch.float16)
    assert torch.equal(narrow[0], wide[0].half())
    for _ in range(1 if DEVICE == "cpu" else 4):
        assert all(torch.equal(one, two) for one, two in zip(narrow, results(torch.float16), strict=True))
    exact = features[:n].double()
    exact[:, : 3 * channels] += bias.double()
    expected = edge_steps.rotate_sum([exact], given.order, given.geometry, channels)
    torch.testing.assert_close(narrow[1][0].double(), expected, **tolerances.FUSED_SUMS)


@pytest.mark.parametrize("name", ["features", "nodes", "bias"])
def test_tensors_that_do_not_fit_are_refused(name: str) -> None:
    given = Problem(2, 2, 7, 4)
    tensors = {"features": given.rows(36).float(), "nodes": poisoned(1, 5, 9, 4), "bias": poisoned(12)}
    wrong = {**tensors, name: tensors[name][..., 1:]}
    with pytest.raises(ValueError, match=f"{name} has shape"):
        rotate_sum(wrong["features"], wrong["bias"], given.edges, given.shape, wrong["nodes"])
    wrong = {**tensors, name: tensors[name].double()}
    with pytest.raises(ValueError, match=r"float64"):
        rotate_sum(wrong["features"], wrong["bias"], given.edges, given.shape, wrong["nodes"])
