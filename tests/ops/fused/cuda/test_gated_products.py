"""Gate and second SO(2) map in one kernel: on a GPU or in the emulator, beside the gate and the products that it replaces."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from edgewise.ops import reference
from edgewise.ops.fused.cuda import gated_products as op
from edgewise.ops.fused.cuda.gated_products import gated_products, in_shared_memory, matrix_images, output_order
from edgewise.ops.fused.row_format import FLOAT16, FLOAT32
from edgewise.ops.fused.so2_linear import SO2Map, so2_map
from edgewise.ops.reference import MessageShape, SO2Weights
from tests.ops.fused.cuda import emulator
from tests.ops.fused.problems import Problem, poisoned
from tests.ops.kernel_problems import DEVICE

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("somewhere")]

HIDDEN = op.SHAPE.hidden
BEFORE, AFTER = 11 * HIDDEN, 9 * HIDDEN

BOUND = 3e-4
"""Relative L2 error of sums of products that are rounded to float16 once; a wrong row, column or sign gives 1e-2 and more."""

SIZES = [0, 1, 63, 64, 65, 127, 521] + ([1009, 78_848] if DEVICE == "cuda" else [])

BLOCKS = (1, 2, 1)
"""Few blocks on a CPU, so that each has several tiles from 129 edges on."""


@pytest.fixture(autouse=True)
def _where_it_serves() -> None:
    if DEVICE == "cuda" and (why := op.missing(op.SHAPE, FLOAT16, torch.device("cuda"))):
        pytest.skip(why)


def second_map(given: Problem) -> SO2Map:
    blocks = []
    for m in range(3):
        n = (3 - m) * HIDDEN
        a, b = (given.random(n, n) * (n * min(2, m + 1)) ** -0.5 for _ in range(2))
        blocks.append(a if m == 0 else torch.cat([torch.cat([a, -b], 1), torch.cat([b, a], 1)]))
    return so2_map(SO2Weights(tuple(blocks), given.random(3 * HIDDEN)), FLOAT16)


def launched(given: Problem, before: Tensor, bias: Tensor, matrices: SO2Map, rows: Tensor | None = None) -> Tensor:
    out = poisoned(given.capacity, AFTER, dtype=torch.float16) if rows is None else rows
    blocks = BLOCKS if DEVICE == "cpu" else None
    return gated_products(before, bias, matrix_images(matrices), given.edges, out, blocks=blocks)


def expected(given: Problem, before: Tensor, bias: Tensor, matrices: SO2Map) -> Tensor:
    """In float64, but for the rounding of gated rows that products read."""
    blocks = given.split(before.double(), HIDDEN, 2 * HIDDEN)
    blocks[0] = blocks[0] + bias.double()
    gated = reference.gate(blocks, 2, HIDDEN)
    pairs = zip(gated, matrices.blocks, strict=True)
    return torch.cat([rows.half().double() @ matrix.double().T for rows, matrix in pairs], dim=1)


@pytest.mark.parametrize("n_edges", SIZES)
@pytest.mark.parametrize("early", [False, True] if DEVICE == "cpu" else [False])
def test_values(n_edges: int, early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator, "early_products", early)
    given = Problem(2, 2, n_edges, HIDDEN)
    before, bias, matrices = given.rows(BEFORE).half(), given.random(5 * HIDDEN).float(), second_map(given)
    out = launched(given, before, bias, matrices)
    wanted = expected(given, before, bias, matrices)
    for start, stop in itertools.pairwise((0, 3 * HIDDEN, 7 * HIDDEN, AFTER)):
        found, exact = out[:n_edges, start:stop].double(), wanted[:, start:stop]
        assert (found - exact).norm() <= BOUND * exact.norm()
    assert out[n_edges:].isnan().all(), "rows that hold no edge are not written"


def test_every_weight_reaches_its_place() -> None:
    """With one weight that is not zero, one column comes out: for places of all orders, halves and parts."""
    given = Problem(2, 2, 3, HIDDEN)
    before, bias = given.rows(BEFORE).half(), torch.zeros(5 * HIDDEN, device=DEVICE)
    # In the dense matrices of m = 1 and 2 a weight of A or B stands in two places.
    for m, n, row, column in [(0, 384, 0, 383), (0, 384, 200, 5), (1, 256, 130, 70), (1, 256, 3, 250), (2, 128, 99, 1)]:
        for of_b in (False, True)[: 1 + (m > 0)]:
            a, b = torch.zeros(2, n, n, dtype=torch.float64, device=DEVICE)
            (b if of_b else a)[row, column] = 1.0
            blocks = [torch.zeros(size, size, dtype=torch.float64, device=DEVICE) for size in (384, 512, 256)]
            blocks[m] = torch.cat([torch.cat([a, -b], 1), torch.cat([b, a], 1)]) if m else a
            matrices = so2_map(SO2Weights(tuple(blocks), given.random(384)), FLOAT16)
            out = launched(given, before, bias, matrices)[:3].double()
            wanted = expected(given, before, bias, matrices)
            # The reference rounds what the kernel rounds, where exp may differ in the last bit of float32.
            torch.testing.assert_close(out, wanted, rtol=1e-3, atol=1e-6)


def test_what_float16_cannot_hold_is_seen() -> None:
    given = Problem(2, 2, 65, HIDDEN)
    before, bias, matrices = given.rows(BEFORE).half(), given.random(5 * HIDDEN).float(), second_map(given)
    before[64, 700] = torch.inf
    before[7, 3] = torch.nan
    out = launched(given, before, bias, matrices)
    assert out[64, 3 * HIDDEN : 7 * HIDDEN].isfinite().sum() == 0
    assert out[7, 7 * HIDDEN :].isfinite().all(), "the gate of degree 1 has no part in m = 2"
    assert out[7, : 7 * HIDDEN].isnan().all()
    others = [row for row in range(65) if row not in (7, 64)]
    assert out[others].isfinite().all()


def test_only_live_edges_are_read_and_written() -> None:
    """The device alone knows how many there are, and they may be fewer than the room by any number."""
    given = Problem(2, 2, 200, HIDDEN)
    before, bias, matrices = given.rows(BEFORE).half(), given.random(5 * HIDDEN).float(), second_map(given)
    full = launched(given, before, bias, matrices)
    for n_live in (0, 1, 129):
        fewer = before.clone()
        fewer[n_live:] = torch.nan
        given.edges = replace(given.edges, n_live=torch.tensor([n_live], dtype=torch.int32, device=DEVICE))
        out = launched(given, fewer, bias, matrices)
        assert torch.equal(out[:n_live], full[:n_live])
        assert out[n_live:].isnan().all()


def test_runs_repeat_to_the_bit_with_any_number_of_blocks() -> None:
    given = Problem(2, 2, 200 if DEVICE == "cpu" else 78_848, HIDDEN)
    before, bias, matrices = given.rows(BEFORE).half(), given.random(5 * HIDDEN).float(), second_map(given)
    images = matrix_images(matrices)
    first = launched(given, before, bias, matrices)[: given.n_edges]
    for blocks in [(1, 1, 1), (2, 1, 3)] if DEVICE == "cpu" else [(22, 34, 20), (30, 30, 12), (1, 1, 1), None]:
        out = poisoned(given.capacity, AFTER, dtype=torch.float16)
        gated_products(before, bias, images, given.edges, out, blocks=blocks)
        assert torch.equal(out[: given.n_edges], first)


@pytest.mark.gpu
def test_graphs_record_the_kernel() -> None:
    given = Problem(2, 2, 1009, HIDDEN)
    before, bias, matrices = given.rows(BEFORE).half(), given.random(5 * HIDDEN).float(), second_map(given)
    eager = launched(given, before, bias, matrices)
    images, replayed = matrix_images(matrices), poisoned(given.capacity, AFTER, dtype=torch.float16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gated_products(before, bias, images, given.edges, replayed)
    assert replayed.isnan().all()
    graph.replay()
    assert torch.equal(replayed[:1009], eager[:1009])


def test_images_hold_every_weight_once() -> None:
    sizes = (384, 512, 256)
    given = Problem(2, 2, 1, HIDDEN)
    matrices = second_map(given)
    images = matrix_images(matrices).view(torch.int16)
    halves = [matrices.blocks[0].chunk(2)]
    for m, size in enumerate(sizes[1:], start=1):
        n = size // 2
        halves += [(matrices.blocks[m][:n, :n], matrices.blocks[m][n:, :n])]
    every = torch.cat([item.flatten() for pair in halves for item in pair]).view(torch.int16)
    assert torch.equal(images.sort().values, every.sort().values)


def test_outputs_of_a_thread_are_neighbours() -> None:
    """A thread has the columns 8 j + 2 (lane % 4) + i of the products; of 32 of them it stores 8 at once."""
    for n in (128, 192):
        order = output_order(n)
        assert torch.equal(order.sort().values, torch.arange(n))
        for group in range(n // 32):
            for lane in range(4):
                own = [order[32 * group + 8 * j + 2 * lane + i] for j in range(4) for i in range(2)]
                assert own == list(range(32 * group + 8 * lane, 32 * group + 8 * lane + 8))


def test_places_in_shared_memory_are_those_of_the_swizzle() -> None:
    """Bits 4 to 6 of a place are changed by bits 7 to 9, as products read operands whose rows have 128 bytes."""
    part = torch.arange(24 * 64).view(24, 64)
    found = in_shared_memory(part).flatten()
    for row in range(24):
        for column in range(64):
            place = 128 * row + 2 * column
            assert found[(place ^ (place >> 7 & 7) << 4) // 2] == part[row, column]


def test_blocks_are_shared_out() -> None:
    assert op.blocks_of(132) == op.WORK
    for n in (5, 7, 78, 114, 132, 144):
        of_0, of_1, of_2 = op.blocks_of(n)
        assert min(of_0, of_1, of_2) >= 1
        assert 2 * of_0 + 2 * of_1 + of_2 == n


def test_shared_memory_is_no_more_than_there_is() -> None:
    assert op.SHARED_BYTES <= 227 * 1024
    assert op.BARRIER_BYTES >= 8 * (1 + 2 * 2 * 5)


@pytest.mark.parametrize("name", ["before", "bias", "images", "out"])
def test_tensors_that_do_not_fit_are_refused(name: str) -> None:
    given = Problem(2, 2, 7, HIDDEN)
    tensors = {
        "before": given.rows(BEFORE).half(),
        "bias": given.random(5 * HIDDEN).float(),
        "images": matrix_images(second_map(given)),
        "out": poisoned(given.capacity, AFTER, dtype=torch.float16),
    }

    def call(item: Tensor) -> None:
        used = {**tensors, name: item}
        gated_products(used["before"], used["bias"], used["images"], given.edges, used["out"])

    with pytest.raises(ValueError, match=f"{name} has shape"):
        call(tensors[name][..., 1:])
    with pytest.raises(ValueError, match="float64"):
        call(tensors[name].double())


def test_matrices_of_another_shape_are_refused() -> None:
    matrices = second_map(Problem(2, 2, 1, HIDDEN))
    with pytest.raises(ValueError, match="the matrix of order 1 has shape"):
        matrix_images(replace(matrices, blocks=(matrices.blocks[0], matrices.blocks[2], matrices.blocks[1])))


def test_where_the_kernel_cannot_serve_there_is_a_reason() -> None:
    device = torch.device("cpu")
    assert "float32" in str(op.missing(op.SHAPE, FLOAT32, device))
    assert "lmax=4" in str(op.missing(MessageShape(4, 2, 128, 128), FLOAT16, device))
    assert "capability 9.0" in str(op.missing(op.SHAPE, FLOAT16, device))


def test_large_shared_memory_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgewise.ops.fused.cuda import _driver

    calls: list[str] = []
    monkeypatch.setattr(_driver, "_check", lambda function, *_: calls.append(function))
    kernel = _driver.Kernel(b"", "nothing")
    assert isinstance(kernel._function, ctypes.c_void_p)
    for shared in (1, op.SHARED_BYTES, op.SHARED_BYTES):
        if shared > _driver.ALWAYS_SHARED:
            kernel._allow(0, shared)
    assert calls == ["cuLibraryLoadData", "cuLibraryGetKernel", "cuDeviceGet", "cuKernelSetAttribute"]
