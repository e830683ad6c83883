"""The edge steps of mode fused in plain PyTorch: each adjoint against autograd, through the geometry too, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from edgewise.ops import EdgeSegment, MessageShape, SO2Weights
from edgewise.ops import reference as plain
from edgewise.ops.reference import edge_steps
from edgewise.so3 import edge_frames, generators, rotation_rows
from tests import tolerances

CUTOFF = 2.5
SHAPES = [(2, 2), (2, 1), (3, 1), (4, 2), (1, 0)]
CHANNELS, HIDDEN = 3, 4


@dataclass
class Problem:
    """A random graph with its geometry."""

    shape: MessageShape
    n_atoms: int
    edge_index: Tensor
    edge_vec: Tensor

    @property
    def order(self) -> edge_steps.EdgeOrder:
        return edge_steps.edge_order(self.edge_index, self.n_atoms)

    @property
    def geometry(self) -> edge_steps.EdgeGeometry:
        centres = torch.linspace(0, CUTOFF, 5, dtype=torch.float64)
        return edge_steps.edge_geometry(self.edge_vec, CUTOFF, centres, self.shape.lmax, torch.float64)

    def turned(self, turn: Tensor, mmax: int) -> Tensor:
        """Return the rotations with each edge's frame turned by the vector (turn_x, 0, turn_z)."""
        x, z = turn.unbind(1)
        zero = torch.zeros_like(x)
        spin = torch.stack([zero, -z, zero, z, zero, -x, zero, x, zero], dim=1).view(-1, 3, 3)
        frames = (torch.eye(3, dtype=torch.float64) + spin) @ self.geometry.frames
        return rotation_rows(frames, self.shape.lmax, mmax)

    def nodes(self) -> Tensor:
        return torch.randn(self.n_atoms, (self.shape.lmax + 1) ** 2, self.shape.channels, dtype=torch.float64)

    def blocks(self, width: int, extra: int = 0) -> list[Tensor]:
        n_edges = self.edge_index.shape[1]
        sizes = [(1 if m == 0 else 2) * size * width for m, size in enumerate(self.shape.sizes)]
        sizes[0] += extra
        return [torch.randn(n_edges, size, dtype=torch.float64) for size in sizes]


def problem(lmax: int, mmax: int, n_edges: int) -> Problem:
    torch.manual_seed(n_edges)
    n_atoms = 4
    target = torch.randint(n_atoms, (n_edges,)).sort().values
    edge_index = torch.stack([torch.randint(n_atoms, (n_edges,)), target])
    # Some edges are longer than the cutoff, where the envelope is zero.
    edge_vec = torch.randn(n_edges, 3, dtype=torch.float64)
    return Problem(MessageShape(lmax, mmax, CHANNELS, HIDDEN), n_atoms, edge_index, edge_vec)


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, **tolerances.WRITTEN_OUT_SECOND)


@pytest.mark.parametrize(("lmax", "mmax"), SHAPES)
@pytest.mark.parametrize("n_edges", [0, 1, 13])
def test_gather_rotate(lmax: int, mmax: int, n_edges: int) -> None:
    given = problem(lmax, mmax, n_edges)
    nodes = given.nodes().requires_grad_()
    direction = torch.randn(2 * CHANNELS * sum(given.shape.sizes), dtype=torch.float64)
    distance = given.geometry.distance.clone().requires_grad_()
    radial, slope = torch.sin(distance[:, None] * direction), direction * torch.cos(distance[:, None] * direction)
    turn = torch.zeros(n_edges, 2, dtype=torch.float64, requires_grad=True)
    expected = plain.gather_rotate(nodes, given.edge_index, given.turned(turn, mmax), radial, lmax)
    found = edge_steps.gather_rotate(nodes, given.order, given.geometry, radial, given.shape)
    gradients = [torch.randn_like(block) for block in expected]
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)
    to_nodes, torque, along = torch.autograd.grad(expected, (nodes, turn, distance), gradients)
    found_nodes, tangents = edge_steps.gather_rotate_adjoint(
        gradients, nodes.detach(), given.order, given.geometry, radial.detach(), slope.detach(), given.shape
    )
    assert_close(found_nodes, to_nodes)
    assert_close(tangents, torch.cat([torque, along[:, None]], dim=1))


@pytest.mark.parametrize(("lmax", "mmax"), SHAPES)
@pytest.mark.parametrize("n_edges", [0, 1, 13])
@pytest.mark.parametrize("only_scalars", [False, True], ids=["all orders", "m = 0"])
def test_rotate_sum(lmax: int, mmax: int, n_edges: int, only_scalars: bool) -> None:
    given = problem(lmax, mmax, n_edges)
    blocks = [block.requires_grad_() for block in given.blocks(CHANNELS)[: 1 if only_scalars else None]]
    distance = given.geometry.distance.clone().requires_grad_()
    u = distance / CUTOFF
    envelope = torch.where(u < 1, 1 - 21 * u**5 + 35 * u**6 - 15 * u**7, 0.0)
    turn = torch.zeros(n_edges, 2, dtype=torch.float64, requires_grad=True)
    rotations = given.turned(turn, mmax) * envelope[:, None, None]
    expected = plain.rotate_scatter(blocks, given.edge_index, rotations, given.n_atoms, CHANNELS)
    assert_close(edge_steps.rotate_sum(blocks, given.order, given.geometry, CHANNELS), expected)
    gradient = torch.randn_like(expected)
    *to_blocks, torque, along = torch.autograd.grad(expected, (*blocks, turn, distance), gradient)
    detached = [block.detach() for block in blocks]
    found, tangents = edge_steps.rotate_sum_adjoint(gradient, detached, given.order, given.geometry, given.shape)
    for one, other in zip(found, to_blocks, strict=True):
        assert_close(one, other)
    assert_close(tangents, torch.cat([torque, along[:, None]], dim=1))


@pytest.mark.parametrize("n_edges", [0, 1, 13])
def test_edge_gradient(n_edges: int) -> None:
    """Of a function of distance and direction that depends on the frame through its direction alone."""
    given = problem(2, 2, n_edges)
    edge_vec = given.edge_vec.clone().requires_grad_()
    scale = torch.randn(n_edges, 3, dtype=torch.float64)
    distance = torch.linalg.vector_norm(edge_vec, dim=1)
    direction = edge_vec / distance[:, None]
    total = (torch.sin(distance) + (scale * direction).sum(1)).sum()
    (expected,) = torch.autograd.grad(total, edge_vec)
    # Turning a frame by w turns its direction by the opposite: dn/dw = R^T (y x w), so T = (R scale) x y.
    in_frame = (given.geometry.frames @ scale[:, :, None])[:, :, 0]
    x, y, z = in_frame.unbind(1)
    del y
    tangents = torch.stack([-z, x, torch.cos(distance.detach())], dim=1)
    assert_close(edge_steps.edge_gradient(given.geometry, tangents), expected)


@pytest.mark.parametrize(("lmax", "mmax"), SHAPES)
@pytest.mark.parametrize("n_edges", [0, 1, 13])
def test_gate(lmax: int, mmax: int, n_edges: int) -> None:
    given = problem(lmax, mmax, n_edges)
    blocks = [block.requires_grad_() for block in given.blocks(HIDDEN, extra=lmax * HIDDEN)]
    expected = plain.gate(blocks, lmax, HIDDEN)
    gradients = [torch.randn_like(block) for block in expected]
    to_blocks = torch.autograd.grad(expected, blocks, gradients)
    found = edge_steps.gate_adjoint(gradients, [block.detach() for block in blocks], given.shape)
    for one, other in zip(found, to_blocks, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("segments", [((0, 13, 0),), ((0, 4, 1), (4, 13, 0))])
def test_so2_linear(segments: tuple[tuple[int, int, int], ...]) -> None:
    given = problem(2, 2, 13)
    runs = [EdgeSegment(*item) for item in segments]
    blocks = [block.requires_grad_() for block in given.blocks(HIDDEN)]
    weights = [
        SO2Weights(
            tuple(torch.randn(5, block.shape[1], dtype=torch.float64) for block in blocks),
            torch.randn(5, dtype=torch.float64),
        )
        for _ in range(2)
    ]
    expected = plain.so2_linear(blocks, weights, runs)
    gradients = [torch.randn_like(block) for block in expected]
    to_blocks = torch.autograd.grad(expected, blocks, gradients)
    for one, other in zip(edge_steps.so2_linear_adjoint(gradients, weights, runs), to_blocks, strict=True):
        assert_close(one, other)


def test_the_geometry_has_the_slopes_of_autograd() -> None:
    given = problem(2, 2, 13)
    distance = torch.linalg.vector_norm(given.edge_vec, dim=1)
    unit = given.edge_vec / distance[:, None]
    centres = torch.linspace(0, CUTOFF, 5, dtype=torch.float64)

    def of_distance(d: Tensor) -> tuple[Tensor, Tensor]:
        made = edge_steps.edge_geometry(unit * d[:, None], CUTOFF, centres, 2, torch.float64)
        return made.envelope, made.gaussians

    _, (envelope, gaussians) = torch.func.jvp(of_distance, (distance,), (torch.ones_like(distance),))
    assert_close(given.geometry.envelope_slope, envelope)
    assert_close(given.geometry.gaussian_slopes, gaussians)
    assert (distance > CUTOFF).any(), "the problem has to have edges beyond the cutoff"


@pytest.mark.parametrize("lmax", [1, 2, 4, 6])
def test_generators_turn_features(lmax: int) -> None:
    """A small turn about x or z changes rotated features by the generator, to second order."""
    frames = edge_frames(torch.nn.functional.normalize(torch.randn(3, 3, dtype=torch.float64), dim=1))
    rotations = rotation_rows(frames, lmax, lmax)
    step = 1e-5
    for axis, generator in zip((0, 2), generators(lmax), strict=True):
        spin = torch.zeros(3, 3, dtype=torch.float64)
        a, b = (axis + 1) % 3, (axis + 2) % 3
        spin[b, a], spin[a, b] = step, -step
        plus = rotation_rows(torch.linalg.matrix_exp(spin) @ frames, lmax, lmax)
        minus = rotation_rows(torch.linalg.matrix_exp(-spin) @ frames, lmax, lmax)
        torch.testing.assert_close(
            (plus - minus) / (2 * step), generator @ rotations, **tolerances.CENTRAL_DIFFERENCE64
        )


def test_edges_of_each_atom() -> None:
    given = problem(1, 1, 13)
    order = given.order
    for atom in range(given.n_atoms):
        into = torch.arange(13)[given.edge_index[1] == atom]
        out = torch.arange(13)[given.edge_index[0] == atom]
        assert torch.equal(torch.arange(*order.target_starts[atom : atom + 2].tolist()), into)
        start, stop = order.source_starts[atom : atom + 2].tolist()
        assert torch.equal(order.by_source[start:stop], out), "ascending, so that the order of the sum is fixed"
