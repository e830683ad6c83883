"""Radial networks in CUDA C++: on a GPU or in the emulator, against the reference in float64 and beside Triton's kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from edgewise.ops.fused.cuda import radial_hidden as cuda
from edgewise.ops.fused.cuda._radial_form import as_lanes_read, unfit_sizes, warps_that_fit
from edgewise.ops.fused.radial_hidden import radial_hidden
from edgewise.ops.fused.row_format import FLOAT16, FLOAT32, FLOAT64, LOW_SCALE, SPLIT, TF32, RowFormat
from tests.ops.fused.problems import CUTOFF, Problem, poisoned
from tests.ops.fused.radial_checks import (
    N_NETWORKS,
    Networks,
    check_layout,
    check_some_of_the_networks,
    check_values_and_slopes,
)
from tests.ops.kernel_problems import DEVICE

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("somewhere")]

FORMATS = pytest.mark.parametrize("row_format", [FLOAT16, SPLIT, TF32, FLOAT32], ids=lambda item: item.name)

CASES = [(0, 16, 8), (1, 16, 2), (17, 48, 5), (33, 32, 33), (170, 16, 16), (17, 16, 70), (17, 128, 32)]
"""Edges, width, gaussians: none, one, one past a tile, more tiles than warps, and the width of published models."""

if DEVICE == "cuda":
    CASES += [(1009, 128, 32), (1009, 128, 64), (1009, 128, 128), (20_011, 128, 32), (1009, 112, 40)]

FLOAT_BOUND = 3e-6
"""Relative L2 error against float64: three layers in float32, operands of 22 bits, and a distance of 24 bits in the slopes of
gaussians 0.16 Å wide."""


@pytest.mark.parametrize(("n_edges", "n_hidden", "n_basis"), CASES)
def test_values_and_slopes(n_edges: int, n_hidden: int, n_basis: int) -> None:
    check_values_and_slopes(n_edges, n_hidden, n_basis, in_cuda=True)


# In float32 there is one part, which `test_values_and_slopes` compares.
@pytest.mark.parametrize("row_format", [FLOAT16, SPLIT, TF32], ids=lambda item: item.name)
@pytest.mark.parametrize(("n_hidden", "n_basis"), [(32, 5), (128, 32)] if DEVICE == "cuda" else [(32, 5)])
def test_values_are_laid_out_for_last_layers(row_format: RowFormat, n_hidden: int, n_basis: int) -> None:
    check_layout(row_format, n_hidden, n_basis, in_cuda=True)


def test_some_of_the_networks() -> None:
    check_some_of_the_networks(16, 5, in_cuda=True)


def results(networks: Networks, row_format: RowFormat, *, in_cuda: bool) -> list[Tensor]:
    """Return values and slopes of all networks as they are stored; rows that hold no edge are NaN."""
    given, stack = networks.given, networks.stack()
    made = [
        poisoned(
            N_NETWORKS,
            given.capacity,
            row_format.hidden_columns(stack.n_hidden, constant=item),
            dtype=row_format.operands,
        )
        for item in (True, False)
    ]
    distance = given.filled(given.geometry.distance.float())
    inputs = distance, networks.numbers.int(), given.edges, CUTOFF, stack, *made
    radial_hidden(*inputs, row_format=row_format, in_cuda=in_cuda)
    return made


def test_errors_are_no_larger_than_those_of_triton() -> None:
    given = Problem(2, 2, 1009 if DEVICE == "cuda" else 16, 4)
    networks = Networks(given, 128 if DEVICE == "cuda" else 64, 32)
    exact = [torch.stack(pair) for pair in zip(*map(networks.expected, range(N_NETWORKS)), strict=True)]

    def errors(*, in_cuda: bool) -> list[float]:
        found = results(networks, FLOAT32, in_cuda=in_cuda)
        pairs = zip(found, exact, strict=True)
        return [float((x[:, : given.n_edges].double() - y).norm() / y.norm()) for x, y in pairs]

    ours, triton = errors(in_cuda=True), errors(in_cuda=False)
    print(f"values and slopes: CUDA C++ {ours}, Triton {triton}")
    for one, other in zip(ours, triton, strict=True):
        assert one <= max(1.5 * other, 2.5e-7)
        assert one <= FLOAT_BOUND


@FORMATS
def test_formats_hold_the_values_of_float32(row_format: RowFormat) -> None:
    """Each is what `RowFormat.hidden` makes of the numbers that float32 has, for a compiler that does not fuse operations."""
    networks, columns = Networks(Problem(2, 2, 17, 4), 16, 8), slice(17)
    plain, found = (results(networks, item, in_cuda=True) for item in (FLOAT32, row_format))
    for x, y, constant in zip(plain, found, (True, False), strict=True):
        expected = row_format.hidden(x[:, columns], constant=constant)
        exact = {"rtol": 0.0, "atol": 0.0}
        if DEVICE == "cpu":
            torch.testing.assert_close(y[:, columns], expected, **exact)
            continue
        # One unit in the last place more or less may move half a unit of a high part to the low one.
        one, other = (stored_values(item, row_format) for item in (y[:, columns], expected))
        rounded = y.shape[2] == 16 and row_format is FLOAT16
        allowed = {"rtol": 2.0**-10 if rounded else 2.0**-19, "atol": 2.0**-21}
        torch.testing.assert_close(one, other, **allowed)


def stored_values(rows: Tensor, row_format: RowFormat) -> Tensor:
    """Return what both parts of 16 columns stand for, float64."""
    first, *others = rows.double().split(16, dim=2)
    if not others:
        return first
    return others[0] + first / LOW_SCALE if row_format is SPLIT else first + others[0]


def test_edges_that_there_are_not_are_left_alone() -> None:
    """Where the device says so: all tensors have room for more, and what they hold there is not read."""
    networks = Networks(Problem(2, 2, 40, 4), 16, 8)
    every = results(networks, FLOAT32, in_cuda=True)
    networks.given.edges = replace(networks.given.edges, n_live=torch.full_like(networks.given.edges.n_live, 21))
    networks.given.edges.ends[:, 21:] = 1 << 30
    for x, y in zip(results(networks, FLOAT32, in_cuda=True), every, strict=True):
        assert torch.equal(x[:, :21], y[:, :21])
        assert x[:, 21:].isnan().all()


def test_runs_repeat_to_the_bit() -> None:
    on_a_gpu = DEVICE == "cuda"
    networks = Networks(Problem(2, 2, 78_848 if on_a_gpu else 17, 4), 128 if on_a_gpu else 16, 32)
    first = results(networks, FLOAT16, in_cuda=True)
    for _ in range(5 if on_a_gpu else 1):
        for x, y in zip(results(networks, FLOAT16, in_cuda=True), first, strict=True):
            assert torch.equal(x[:, : networks.given.n_edges], y[:, : networks.given.n_edges])


@pytest.mark.gpu
@FORMATS
def test_graphs_record_the_kernel(row_format: RowFormat) -> None:
    networks = Networks(Problem(2, 2, 1009, 4), 128, 32)
    given, stack, eager = networks.given, networks.stack(), results(networks, row_format, in_cuda=True)
    replayed = [torch.full_like(item, torch.nan) for item in eager]
    distance, numbers = given.filled(given.geometry.distance.float()), networks.numbers.int()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inputs = distance, numbers, given.edges, CUTOFF, stack, *replayed
        radial_hidden(*inputs, row_format=row_format, in_cuda=True)
    assert all(item.isnan().all() for item in replayed)
    graph.replay()
    assert all(torch.equal(x[:, :1009], y[:, :1009]) for x, y in zip(replayed, eager, strict=True))


def test_matrices_are_read_as_products_take_them() -> None:
    """By the layout of mma.m16n8k16: lane 4 r + q multiplies the inputs 2 q, 2 q + 1, 2 q + 8, 2 q + 9 for output r."""
    generator = torch.Generator().manual_seed(3)
    matrix = torch.randn(32, 40, generator=generator, dtype=torch.float64)
    read = as_lanes_read(matrix)
    assert read.shape == (2, 3, 2, 32, 8)
    whole = read[:, :, 0].double() + read[:, :, 1].double() / LOW_SCALE
    # The column of a group that stands at a place of either of its two products, and likewise of summed values.
    column = [4 * (place % 8 // 2) + 2 * (place // 8) + place % 2 for place in range(16)]
    padded = functional.pad(matrix, (0, 8))
    for lane in range(32):
        for half in range(8):
            output = column[8 * (half // 4) + lane // 4]
            value = column[2 * (lane % 4) + 8 * (half // 2 % 2) + half % 2]
            expected = padded[output::16, value::16]
            torch.testing.assert_close(whole[:, :, lane, half], expected, rtol=2.0**-21, atol=2.0**-35)


@pytest.mark.parametrize("name", ["values", "slopes", "distance", "numbers"])
def test_tensors_that_do_not_fit_are_refused(name: str) -> None:
    given = Problem(2, 2, 7, 4)
    networks = Networks(given, 16, 8)
    tensors = {
        "distance": given.filled(given.geometry.distance.float()),
        "numbers": networks.numbers.int(),
        "values": poisoned(N_NETWORKS, given.capacity, 16),
        "slopes": poisoned(N_NETWORKS, given.capacity, 16),
    }

    def run(wrong: Tensor) -> None:
        x = {**tensors, name: wrong}
        stack = networks.stack()
        inputs = x["distance"], x["numbers"], given.edges, CUTOFF, stack, x["values"], x["slopes"]
        radial_hidden(*inputs, row_format=FLOAT32, in_cuda=True)

    run(tensors[name])
    if name != "numbers":
        with pytest.raises(ValueError, match=f"{name} has shape"):
            run(tensors[name][..., 1:])
    with pytest.raises(ValueError, match=f"{name} is torch.float64"):
        run(tensors[name].double())
    if name in ("values", "slopes"):
        between = torch.zeros(tensors[name].numel() + 1, device=DEVICE)[1:].view_as(tensors[name])
        with pytest.raises(ValueError, match=f"{name} does not begin at a multiple of 16 bytes"):
            run(between)


@pytest.mark.parametrize(("n_hidden", "n_basis"), [(8, 8), (20, 8), (144, 8), (16, 129)])
def test_sizes_without_a_kernel_are_refused(n_hidden: int, n_basis: int) -> None:
    networks = Networks(Problem(2, 2, 7, 4), n_hidden, n_basis)
    assert networks.stack().arranged is None
    with pytest.raises(ValueError, match="no kernel in CUDA C"):
        results(networks, FLOAT32, in_cuda=True)
    assert unfit_sizes(n_hidden, n_basis)


def test_formats_without_a_kernel_are_refused() -> None:
    with pytest.raises(ValueError, match="rows are in float64; the kernels in CUDA C"):
        results(Networks(Problem(2, 2, 7, 4), 16, 8), FLOAT64, in_cuda=True)


def test_where_the_kernel_cannot_serve_there_is_a_reason() -> None:
    device = torch.device("cuda")
    for row_format in (FLOAT16, SPLIT, TF32, FLOAT32):
        assert cuda.missing(128, 32, row_format, device) is None
    assert "float64" in str(cuda.missing(128, 32, FLOAT64, device))
    assert "8 wide" in str(cuda.missing(8, 32, FLOAT16, device))
    assert "512 gaussians" in str(cuda.missing(128, 512, FLOAT16, device))
    assert "the device is cpu" in str(cuda.missing(128, 32, FLOAT16, torch.device("cpu")))


@pytest.mark.parametrize(("kibibytes", "warps"), [(227, 8), (163, 5), (99, 1)])
def test_warps_fill_the_shared_memory_that_there_is(
    kibibytes: int, warps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of H200 and B200, of A100, and of GPUs for graphics, where too few warps fit."""
    monkeypatch.setattr("edgewise.ops.fused.cuda._radial_form.MOST_WARPS", 8)
    assert warps_that_fit(128, 32, kibibytes * 1024) == warps
