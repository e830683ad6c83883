"""Rotations, frames, harmonics and grids against their defining properties and against stored matrices of the peer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from edgewise import so3
from tests.cases import GOLDEN, golden_checkpoint


def random_directions(n: int, seed: int = 0) -> torch.Tensor:
    points = torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return points / points.norm(dim=1, keepdim=True)


SPECIAL = torch.tensor([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]], dtype=torch.float64)


@pytest.mark.parametrize("lmax", range(1, 7))
def test_matrices_rotate_harmonics(lmax: int) -> None:
    rotations = so3.edge_frames(random_directions(5))
    points = random_directions(7, seed=1)
    blocks = so3.rotation_blocks(rotations, lmax)
    rotated = so3.spherical_harmonics(torch.einsum("rab,pb->rpa", rotations, points), lmax)
    original = so3.spherical_harmonics(points, lmax)
    for degree in range(lmax + 1):
        part = slice(degree**2, (degree + 1) ** 2)
        expected = torch.einsum("rij,pj->rpi", blocks[degree], original[:, part])
        torch.testing.assert_close(rotated[..., part], expected, rtol=0, atol=1e-13)


def test_harmonics_of_degree_two_are_the_documented_polynomials() -> None:
    x, y, z = random_directions(11).unbind(1)
    root = math.sqrt(3)
    expected = torch.stack(
        [root * x * z, root * x * y, y**2 - (x**2 + z**2) / 2, root * y * z, root / 2 * (z**2 - x**2)], dim=1
    )
    torch.testing.assert_close(
        so3.spherical_harmonics(torch.stack([x, y, z], 1), 2)[:, 4:], expected, rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("directions", [random_directions(200), SPECIAL], ids=["random", "axes"])
def test_frames_turn_the_direction_to_y(directions: torch.Tensor) -> None:
    frames = so3.edge_frames(directions)
    turned = torch.einsum("nab,nb->na", frames, directions)
    torch.testing.assert_close(turned, torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64).expand_as(turned))
    identity = torch.eye(3, dtype=torch.float64).expand_as(frames)
    torch.testing.assert_close(frames @ frames.mT, identity, rtol=0, atol=1e-14)
    assert torch.allclose(torch.linalg.det(frames), torch.ones(len(frames), dtype=torch.float64))


def test_frames_are_the_same_bits_every_time() -> None:
    assert torch.equal(so3.edge_frames(random_directions(50)), so3.edge_frames(random_directions(50)))


@pytest.mark.parametrize("direction", SPECIAL)
@pytest.mark.parametrize("lmax", [2, 4])
def test_first_and_second_derivatives_are_finite_along_axes(direction: torch.Tensor, lmax: int) -> None:
    n = direction[None].clone().requires_grad_()
    weights = torch.randn(
        (lmax + 1) ** 2, (lmax + 1) ** 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    )
    value = (so3.edge_rotations(n, lmax, lmax) * weights).sum()
    (first,) = torch.autograd.grad(value, n, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), n)
    assert torch.isfinite(first).all()
    assert torch.isfinite(second).all()


def test_rows_of_order_zero_are_harmonics_of_the_direction() -> None:
    directions = random_directions(20)
    rotations = so3.edge_rotations(directions, 3, 1)
    harmonics = so3.spherical_harmonics(directions, 3)
    for degree in range(4):
        part = slice(degree**2, (degree + 1) ** 2)
        torch.testing.assert_close(rotations[:, degree, part], harmonics[:, part], rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "lmax", "mmax"), [("uma-s-tiny_si2", 2, 2), ("uma-s-tiny_oh_minus", 2, 2), ("uma-m-tiny_h2o", 4, 2)]
)
def test_rotations_equal_the_peers_without_roll(name: str, lmax: int, mmax: int) -> None:
    with np.load(GOLDEN / f"intermediates_{name}.npz") as stored:
        vectors = torch.from_numpy(stored["edge_distance_vec"])
        expected = torch.from_numpy(stored["wigner_m"])
    directions = vectors / vectors.norm(dim=1, keepdim=True)
    torch.testing.assert_close(so3.edge_rotations(directions, lmax, mmax), expected, rtol=0, atol=1e-13)


def test_m_major_order_of_the_specification() -> None:
    assert so3.m_major_order(2, 2) == (0, 2, 6, 3, 7, 1, 5, 8, 4)
    assert so3.block_sizes(4, 2) == (5, 4, 3)


@pytest.mark.parametrize("degree", range(5))
def test_axis_swap_matrices_equal_those_in_checkpoints(degree: int) -> None:
    stored = golden_checkpoint("uma-m-tiny").weights[f"backbone.Jd_{degree}"]
    torch.testing.assert_close(so3.axis_swap_matrix(degree), stored.to(torch.float64), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("lmax", "resolution"), [(2, None), (3, None), (4, 18)])
def test_grids_are_exact_inverses_on_nodes(lmax: int, resolution: int | None) -> None:
    to_grid, from_grid = so3.grid_matrices(lmax, lmax, resolution)
    identity = torch.eye((lmax + 1) ** 2, dtype=torch.float64)
    torch.testing.assert_close(from_grid.T @ to_grid, identity, rtol=0, atol=1e-13)
