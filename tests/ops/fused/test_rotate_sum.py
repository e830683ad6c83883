"""Rotating back and summing in mode fused, and the adjoint: any shape, against the reference in float64."""

from __future__ import annotations

import pytest

from tests.ops.fused.edge_checks import check_rotate_sum, check_rotate_sum_adjoint
from tests.ops.fused.problems import SHAPES, SIZES

pytestmark = pytest.mark.kernels

EMBEDDING = pytest.mark.parametrize("embedding", [False, True], ids=["messages", "embedding"])


@pytest.mark.parametrize(("lmax", "mmax"), SHAPES)
@pytest.mark.parametrize(("n_edges", "channels"), SIZES)
@pytest.mark.parametrize("n_slices", [1, 3])
@EMBEDDING
def test_forward(lmax: int, mmax: int, n_edges: int, channels: int, n_slices: int, embedding: bool) -> None:
    check_rotate_sum(lmax, mmax, n_edges, channels, n_slices, embedding=embedding, in_cuda=False)


@pytest.mark.parametrize(("lmax", "mmax"), SHAPES)
@pytest.mark.parametrize(("n_edges", "channels"), SIZES)
@EMBEDDING
def test_adjoint(lmax: int, mmax: int, n_edges: int, channels: int, embedding: bool) -> None:
    check_rotate_sum_adjoint(lmax, mmax, n_edges, channels, embedding=embedding, in_cuda=False)
