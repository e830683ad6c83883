"""The gate kernel against the reference: values, first and second derivatives, what it hands on to the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from edgewise.ops import gate as module
from edgewise.ops import reference
from edgewise.ops.gate import _gate, gate, gate_backward, has_kernel
from edgewise.ops.launch import MAX_PROGRAMS
from tests.ops.kernel_problems import SIZES, Problem, count_compilations, gradients, poisoned_memory

pytestmark = pytest.mark.kernels

EXTRA = 2
"""Gate scalars in front of block 0, one set for each degree from 1 on."""


def blocks_of(n_edges: int, hidden: int, mmax: int = 2, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return Problem(n_edges, hidden, mmax, dtype).blocks(hidden, extra=EXTRA)


def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with every call of the kernel's op."""
    calls: list[str] = []
    original = module._gate

    def counted(*arguments: object) -> object:
        calls.append("gate")
        return original(*arguments)

    monkeypatch.setattr(module, "_gate", counted)
    return calls


@pytest.mark.parametrize("mmax", [2, 1])
@pytest.mark.parametrize(("n_edges", "hidden"), [(n, hidden) for n, hidden in SIZES if hidden & (hidden - 1) == 0])
def test_values_and_derivatives(n_edges: int, hidden: int, mmax: int, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = blocks_of(n_edges, hidden, mmax)
    assert has_kernel(blocks, hidden)
    expected = reference.gate(blocks, 2, hidden)
    with poisoned_memory(monkeypatch):
        found = gate(blocks, 2, hidden)
        first = gradients(found, blocks)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    for a, b in zip(first, gradients(expected, blocks), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mmax", [2, 1])
def test_second_derivatives(mmax: int) -> None:
    blocks = blocks_of(7, 8, mmax)
    results = []
    for function in (gate, reference.gate):
        outputs = function(blocks, 2, 8)
        factors = [torch.full_like(block, 0.5).add_(index).requires_grad_() for index, block in enumerate(outputs)]
        first = torch.autograd.grad(outputs, blocks, factors, create_graph=True)
        results.append(gradients([item.square() for item in first], [*blocks, *factors]))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)


def test_widths_that_are_no_power_of_two_take_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = launches(monkeypatch)
    blocks = blocks_of(5, 96)
    found, expected = gate(blocks, 2, 96), reference.gate(blocks, 2, 96)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert calls == []
    gate(blocks_of(5, 128), 2, 128)
    assert calls == ["gate"]


def test_bfloat16_under_autocast_takes_the_reference_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = launches(monkeypatch)
    weights = [torch.randn(n, 256) * 0.1 for n in (5 * 128, 4 * 128, 2 * 128)]
    x = torch.randn(6, 256)
    products = 0

    def convolve() -> list[Tensor]:
        nonlocal products
        products += 1
        return [torch.nn.functional.linear(x, weight) for weight in weights]

    with torch.autocast("cpu", dtype=torch.bfloat16):
        blocks = convolve()
        assert {block.dtype for block in blocks} == {torch.bfloat16}
        found = gate(blocks, 2, 128)
    assert calls == []
    assert products == 1
    exact = gate([block.float() for block in blocks], 2, 128)
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a.float(), b, rtol=2e-2, atol=2e-2)


def test_float64_takes_the_reference() -> None:
    blocks = blocks_of(5, 8, dtype=torch.float64)
    assert not has_kernel(blocks, 8)
    assert all(torch.equal(a, b) for a, b in zip(gate(blocks, 2, 8), reference.gate(blocks, 2, 8), strict=True))


def test_few_programs_take_several_edges_each() -> None:
    blocks = blocks_of(17, 8)
    assert all(torch.equal(a, b) for a, b in zip(gate(blocks, 2, 8), gate(blocks, 2, 8, max_programs=3), strict=True))


@pytest.mark.parametrize("mmax", [2, 1])
def test_registration(mmax: int) -> None:
    blocks = blocks_of(3, 8, mmax)
    blocks += [torch.zeros(3, 0, device=blocks[0].device, requires_grad=True)] * (3 - len(blocks))
    torch.library.opcheck(_gate, (*blocks, MAX_PROGRAMS))
    outputs = [torch.randn_like(block) for block in _gate(*blocks, MAX_PROGRAMS)]
    plain = [block.detach() for block in blocks]
    torch.library.opcheck(gate_backward, (*plain, *outputs, MAX_PROGRAMS))


def test_compiled_runs_give_the_same_bits_and_compile_once() -> None:
    def run(*blocks: Tensor) -> list[Tensor]:
        return gate(blocks, 2, 8)

    cases = [tuple(block.detach() for block in blocks_of(n, 8)) for n in (7, 11, 3, 13)]
    torch._dynamo.reset()
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    for blocks in cases:
        assert all(torch.equal(a, b) for a, b in zip(compiled(*blocks), run(*blocks), strict=True))
    assert count_compilations(run, cases) == 1
