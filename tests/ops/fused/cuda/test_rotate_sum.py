"""Rotating back and summing in CUDA C++, and the adjoint: on a GPU or in the emulator, against the reference in float64."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from edgewise.ops.fused import rotate_sum as op
from edgewise.ops.reference import edge_steps
from tests import tolerances
from tests.ops.fused.cuda.cases import CASES
from tests.ops.fused.edge_checks import check_rotate_sum, check_rotate_sum_adjoint
from tests.ops.fused.problems import Problem, poisoned
from tests.ops.kernel_problems import DEVICE

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("somewhere")]

rotate_sum = partial(op.rotate_sum, in_cuda=True)
rotate_sum_adjoint = partial(op.rotate_sum_adjoint, in_cuda=True)

EMBEDDING = pytest.mark.parametrize("embedding", [False, True], ids=["messages", "embedding"])


@pytest.mark.parametrize(("lmax", "mmax", "n_edges", "channels"), CASES)
@pytest.mark.parametrize("n_slices", [1, 3] if DEVICE == "cuda" else [2])
@EMBEDDING
def test_forward(lmax: int, mmax: int, n_edges: int, channels: int, n_slices: int, embedding: bool) -> None:
    check_rotate_sum(lmax, mmax, n_edges, channels, n_slices, embedding=embedding, in_cuda=True)


@pytest.mark.parametrize(("lmax", "mmax", "n_edges", "channels"), CASES)
@EMBEDDING
def test_adjoint(lmax: int, mmax: int, n_edges: int, channels: int, embedding: bool) -> None:
    check_rotate_sum_adjoint(lmax, mmax, n_edges, channels, embedding=embedding, in_cuda=True)


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
