"""The gather-and-rotate kernel against the reference: values, gradients, both ways to sum, dense rotations, compilation."""

from __future__ import annotations

import pytest
import torch

from edgewise.errors import PropertyUnavailableError
from edgewise.ops import reference
from edgewise.ops.gather_rotate import _gather_rotate, gather_rotate, gather_rotate_backward
from edgewise.ops.launch import MAX_PROGRAMS
from tests import tolerances
from tests.ops.kernel_problems import (
    LAYOUTS,
    SIZES,
    Problem,
    assert_close,
    count_compilations,
    deterministic_algorithms,
    gradients,
    gradients_for,
    laid_out,
    poisoned_memory,
    same_order,
)

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("to_atoms", [True, False])
@pytest.mark.parametrize("mmax", [2, 1])
@pytest.mark.parametrize(("n_edges", "channels"), SIZES)
def test_values_and_gradients(
    n_edges: int, channels: int, mmax: int, to_atoms: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(n_edges, channels, mmax)
    dense, packed = problem.dense, problem.packed
    expected = reference.gather_rotate(problem.nodes, problem.edge_index, dense, problem.radial, 2)
    with poisoned_memory(monkeypatch):
        found = gather_rotate(problem.nodes, problem.edge_index, packed, problem.radial, 2, to_atoms=to_atoms)
        to_nodes, to_packed, to_radial = gradients(found, [problem.nodes, packed, problem.radial])
    assert_close(found, expected, tolerances.KERNEL64)
    nodes, rotations, radial = gradients(expected, [problem.nodes, dense, problem.radial])
    assert_close([to_nodes, to_radial], [nodes, radial], tolerances.KERNEL64)
    # The reference has gradients off the blocks too, which no rotation can follow.
    inside = problem.unpacked(torch.ones_like(packed))
    assert_close([problem.unpacked(to_packed)], [rotations * inside], tolerances.KERNEL64)


@pytest.mark.parametrize("mmax", [2, 1])
def test_rotation_and_radial_gradients_do_not_depend_on_how_atoms_are_summed(mmax: int) -> None:
    problem = Problem(17, 8, mmax)
    packed = problem.packed
    direct = gather_rotate(problem.nodes, problem.edge_index, packed, problem.radial, 2, to_atoms=True)
    kept = gather_rotate(problem.nodes, problem.edge_index, packed, problem.radial, 2, to_atoms=False)
    a, b = (gradients(item, [problem.nodes, packed, problem.radial]) for item in (direct, kept))
    assert all(torch.equal(x, y) for x, y in zip(direct, kept, strict=True))
    assert torch.equal(a[1], b[1])
    assert torch.equal(a[2], b[2])
    assert_close(a[:1], b[:1], tolerances.REORDERED64)


@pytest.mark.parametrize("mmax", [2, 1])
def test_dense_rotations_are_packed_on_entry(mmax: int) -> None:
    problem = Problem(7, 4, mmax)
    dense, packed = problem.dense, problem.packed
    from_dense = gather_rotate(problem.nodes, problem.edge_index, dense, problem.radial, 2)
    from_packed = gather_rotate(problem.nodes, problem.edge_index, packed, problem.radial, 2)
    assert all(torch.equal(x, y) for x, y in zip(from_dense, from_packed, strict=True))
    (to_dense,), (to_packed,) = gradients(from_dense, [dense]), gradients(from_packed, [packed])
    assert torch.equal(to_dense, problem.unpacked(to_packed))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "name", ["nodes", "edge_index", "rotations", "radial", "gradient 0", "gradient 1", "gradient 2"]
)
def test_memory_need_not_be_contiguous(name: str, layout: str) -> None:
    problem = Problem(5, 2)
    inputs = {
        "nodes": problem.nodes,
        "edge_index": problem.edge_index,
        "rotations": problem.packed,
        "radial": problem.radial,
        **{f"gradient {m}": block.detach() for m, block in enumerate(problem.blocks(4))},
    }
    results = []
    with same_order():
        for values in (inputs, {**inputs, name: laid_out(inputs[name], layout)}):
            nodes, edge_index, rotations, radial, *factors = values.values()
            blocks = gather_rotate(nodes, edge_index, rotations, radial, 2)
            results.append([*blocks, *gradients_for(blocks, [nodes, rotations, radial], factors)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_few_programs_take_several_edges_each() -> None:
    problem = Problem(17, 4)
    packed = problem.packed
    every = gather_rotate(problem.nodes, problem.edge_index, packed, problem.radial, 2)
    few = gather_rotate(problem.nodes, problem.edge_index, packed, problem.radial, 2, max_programs=3)
    assert all(torch.equal(x, y) for x, y in zip(every, few, strict=True))


def test_deterministic_algorithms_keep_gradients_per_edge() -> None:
    problem = Problem(17, 4)
    packed = problem.packed
    found = gather_rotate(problem.nodes, problem.edge_index, packed, problem.radial, 2)
    kept = gather_rotate(problem.nodes, problem.edge_index, packed, problem.radial, 2, to_atoms=False)
    with deterministic_algorithms():
        first, second, expected = (
            torch.autograd.grad(item, problem.nodes, [torch.ones_like(block) for block in item], retain_graph=True)[0]
            for item in (found, found, kept)
        )
    assert torch.equal(first, second)
    assert torch.equal(first, expected)


def test_second_derivatives_are_refused() -> None:
    problem = Problem(3, 4)
    found = gather_rotate(problem.nodes, problem.edge_index, problem.packed, problem.radial, 2)
    total = sum(block.square().sum() for block in found)
    (gradient,) = torch.autograd.grad(total, problem.nodes, create_graph=True)
    with pytest.raises(PropertyUnavailableError, match="execution_mode='general'"):
        gradient.sum().backward()


@pytest.mark.parametrize("shape", [(4, 81), (4, 8, 9), (4, 9, 9, 1)])
def test_rotations_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    problem = Problem(4, 4)
    with pytest.raises(ValueError, match="35"):
        gather_rotate(
            problem.nodes, problem.edge_index, torch.zeros(shape, device=problem.nodes.device), problem.radial, 2
        )


def test_other_degrees_are_refused() -> None:
    problem = Problem(4, 4)
    with pytest.raises(ValueError, match="lmax = 2, not 3"):
        gather_rotate(problem.nodes, problem.edge_index, problem.packed, problem.radial, 3)


@pytest.mark.parametrize("mmax", [2, 1])
def test_registration(mmax: int) -> None:
    problem = Problem(3, 4, mmax)
    inputs = (problem.nodes, problem.edge_index, problem.packed, problem.radial)
    torch.library.opcheck(_gather_rotate, (*inputs, True, MAX_PROGRAMS))
    blocks = [torch.randn_like(block) for block in _gather_rotate(*inputs, True, MAX_PROGRAMS)]
    plain = [tensor.detach() for tensor in inputs]
    torch.library.opcheck(gather_rotate_backward, (*blocks, *plain, True, MAX_PROGRAMS))


def test_changing_numbers_of_edges_compile_once() -> None:
    def run(*arguments: torch.Tensor) -> torch.Tensor:
        nodes, edge_index, packed, radial = arguments
        total = torch.zeros((), dtype=nodes.dtype, device=nodes.device)
        for block in gather_rotate(nodes, edge_index, packed, radial, 2):
            total = total + block.square().sum()
        return total

    problems = [Problem(n, 4) for n in (7, 11, 3, 13)]
    calls = [(item.nodes, item.edge_index, item.packed, item.radial) for item in problems]
    assert count_compilations(run, calls) == 1
