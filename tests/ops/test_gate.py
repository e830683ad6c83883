"""The gate kernel against the reference: values, first and second derivatives, what it hands on to the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from edgewise.ops import gate as module
from edgewise.ops import reference
from edgewise.ops.gate import _gate, gate, gate_backward, has_kernel
from edgewise.ops.launch import MAX_PROGRAMS
from tests import tolerances
from tests.ops.kernel_problems import (
    LAYOUTS,
    SIZES,
    Problem,
    count_compilations,
    gradients,
    gradients_for,
    laid_out,
    poisoned_memory,
)

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
        torch.testing.assert_close(a, b, **tolerances.GATE)
    for a, b in zip(first, gradients(expected, blocks), strict=True):
        torch.testing.assert_close(a, b, **tolerances.GATE)


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
        torch.testing.assert_close(a, b, **tolerances.GATE_SECOND)


def third_derivatives(outputs: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Differentiate the sum of squares of the outputs, and of each derivative in turn, so that all depends on all."""
    for _ in range(2):
        value = torch.stack([item.square().sum() for item in outputs]).sum()
        outputs = list(torch.autograd.grad(value, inputs, create_graph=True))
    value = torch.stack([item.square().sum() for item in outputs]).sum()
    return list(torch.autograd.grad(value, inputs))


@pytest.mark.parametrize("mmax", [2, 1])
def test_third_derivatives(mmax: int) -> None:
    """Of the kernel in float32 against the reference in float64."""
    given = blocks_of(7, 8, mmax)
    results = []
    for function, dtype in ((gate, torch.float32), (reference.gate, torch.float64)):
        blocks = [block.detach().to(dtype).requires_grad_() for block in given]
        results.append([item.double() for item in third_derivatives(function(blocks, 2, 8), blocks)])
    for a, b in zip(*results, strict=True):
        scale = b.abs().max()
        torch.testing.assert_close(a / scale, b / scale, **tolerances.GATE_HIGHER)


@pytest.mark.parametrize("mmax", [2, 1])
def test_third_derivatives_are_those_of_the_reference_in_float64(mmax: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel serves float32 alone; its op's derivatives hold for float64 too, in which they can be compared closely."""
    monkeypatch.setattr(module, "has_kernel", lambda blocks, channels: True)
    monkeypatch.setattr(module, "check_tensor", lambda *arguments: None)
    given = blocks_of(3, 4, mmax, torch.float64)
    results = []
    for function in (gate, reference.gate):
        blocks = [block.detach().requires_grad_() for block in given]
        results.append(third_derivatives(function(blocks, 2, 4), blocks))
    for a, b in zip(*results, strict=True):
        scale = b.abs().max()
        torch.testing.assert_close(a / scale, b / scale, **tolerances.GATE_HIGHER64)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["block 0", "block 1", "block 2", "gradient 0", "gradient 1", "gradient 2"])
def test_memory_need_not_be_contiguous(name: str, layout: str) -> None:
    problem = Problem(5, 2, dtype=torch.float32)
    inputs = {
        **{f"block {m}": block for m, block in enumerate(problem.blocks(2, extra=EXTRA))},
        **{f"gradient {m}": block.detach() for m, block in enumerate(problem.blocks(2))},
    }
    results = []
    for values in (inputs, {**inputs, name: laid_out(inputs[name], layout)}):
        tensors = list(values.values())
        outputs = gate(tensors[:3], 2, 2)
        results.append([*outputs, *gradients_for(outputs, tensors[:3], tensors[3:])])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


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
        torch.testing.assert_close(a.float(), b, **tolerances.GATE_16BIT)


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
