"""Tensors of more than 2^31 values, whose places 32 bits do not hold: the last edges get what they get by themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from edgewise.ops.gate import gate
from edgewise.ops.gather_rotate import gather_rotate
from edgewise.ops.rotate_scatter import rotate_scatter
from tests import tolerances
from tests.ops.kernel_problems import gradients_for

CHANNELS = 128
N_LAST = 7
"""Edges that are compared. They have atoms of their own, so that no other edge adds to these."""
N_ATOMS, N_OWN = 1000, 5
NEEDED = 90 * 1024**3
"""Bytes: the largest problem is the gate's, 69 GB."""


def _too_small() -> bool:
    return not torch.cuda.is_available() or torch.cuda.get_device_properties(0).total_memory < NEEDED


pytestmark = [
    pytest.mark.kernels,
    pytest.mark.gpu,
    pytest.mark.skipif(_too_small(), reason="needs a CUDA device with 90 GiB"),
]


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    """Leave nothing behind for the next problem to be fitted between."""
    torch.cuda.empty_cache()
    yield
    torch.cuda.empty_cache()


def n_edges_for(columns: int) -> int:
    """Return so many edges that the rows of the last ones begin beyond 2^31 values."""
    return 2**31 // columns + 1 + N_LAST


def random(*shape: int) -> Tensor:
    return torch.empty(shape, device="cuda").normal_().requires_grad_()


def random_edges(n_edges: int) -> Tensor:
    edge_index = torch.randint(0, N_ATOMS - N_OWN, (2, n_edges), device="cuda")
    edge_index[:, -N_LAST:] = torch.randint(N_ATOMS - N_OWN, N_ATOMS, (2, N_LAST), device="cuda")
    return edge_index


def last(tensor: Tensor) -> Tensor:
    return tensor.detach()[-N_LAST:].clone().requires_grad_(tensor.requires_grad)


def own(tensor: Tensor) -> Tensor:
    return tensor.detach()[-N_OWN:].clone().requires_grad_(tensor.requires_grad)


def last_edges(edge_index: Tensor) -> Tensor:
    return edge_index[:, -N_LAST:] - (N_ATOMS - N_OWN)


def assert_same_bits(found: list[Tensor], expected: list[Tensor]) -> None:
    assert all(torch.equal(a[-N_LAST:], b) for a, b in zip(found, expected, strict=True))


def assert_same_sums(found: Tensor, expected: Tensor) -> None:
    """Compare sums at atoms, which the device adds in any order."""
    torch.testing.assert_close(found[-N_OWN:], expected, **tolerances.OPTIMIZATION32)


@pytest.mark.parametrize("to_atoms", [True, False])
def test_gather_rotate(to_atoms: bool) -> None:
    torch.manual_seed(0)
    n_edges = n_edges_for(12 * CHANNELS)
    nodes, edge_index = random(N_ATOMS, 9, CHANNELS), random_edges(n_edges)
    rotations, radial = random(n_edges, 35), random(n_edges, 12 * CHANNELS)
    blocks = gather_rotate(nodes, edge_index, rotations, radial, 2, to_atoms=to_atoms)
    factors = [torch.empty_like(block).normal_() for block in blocks]
    to_nodes, *found = gradients_for(blocks, [nodes, rotations, radial], factors)

    few = own(nodes), last(rotations), last(radial)
    expected_blocks = gather_rotate(few[0], last_edges(edge_index), few[1], few[2], 2, to_atoms=to_atoms)
    wanted_nodes, *expected = gradients_for(expected_blocks, list(few), [last(item) for item in factors])
    assert_same_bits([*blocks, *found], [*expected_blocks, *expected])
    assert_same_sums(to_nodes, wanted_nodes)


@pytest.mark.parametrize("accumulate", [True, False])
def test_rotate_scatter(accumulate: bool) -> None:
    torch.manual_seed(0)
    # Blocks are views of one tensor, so that the rows of each lie as far apart as those of all.
    n_edges = n_edges_for(9 * CHANNELS)
    edge_index, rotations, joined = random_edges(n_edges), random(n_edges, 35), random(n_edges, 9 * CHANNELS).detach()
    widths = [3 * CHANNELS, 4 * CHANNELS, 2 * CHANNELS]
    blocks = [view.requires_grad_() for view in torch.split(joined, widths, dim=1)]
    nodes = rotate_scatter(blocks, edge_index, rotations, N_ATOMS, CHANNELS, accumulate=accumulate)
    factor = torch.empty_like(nodes).normal_()
    found = gradients_for([nodes], [*blocks, rotations], [factor])

    few, few_rotations = [last(block) for block in blocks], last(rotations)
    few_nodes = rotate_scatter(few, last_edges(edge_index), few_rotations, N_OWN, CHANNELS, accumulate=accumulate)
    assert_same_bits(found, gradients_for([few_nodes], [*few, few_rotations], [own(factor)]))
    assert_same_sums(nodes, few_nodes)


def test_gate() -> None:
    torch.manual_seed(0)
    n_edges = n_edges_for(5 * CHANNELS)
    blocks = [random(n_edges, size * CHANNELS) for size in (5, 4, 2)]
    outputs = gate(blocks, 2, CHANNELS)
    factors = [torch.empty_like(output).normal_() for output in outputs]
    found = gradients_for(outputs, blocks, factors)

    few = [last(block) for block in blocks]
    few_outputs = gate(few, 2, CHANNELS)
    expected = gradients_for(few_outputs, few, [last(item) for item in factors])
    assert_same_bits([*outputs, *found], [*few_outputs, *expected])
