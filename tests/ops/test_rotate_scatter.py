"""The rotate-and-sum kernel against the reference: values, gradients, both ways to sum, fewer orders, views, compilation."""

from __future__ import annotations

import pytest
import torch

from edgewise.errors import PropertyUnavailableError
from edgewise.ops import reference
from edgewise.ops.launch import MAX_PROGRAMS
from edgewise.ops.rotate_scatter import _rotate_scatter, rotate_scatter, rotate_scatter_backward
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


@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize(("mmax", "orders"), [(2, 2), (2, 1), (2, 0), (1, 1), (1, 0)])
@pytest.mark.parametrize(("n_edges", "channels"), SIZES)
def test_values_and_gradients(
    n_edges: int, channels: int, mmax: int, orders: int, accumulate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(n_edges, channels, mmax)
    dense, packed, blocks = problem.dense, problem.packed, problem.blocks(channels, orders=orders)
    place = (problem.edge_index,)
    expected = reference.rotate_scatter(blocks, *place, dense, problem.n_atoms, channels)
    with poisoned_memory(monkeypatch):
        found = rotate_scatter(blocks, *place, packed, problem.n_atoms, channels, accumulate=accumulate)
        *to_blocks, to_packed = gradients([found], [*blocks, packed])
    assert_close([found], [expected], tolerances.KERNEL64)
    *wanted, rotations = gradients([expected], [*blocks, dense])
    assert_close(to_blocks, wanted, tolerances.KERNEL64)
    inside = problem.unpacked(torch.ones_like(packed))
    assert_close([problem.unpacked(to_packed)], [rotations * inside], tolerances.KERNEL64)


@pytest.mark.parametrize("mmax", [2, 1])
def test_gradients_do_not_depend_on_how_targets_are_summed(mmax: int) -> None:
    problem = Problem(17, 8, mmax)
    packed, blocks = problem.packed, problem.blocks(8)
    found = [
        rotate_scatter(blocks, problem.edge_index, packed, problem.n_atoms, 8, accumulate=choice)
        for choice in (True, False)
    ]
    assert_close(found[:1], found[1:], tolerances.REORDERED64)
    first, second = (gradients([item], [*blocks, packed]) for item in found)
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


@pytest.mark.parametrize("mmax", [2, 1])
def test_dense_rotations_are_packed_on_entry(mmax: int) -> None:
    problem = Problem(7, 4, mmax)
    dense, packed, blocks = problem.dense, problem.packed, problem.blocks(4)
    with deterministic_algorithms():
        from_dense = rotate_scatter(blocks, problem.edge_index, dense, problem.n_atoms, 4)
        from_packed = rotate_scatter(blocks, problem.edge_index, packed, problem.n_atoms, 4)
    assert torch.equal(from_dense, from_packed)
    (to_dense,), (to_packed,) = gradients([from_dense], [dense]), gradients([from_packed], [packed])
    assert torch.equal(to_dense, problem.unpacked(to_packed))


def test_edge_degree_embedding_of_packed_rotations_equals_that_of_dense_ones() -> None:
    problem = Problem(17, 8)
    packed, radial, envelope = problem.packed, problem.blocks(8, orders=0), problem.envelope
    dense = problem.unpacked(packed.detach()).requires_grad_()
    results = []
    for rotations in (dense, packed):
        scaled = rotations * envelope.reshape(-1, *[1] * (rotations.dim() - 1))
        # GPUs add in another order every time, in the kernel and in `index_add` alike, unless they are told not to.
        with deterministic_algorithms():
            summed = rotate_scatter(radial, problem.edge_index, scaled, problem.n_atoms, 8)
        results.append((summed, *gradients([summed], [radial[0], rotations])))
    from_dense, from_packed = results
    assert torch.equal(from_dense[0], from_packed[0])
    assert torch.equal(from_dense[1], from_packed[1])
    assert torch.equal(from_dense[2], problem.unpacked(from_packed[2]))
    plain = reference.rotate_scatter(radial, problem.edge_index, dense * envelope[:, None, None], problem.n_atoms, 8)
    to_radial, to_dense = gradients([plain], [radial[0], dense])
    assert_close([from_packed[0], from_packed[1]], [plain, to_radial], tolerances.EDGE_DEGREE_RADIAL64)
    inside = problem.unpacked(torch.ones_like(packed))
    assert_close([problem.unpacked(from_packed[2])], [to_dense * inside], tolerances.EDGE_DEGREE_ROTATION64)


def test_blocks_may_be_views_of_one_tensor() -> None:
    problem = Problem(7, 4)
    packed, blocks = problem.packed, [block.detach() for block in problem.blocks(4)]
    joined = torch.cat(blocks, dim=1)
    views = torch.split(joined, [block.shape[1] for block in blocks], dim=1)
    arguments = (problem.edge_index, packed, problem.n_atoms, 4)
    with deterministic_algorithms():
        assert torch.equal(rotate_scatter(views, *arguments), rotate_scatter(blocks, *arguments))


@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["block 0", "block 1", "block 2", "edge_index", "rotations", "gradient"])
def test_memory_need_not_be_contiguous(name: str, layout: str, accumulate: bool) -> None:
    problem = Problem(5, 2)
    inputs = {
        **{f"block {m}": block for m, block in enumerate(problem.blocks(2))},
        "edge_index": problem.edge_index,
        "rotations": problem.packed,
        "gradient": problem.random(problem.n_atoms, 9, 2).detach(),
    }
    results = []
    with same_order():
        for values in (inputs, {**inputs, name: laid_out(inputs[name], layout)}):
            *blocks, edge_index, rotations, gradient = values.values()
            nodes = rotate_scatter(blocks, edge_index, rotations, problem.n_atoms, 2, accumulate=accumulate)
            results.append([nodes, *gradients_for([nodes], [*blocks, rotations], [gradient])])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_few_programs_take_several_edges_each() -> None:
    problem = Problem(17, 4)
    packed, blocks = problem.packed, problem.blocks(4)
    arguments = (blocks, problem.edge_index, packed, problem.n_atoms, 4)
    with deterministic_algorithms():
        assert torch.equal(rotate_scatter(*arguments), rotate_scatter(*arguments, max_programs=3))


def test_deterministic_algorithms_sum_after_the_kernel() -> None:
    problem = Problem(17, 4)
    packed, blocks = problem.packed, problem.blocks(4)
    arguments = (blocks, problem.edge_index, packed, problem.n_atoms, 4)
    with deterministic_algorithms():
        assert torch.equal(rotate_scatter(*arguments), rotate_scatter(*arguments, accumulate=False))


def test_second_derivatives_are_refused() -> None:
    problem = Problem(3, 4)
    blocks = problem.blocks(4)
    found = rotate_scatter(blocks, problem.edge_index, problem.packed, problem.n_atoms, 4)
    (gradient,) = torch.autograd.grad(found.square().sum(), blocks[0], create_graph=True)
    with pytest.raises(PropertyUnavailableError, match="execution_mode='general'"):
        gradient.sum().backward()


@pytest.mark.parametrize("mmax", [2, 1])
def test_registration(mmax: int) -> None:
    problem = Problem(3, 4, mmax)
    blocks = problem.blocks(4)
    blocks += [problem.random(3, 0)] * (3 - len(blocks))
    inputs = (*blocks, problem.edge_index, problem.packed)
    torch.library.opcheck(_rotate_scatter, (*inputs, problem.n_atoms, True, MAX_PROGRAMS))
    gradient = torch.randn(problem.n_atoms, 9, 4, dtype=torch.float64, device=blocks[0].device)
    plain = [tensor.detach() for tensor in inputs]
    torch.library.opcheck(rotate_scatter_backward, (gradient, *plain, True, MAX_PROGRAMS))


def test_changing_numbers_of_edges_compile_once() -> None:
    def run(edge_index: torch.Tensor, packed: torch.Tensor, *blocks: torch.Tensor) -> torch.Tensor:
        return rotate_scatter(blocks, edge_index, packed, 5, 4)

    problems = [Problem(n, 4) for n in (7, 11, 3, 13)]
    assert count_compilations(run, [(item.edge_index, item.packed, *item.blocks(4)) for item in problems]) == 1
