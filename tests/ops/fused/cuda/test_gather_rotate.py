"""Gathering and rotating in CUDA C++, and the adjoint: on a GPU or in the emulator, against the reference in float64."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from edgewise.ops.fused import gather_rotate as op
from edgewise.ops.fused.cuda._source import LANES, WARPS
from edgewise.ops.fused.row_format import FLOAT16, FLOAT32, SPLIT, TF32, RowFormat
from edgewise.ops.reference import edge_steps
from tests.ops.fused.cuda.cases import CASES
from tests.ops.fused.edge_checks import check_gather_rotate, check_gather_rotate_adjoint
from tests.ops.fused.problems import Problem, poisoned
from tests.ops.kernel_problems import DEVICE

gather_rotate = partial(op.gather_rotate, in_cuda=True)
gather_rotate_adjoint = partial(op.gather_rotate_adjoint, in_cuda=True)

FLOAT_BOUND = 1e-6
"""Relative L2 error of sums of some thousand products in float32."""

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("somewhere")]


@pytest.mark.parametrize(("lmax", "mmax", "n_edges", "channels"), CASES)
def test_forward(lmax: int, mmax: int, n_edges: int, channels: int) -> None:
    check_gather_rotate(lmax, mmax, n_edges, channels, in_cuda=True)


@pytest.mark.parametrize(("lmax", "mmax", "n_edges", "channels"), CASES)
@pytest.mark.parametrize("n_slices", [1, 3] if DEVICE == "cuda" else [2])
def test_adjoint(lmax: int, mmax: int, n_edges: int, channels: int, n_slices: int) -> None:
    check_gather_rotate_adjoint(lmax, mmax, n_edges, channels, n_slices, in_cuda=True)


def test_more_edges_of_an_atom_than_are_looked_up_at_once() -> None:
    # Of 8 bytes each, in the room for the four coefficients of half a block's warps.
    looked_up = WARPS // 2 * 4 * LANES * 2
    check_gather_rotate_adjoint(1, 1, looked_up + 37, 4, 1, in_cuda=True, n_atoms=1)


def test_float16_rows_are_rounded_once() -> None:
    """What is stored in float16 is the float32 result of the very same operands, rounded to nearest."""
    given = Problem(2, 2, 17, 8)
    nodes, radial = given.nodes().float(), given.rows(16 * 6).half()
    wide, narrow = (poisoned(20, 9 * 16, dtype=dtype) for dtype in (torch.float32, torch.float16))
    gather_rotate(nodes, given.edges, radial.float(), given.shape, wide)
    gather_rotate(nodes, given.edges, radial, given.shape, narrow)
    assert torch.equal(narrow[:17], wide[:17].half())


def test_runs_repeat_to_the_bit() -> None:
    given = Problem(
        2, 2, 17 if DEVICE == "cpu" else 78_848, 8 if DEVICE == "cpu" else 128, 5 if DEVICE == "cpu" else 1000
    )
    channels = given.channels
    nodes, width = given.nodes().float(), 2 * channels * 6
    radial, slope = given.rows(width).half(), given.rows(width).half()
    gradient = given.rows(18 * channels).half()
    found = []
    for _ in range(2 if DEVICE == "cpu" else 5):
        parts, tangents = poisoned(1, given.n_atoms, 9, channels), torch.zeros(6, given.capacity, 3, device=DEVICE)
        to_nodes = gather_rotate_adjoint(gradient, nodes, given.edges, radial, slope, given.shape, parts, tangents)
        found.append((to_nodes, tangents))
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))
    unscaled = gradient[: given.n_edges].double() / given.scale_of_edge
    expected, expected_tangents = edge_steps.gather_rotate_adjoint(
        given.split(unscaled, 2 * channels),
        nodes.double(),
        given.order,
        given.geometry,
        radial[: given.n_edges].double(),
        slope[: given.n_edges].double(),
        given.shape,
    )
    assert (found[0][0].double() - expected).norm() <= FLOAT_BOUND * expected.norm(), "no share is rounded to float16"
    found_tangents = found[0][1].double().sum(0)[: given.n_edges]
    assert (found_tangents - expected_tangents).norm() <= FLOAT_BOUND * expected_tangents.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("row_format", [FLOAT16, SPLIT, TF32, FLOAT32], ids=lambda item: item.name)
def test_graphs_record_the_kernels(row_format: RowFormat) -> None:
    given = Problem(2, 2, 1009, 128)
    nodes, radial = given.nodes().float(), given.rows(256 * 6).to(row_format.results)
    columns = row_format.parts * 9 * 256
    eager, replayed = (poisoned(given.capacity, columns, dtype=row_format.operands) for _ in range(2))
    gather_rotate(nodes, given.edges, radial, given.shape, eager, row_format=row_format)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gather_rotate(nodes, given.edges, radial, given.shape, replayed, row_format=row_format)
    assert replayed.isnan().all()
    graph.replay()
    assert torch.equal(replayed[:1009], eager[:1009])


@pytest.mark.parametrize("name", ["radial", "out", "nodes"])
def test_tensors_that_do_not_fit_are_refused(name: str) -> None:
    given = Problem(2, 2, 7, 4)
    tensors = {"nodes": given.nodes().float(), "radial": given.rows(8 * 6).float(), "out": poisoned(10, 9 * 8)}
    wrong = {**tensors, name: tensors[name][..., 1:]}
    with pytest.raises(ValueError, match=f"{name} has shape"):
        gather_rotate(wrong["nodes"], given.edges, wrong["radial"], given.shape, wrong["out"])
    wrong = {**tensors, name: tensors[name].double()}
    with pytest.raises(ValueError, match=r"float64"):
        gather_rotate(wrong["nodes"], given.edges, wrong["radial"], given.shape, wrong["out"])


def test_places_between_vectors_are_refused() -> None:
    given = Problem(2, 2, 7, 4)
    radial = torch.zeros(10 * 48 + 1, device=DEVICE)[1:].view(10, 48)
    with pytest.raises(ValueError, match="radial does not begin at a multiple of 16 bytes"):
        gather_rotate(given.nodes().float(), given.edges, radial, given.shape, poisoned(10, 9 * 8))


def test_channels_between_vectors_are_refused() -> None:
    given = Problem(2, 2, 7, 6)
    with pytest.raises(ValueError, match="6 channels are no multiple of 4"):
        gather_rotate(given.nodes().float(), given.edges, given.rows(72).float(), given.shape, poisoned(10, 108))


def test_formats_without_kernels_are_refused() -> None:
    given = Problem(2, 2, 7, 4)
    out = poisoned(10, 9 * 8, dtype=torch.float64)
    with pytest.raises(ValueError, match="rows are in float64; the kernels in CUDA C"):
        gather_rotate(given.nodes().float(), given.edges, given.rows(48).float(), given.shape, out)
