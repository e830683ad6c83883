"""Gathering and rotating in mode fused, and the adjoint: any shape, against the reference in float64."""

from __future__ import annotations

import pytest
import torch

from edgewise.ops.fused.gather_rotate import gather_rotate, gather_rotate_adjoint
from tests.ops.fused.edge_checks import check_gather_rotate, check_gather_rotate_adjoint
from tests.ops.fused.problems import SHAPES, SIZES, SPARE, Problem, poisoned
from tests.ops.kernel_problems import DEVICE

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize(("lmax", "mmax"), SHAPES)
@pytest.mark.parametrize(("n_edges", "channels"), SIZES)
def test_forward(lmax: int, mmax: int, n_edges: int, channels: int) -> None:
    check_gather_rotate(lmax, mmax, n_edges, channels, in_cuda=False)


@pytest.mark.parametrize(("lmax", "mmax"), SHAPES)
@pytest.mark.parametrize(("n_edges", "channels"), SIZES)
@pytest.mark.parametrize("n_slices", [1, 3])
def test_adjoint(lmax: int, mmax: int, n_edges: int, channels: int, n_slices: int) -> None:
    check_gather_rotate_adjoint(lmax, mmax, n_edges, channels, n_slices, in_cuda=False)


def test_float16_rows_are_rounded_once() -> None:
    """What is stored in float16 is the float32 result, rounded to nearest."""
    given = Problem(2, 2, 17, 8)
    nodes, radial = given.nodes().float(), given.rows(16 * 6).half()
    wide, narrow = (poisoned(20, 9 * 16, dtype=dtype) for dtype in (torch.float32, torch.float16))
    gather_rotate(nodes, given.edges, radial, given.shape, wide)
    gather_rotate(nodes, given.edges, radial, given.shape, narrow)
    assert torch.equal(narrow[:17], wide[:17].half())


def test_runs_repeat_to_the_bit() -> None:
    given = Problem(2, 2, 17 if DEVICE == "cpu" else 5003, 8 if DEVICE == "cpu" else 128)
    channels = given.channels
    nodes, width = given.nodes().float(), 2 * channels * 6
    radial, slope = given.rows(width).float(), given.rows(width).float()
    gradient = given.rows(18 * channels).float()
    found = []
    for _ in range(2 if DEVICE == "cpu" else 10):
        parts, tangents = poisoned(2, given.n_atoms, 9, channels), torch.zeros(6, given.capacity, 3, device=DEVICE)
        out = gather_rotate_adjoint(gradient, nodes, given.edges, radial, slope, given.shape, parts, tangents)
        found.append((out, tangents[:, : given.n_edges]))
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


@pytest.mark.parametrize("name", ["radial", "out", "nodes"])
def test_tensors_that_do_not_fit_are_refused(name: str) -> None:
    given = Problem(2, 2, 7, 4)
    tensors = {
        "nodes": given.nodes().float(),
        "radial": given.rows(8 * 6).float(),
        "out": poisoned(7 + SPARE, 9 * 8),
    }
    tensors[name] = tensors[name][..., 1:]
    with pytest.raises(ValueError, match=f"{name} has shape"):
        gather_rotate(tensors["nodes"], given.edges, tensors["radial"], given.shape, tensors["out"])
