"""The message composed of the mode's operations: each of the six against the path that it replaces, and mixtures."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from edgewise.ops import REFERENCE
from edgewise.ops.fast import Optimizations, fast_ops
from edgewise.ops.reference import EdgeSegment, MessageShape
from tests.ops.kernel_problems import DEVICE, Problem, assert_close, gradients
from tests.ops.test_edge_message import random_message_weights

pytestmark = pytest.mark.kernels

N_EDGES, CHANNELS, HIDDEN = 17, 8, 8


def results(
    chosen: Optimizations | None, mmax: int, dtype: torch.dtype, n_mixtures: int = 1
) -> tuple[Tensor, list[Tensor]]:
    """Return the message of one problem and its gradients; None takes the reference operations."""
    problem = Problem(N_EDGES, CHANNELS, mmax, dtype)
    shape = MessageShape(2, mmax, CHANNELS, HIDDEN)
    generator = torch.Generator().manual_seed(0)
    weights = [random_message_weights(shape, generator) for _ in range(n_mixtures)]
    for item in weights:
        for name, value in vars(item).items():
            object.__setattr__(item, name, _moved(value, dtype))
    hidden = problem.random(N_EDGES, weights[0].radial.shape[1])
    packed = chosen is not None and chosen.packed_rotations
    rotations = problem.packed if packed else problem.dense
    envelope_rotations = (rotations.detach() * 0.7).requires_grad_()
    cuts = [0, *(N_EDGES * (i + 1) // n_mixtures for i in range(n_mixtures))]
    segments = [EdgeSegment(cuts[i], cuts[i + 1], i) for i in range(n_mixtures)]
    ops = REFERENCE if chosen is None else fast_ops(chosen)
    out = ops.edge_message(
        problem.nodes, problem.edge_index, rotations, envelope_rotations, hidden, weights, segments, shape
    )
    found = gradients([out], [problem.nodes, hidden, rotations, envelope_rotations])
    inside = problem.unpacked(torch.ones_like(problem.packed))
    found[2:] = [problem.unpacked(item) if packed else item * inside for item in found[2:]]
    return out.detach(), found


def _moved(value: object, dtype: torch.dtype) -> object:
    if isinstance(value, Tensor):
        return value.to(DEVICE, dtype)
    return replace(value, blocks=tuple(_moved(b, dtype) for b in value.blocks), bias=_moved(value.bias, dtype))


@pytest.mark.parametrize("mmax", [2, 1])
@pytest.mark.parametrize("n_mixtures", [1, 3])
def test_all_and_none_equal_the_reference(mmax: int, n_mixtures: int) -> None:
    expected = results(None, mmax, torch.float64, n_mixtures)
    for chosen in (Optimizations(), Optimizations.none()):
        found = results(chosen, mmax, torch.float64, n_mixtures)
        assert_close([found[0], *found[1]], [expected[0], *expected[1]], 1e-12)


@pytest.mark.parametrize("name", [item.name for item in fields(Optimizations)])
def test_each_equals_the_path_that_it_replaces_in_float32(name: str) -> None:
    with_it = results(Optimizations(), 2, torch.float32)
    without = results(replace(Optimizations(), **{name: False}), 2, torch.float32)
    for a, b in zip([with_it[0], *with_it[1]], [without[0], *without[1]], strict=True):
        scale = max(1.0, float(b.abs().max()))
        torch.testing.assert_close(a / scale, b / scale, rtol=1e-5, atol=1e-6)


def test_blocks_that_are_kept_equal_the_joined_path() -> None:
    kept = results(Optimizations(sum_in_kernel=False), 2, torch.float32)
    joined = results(Optimizations(sum_in_kernel=False, blocks_kept=False), 2, torch.float32)
    for a, b in zip([kept[0], *kept[1]], [joined[0], *joined[1]], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
