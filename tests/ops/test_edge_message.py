"""The written-out message against the reference: values, every first derivative, second derivatives, edge cases."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from edgewise import so3
from edgewise.ops import edge_message, reference
from edgewise.ops.reference import EdgeSegment, MessageShape, MessageWeights, SO2Weights
from edgewise.ops.workspace import Workspace
from tests import tolerances

SHAPES = [
    MessageShape(2, 2, 8, 8),
    MessageShape(2, 1, 4, 6),
    MessageShape(4, 2, 4, 3),
    MessageShape(1, 1, 5, 4),
    MessageShape(3, 3, 2, 2),
    MessageShape(2, 0, 4, 4),
]


EDGE_CHANNELS = 3


def random_weights(shape: MessageShape, n_in: int, n_out: int, extra: int, generator: torch.Generator) -> SO2Weights:
    blocks = []
    for m, size in enumerate(shape.sizes):
        signs = 1 if m == 0 else 2
        rows, columns = signs * size * n_out + (extra if m == 0 else 0), signs * size * n_in
        blocks.append(torch.randn(rows, columns, dtype=torch.float64, generator=generator) / columns**0.5)
    return SO2Weights(tuple(blocks), torch.randn(blocks[0].shape[0], dtype=torch.float64, generator=generator))


def random_message_weights(shape: MessageShape, generator: torch.Generator) -> MessageWeights:
    n_radial = 2 * shape.channels * sum(shape.sizes)
    return MessageWeights(
        conv_1=random_weights(shape, 2 * shape.channels, shape.hidden, shape.lmax * shape.hidden, generator),
        conv_2=random_weights(shape, shape.hidden, shape.channels, 0, generator),
        radial=torch.randn(n_radial, EDGE_CHANNELS, dtype=torch.float64, generator=generator),
        radial_bias=torch.randn(n_radial, dtype=torch.float64, generator=generator),
    )


class Problem:
    """Random inputs of the op for a shape, a number of edges and a number of distinct weights."""

    def __init__(self, shape: MessageShape, n_edges: int, n_mixtures: int = 1, n_atoms: int = 5) -> None:
        generator = torch.Generator().manual_seed(n_edges)
        self.shape = shape
        self.edge_index = torch.randint(0, n_atoms, (2, n_edges), generator=generator)
        self.edge_index[1] = self.edge_index[1].sort().values
        directions = torch.nn.functional.normalize(
            torch.randn(n_edges, 3, dtype=torch.float64, generator=generator), dim=1
        )
        rotations = so3.edge_rotations(directions, shape.lmax, shape.mmax)
        envelope = torch.rand(n_edges, 1, 1, dtype=torch.float64, generator=generator)
        nodes = torch.randn(n_atoms, (shape.lmax + 1) ** 2, shape.channels, dtype=torch.float64, generator=generator)
        hidden = torch.randn(n_edges, EDGE_CHANNELS, dtype=torch.float64, generator=generator)
        self.inputs = [nodes, rotations, rotations * envelope, hidden]
        self.weights = [random_message_weights(shape, generator) for _ in range(n_mixtures)]
        bounds = [n_edges * item // n_mixtures for item in range(n_mixtures + 1)]
        self.segments = tuple(EdgeSegment(low, high, item) for item, (low, high) in enumerate(pairwise(bounds)))
        self.cotangent = torch.randn(nodes.shape, dtype=torch.float64, generator=generator)

    def run(self, op: object, inputs: list[Tensor]) -> Tensor:
        nodes, rotations, envelope_rotations, hidden = inputs
        return op(  # type: ignore[operator]
            nodes, self.edge_index, rotations, envelope_rotations, hidden, self.weights, self.segments, self.shape
        )

    def leaves(self) -> list[Tensor]:
        return [item.clone().requires_grad_() for item in self.inputs]


@pytest.mark.parametrize("n_edges", [0, 1, 13, edge_message.EDGES_IN_CACHE, edge_message.EDGES_IN_CACHE + 1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_first_derivatives(shape: MessageShape, n_edges: int) -> None:
    problem = Problem(shape, n_edges)
    results, gradients = [], []
    for op in (reference.edge_message, edge_message.edge_message):
        leaves = problem.leaves()
        results.append(problem.run(op, leaves))
        gradients.append(torch.autograd.grad(results[-1], leaves, problem.cotangent))
    torch.testing.assert_close(results[1], results[0], **tolerances.WRITTEN_OUT)
    for given, expected in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(given, expected, **tolerances.WRITTEN_OUT_FIRST)


@pytest.mark.parametrize("n_edges", [edge_message.EDGES_AT_ONCE, edge_message.EDGES_AT_ONCE + 1])
def test_one_run_and_one_edge_more(n_edges: int) -> None:
    problem = Problem(MessageShape(1, 1, 2, 2), n_edges)
    results = [problem.run(op, problem.inputs) for op in (reference.edge_message, edge_message.edge_message)]
    torch.testing.assert_close(results[1], results[0], **tolerances.WRITTEN_OUT)


@pytest.mark.parametrize("n_mixtures", [2, 3])
def test_each_run_of_edges_takes_its_own_weights(n_mixtures: int) -> None:
    problem = Problem(SHAPES[0], 300, n_mixtures)
    gradients = []
    for op in (reference.edge_message, edge_message.edge_message):
        leaves = problem.leaves()
        gradients.append(torch.autograd.grad(problem.run(op, leaves), leaves, problem.cotangent))
    for given, expected in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(given, expected, **tolerances.WRITTEN_OUT_FIRST)


def test_nothing_uninitialised_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece of scratch memory starts as NaN; none may reach a result."""
    new_empty = torch.Tensor.new_empty

    def poisoned(tensor: Tensor, *args: object, **kwargs: object) -> Tensor:
        made = new_empty(tensor, *args, **kwargs)  # type: ignore[arg-type]
        return made.fill_(torch.nan)

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    monkeypatch.setattr(torch, "empty_like", lambda tensor: torch.full_like(tensor, torch.nan))
    problem = Problem(SHAPES[0], 300)
    leaves = problem.leaves()
    result = problem.run(edge_message.edge_message, leaves)
    assert torch.isfinite(result).all()
    for gradient in torch.autograd.grad(result, leaves, problem.cotangent):
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_second_derivatives_go_through_the_reference(shape: MessageShape) -> None:
    problem = Problem(shape, 7, n_atoms=3)
    outputs = []
    for op in (reference.edge_message, edge_message.edge_message):
        leaves = problem.leaves()
        first = torch.autograd.grad(problem.run(op, leaves), leaves, problem.cotangent, create_graph=True)
        scalar = sum(item.square().sum() for item in first)
        outputs.append(torch.autograd.grad(scalar, leaves))
    for given, expected in zip(outputs[1], outputs[0], strict=True):
        torch.testing.assert_close(given, expected, **tolerances.WRITTEN_OUT_SECOND)


def test_second_derivatives_of_two_messages_in_a_row() -> None:
    """Nodes and both kinds of rotations depend on each other here, as in a network; nothing may count twice."""
    problem = Problem(SHAPES[0], 7, n_atoms=3)
    outputs = []
    for op in (reference.edge_message, edge_message.edge_message):
        nodes, rotations, _, hidden = problem.leaves()
        for _ in range(2):
            nodes = nodes + problem.run(op, [nodes, rotations, 0.3 * rotations, hidden])
        (first,) = torch.autograd.grad(nodes.square().sum(), rotations, create_graph=True)
        outputs.append(torch.autograd.grad(first.square().sum(), [rotations, hidden]))
    for given, expected in zip(outputs[1], outputs[0], strict=True):
        torch.testing.assert_close(given, expected, **tolerances.WRITTEN_OUT_SECOND)


def test_reference_derivatives_equal_finite_differences() -> None:
    problem = Problem(MessageShape(2, 1, 2, 2), 3, n_atoms=2)
    inputs = problem.leaves()
    assert torch.autograd.gradcheck(lambda *items: problem.run(reference.edge_message, list(items)), inputs)
    assert torch.autograd.gradgradcheck(lambda *items: problem.run(reference.edge_message, list(items)), inputs)


def test_weights_that_need_gradients_get_them() -> None:
    problem = Problem(SHAPES[0], 20)
    bias = problem.weights[0].conv_1.bias.requires_grad_()
    (gradient,) = torch.autograd.grad(problem.run(edge_message.edge_message, problem.leaves()).sum(), bias)
    assert gradient.abs().max() > 0


def test_a_workspace_gives_the_same_bits_and_its_memory_again() -> None:
    """The second call runs in the memory of the first, poisoned in between, and a smaller one too."""
    workspace = Workspace()
    for n_edges in (700, 650, 701):
        problem = Problem(SHAPES[0], n_edges)
        outputs = []
        for active in (False, True):
            leaves = problem.leaves()
            if active:
                with workspace.active():
                    for buffer in (*workspace._buffers, *workspace._named.values()):
                        buffer.fill_(torch.nan)
                    result = problem.run(edge_message.edge_message, leaves)
                    gradients = torch.autograd.grad(result, leaves, problem.cotangent)
            else:
                result = problem.run(edge_message.edge_message, leaves)
                gradients = torch.autograd.grad(result, leaves, problem.cotangent)
            outputs.append((result, *gradients))
        for without, with_workspace in zip(*outputs, strict=True):
            assert torch.equal(without, with_workspace)
    assert workspace.n_bytes > 0
