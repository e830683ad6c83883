"""The message composed of the mode's operations: each of the six against the path that it replaces, and mixtures."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from edgewise.engine.precision import fixed_order
from edgewise.ops import REFERENCE, fast, packed_rotation
from edgewise.ops.fast import Optimizations, fast_ops
from edgewise.ops.reference import EdgeSegment, MessageShape
from tests import tolerances
from tests.ops.kernel_problems import DEVICE, Problem, assert_close, gradients, recorded
from tests.ops.test_edge_message import random_message_weights

pytestmark = pytest.mark.kernels

N_EDGES, CHANNELS, HIDDEN = 17, 8, 8

NAMES = [item.name for item in fields(Optimizations)]


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
        assert_close([found[0], *found[1]], [expected[0], *expected[1]], tolerances.MESSAGE64)


@pytest.mark.parametrize("name", NAMES)
def test_each_equals_the_path_that_it_replaces_in_float32(name: str) -> None:
    with_it = results(Optimizations(), 2, torch.float32)
    without = results(replace(Optimizations(), **{name: False}), 2, torch.float32)
    for a, b in zip([with_it[0], *with_it[1]], [without[0], *without[1]], strict=True):
        scale = max(1.0, float(b.abs().max()))
        torch.testing.assert_close(a / scale, b / scale, **tolerances.OPTIMIZATION32)


def test_blocks_that_are_kept_equal_the_joined_path() -> None:
    # Sums that a GPU adds in any order differ by more than the two paths do.
    with fixed_order():
        kept = results(Optimizations(sum_in_kernel=False), 2, torch.float32)
        joined = results(Optimizations(sum_in_kernel=False, blocks_kept=False), 2, torch.float32)
    for a, b in zip([kept[0], *kept[1]], [joined[0], *joined[1]], strict=True):
        torch.testing.assert_close(a, b, **tolerances.BLOCKS_KEPT)


FEW_EDGES, FEW_PROGRAMS, NARROW = 7, 5, 4
"""Of a message whose launches and allocations are looked at. Every width of it is that of a coefficient."""

TRACES: dict[str, tuple[object, object]] = {
    # What is joined to one tensor: the blocks behind the first map with the gate scalars, behind the gate, behind the
    # second map.
    "blocks_kept": ([], [(FEW_EDGES, 11 * NARROW), (FEW_EDGES, 9 * NARROW), (FEW_EDGES, 9 * NARROW)]),
    # Launches, forward and backward.
    "gate_kernel": (2, 0),
    # Programs along the edges of all launches.
    "programs_follow_edges": ({FEW_EDGES}, {FEW_PROGRAMS}),
    # What the backward kernel is told, and gradients that are kept for each edge.
    "gradients_to_atoms": (([True], 0), ([False], 1)),
    # What the kernels of both directions are told, and messages that are kept for each edge.
    "sum_in_kernel": (([True], [True], 0), ([False], [False], 1)),
    # A rotation's shape, and how often a dense one is packed before a launch.
    "packed_rotations": (((35,), 0), ((9, 9), 2)),
}
"""What each optimization leaves behind in what is launched and allocated: with it, without it."""


def traces(chosen: Optimizations, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Run a message forward and backward, from edge vectors on, and return what each optimization has left behind."""
    problem = Problem(FEW_EDGES, NARROW, dtype=torch.float32)
    weights = random_message_weights(MessageShape(2, 2, NARROW, NARROW), torch.Generator().manual_seed(0))
    for name, value in vars(weights).items():
        object.__setattr__(weights, name, _moved(value, torch.float32))
    hidden = problem.random(FEW_EDGES, weights.radial.shape[1])
    edge_vec = (problem.directions.double() * 1.5).requires_grad_()
    centres = torch.linspace(0, 3, 4, dtype=torch.float64, device=DEVICE)
    joined: list[tuple[int, ...]] = []
    packed: list[tuple[int, ...]] = []
    join, pack = fast._join, packed_rotation._pack

    def noted_join(blocks: list[Tensor]) -> Tensor:
        made = join(blocks)
        joined.append(tuple(made.shape))
        return made

    def noted_pack(rotations: Tensor) -> Tensor:
        packed.append(tuple(rotations.shape))
        return pack(rotations)

    with monkeypatch.context() as patch:
        patch.setattr(fast, "FIXED_PROGRAMS", FEW_PROGRAMS)
        patch.setattr(fast, "_join", noted_join)
        patch.setattr(packed_rotation, "_pack", noted_pack)
        record = recorded(patch)
        ops = fast_ops(chosen)
        geometry = ops.edge_geometry(edge_vec, 3.0, centres, 2, 2, torch.float32)
        out = ops.edge_message(
            problem.nodes,
            problem.edge_index,
            geometry.rotations,
            geometry.envelope_rotations,
            hidden,
            [weights],
            [EdgeSegment(0, FEW_EDGES, 0)],
            MessageShape(2, 2, NARROW, NARROW),
        )
        gradients([out], [problem.nodes, edge_vec])

    def told(module: str, name: str) -> list[object]:
        return [item.constants[name] for item in record.launches if item.module == module and name in item.constants]

    return {
        "blocks_kept": joined,
        "gate_kernel": sum(item.module == "gate" for item in record.launches),
        "programs_follow_edges": {item.grid[0] for item in record.launches},
        "gradients_to_atoms": (
            told("gather_rotate", "TO_ATOMS"),
            record.allocations.count(("gather_rotate", (FEW_EDGES, 9, 2 * NARROW))),
        ),
        "sum_in_kernel": (
            told("rotate_scatter", "ACCUMULATE"),
            told("rotate_scatter", "GATHER"),
            record.allocations.count(("rotate_scatter", (FEW_EDGES, 9, NARROW))),
        ),
        "packed_rotations": (tuple(geometry.rotations.shape[1:]), len(packed)),
    }


@pytest.mark.parametrize("switched_off", [[], NAMES, *([name] for name in NAMES)], ids=", ".join)
def test_each_changes_what_runs_and_nothing_else(switched_off: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = replace(Optimizations(), **dict.fromkeys(switched_off, False))
    assert traces(chosen, monkeypatch) == {name: both[name in switched_off] for name, both in TRACES.items()}


def test_all_are_on_unless_something_else_is_chosen() -> None:
    assert Optimizations.none() == Optimizations(**dict.fromkeys(NAMES, False))
    assert Optimizations() == Optimizations(**dict.fromkeys(NAMES, True))
    assert list(TRACES) == NAMES


def test_programs_are_limited_to_those_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "MAX_PROGRAMS", 3)
    assert traces(Optimizations(), monkeypatch)["programs_follow_edges"] == {3}
