"""Geometry of edges by kernels, and the sums of their gradients: the reference in float64, poles included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from edgewise.ops import MessageShape
from edgewise.ops.fused.edge_geometry import EDGES, edge_geometry, edge_gradient, forces_and_virial, serves
from edgewise.ops.fused.layout import geometry_width
from edgewise.ops.reference import edge_steps
from edgewise.so3 import edge_frames
from tests import tolerances
from tests.ops.fused.problems import CUTOFF, SHAPES, SPARE, Problem, poisoned
from tests.ops.kernel_problems import DEVICE

pytestmark = pytest.mark.kernels

N_EDGES = [0, 1, 7, EDGES + 1]


def with_special_directions(given: Problem) -> Problem:
    """Put directions at and near the poles, where charts change, and on the axes, as far as there are edges."""
    special = torch.tensor(
        [
            [0, 1, 0],
            [0, -1, 0],
            [1e-9, -1, 0],
            [1e-9, 1, 1e-12],
            [1, 0, 0],
            [0, 0, -1],
            [0.3, 0.9, 0.3],
            [0.3, -0.9, 0],
        ],
        dtype=torch.float64,
        device=DEVICE,
    )
    n = min(given.n_edges, len(special))
    given.edge_vec[:n] = special[:n] * given.edge_vec[:n].norm(dim=1, keepdim=True)
    return given


def made(given: Problem) -> tuple[Tensor, Tensor]:
    geometry = poisoned(given.capacity, geometry_width(given.lmax, given.mmax))
    distance = poisoned(given.capacity)
    edge_geometry(given.filled(given.edge_vec), given.edges.n_live, CUTOFF, given.shape, geometry, distance)
    return geometry, distance


@pytest.mark.parametrize(("lmax", "mmax"), [*SHAPES, (6, 2)])
@pytest.mark.parametrize("n_edges", N_EDGES)
def test_tables(lmax: int, mmax: int, n_edges: int) -> None:
    given = with_special_directions(Problem(lmax, mmax, n_edges, 4))
    geometry, distance = made(given)
    # Both round the same numbers to float32 once; the numbers differ at 1e-14, so that few of them round differently.
    torch.testing.assert_close(geometry[:n_edges], given.edges.geometry[:n_edges], **tolerances.ROUNDED_ONCE)
    torch.testing.assert_close(distance[:n_edges], given.geometry.distance.float(), **tolerances.ROUNDED_ONCE)
    assert geometry[n_edges:].isnan().all()
    assert distance[n_edges:].isnan().all()
    frames = edge_frames(given.edge_vec / given.geometry.distance[:, None])
    torch.testing.assert_close(geometry[:n_edges, 1:10].unflatten(1, (3, 3)), frames.float(), **tolerances.ROUNDED_ONCE)


@pytest.mark.parametrize("n_edges", N_EDGES)
def test_gradient(n_edges: int) -> None:
    given = with_special_directions(Problem(2, 2, n_edges, 4))
    of_ends, of_sums = (given.tangents(n) for n in (6, 3))
    of_ends[:, n_edges:] = torch.nan
    out = poisoned(given.capacity, 3, dtype=torch.float64)
    found = edge_gradient(given.filled(given.edge_vec), given.edges.n_live, of_ends, of_sums, out)
    tangents = (of_ends.double().sum(0) + of_sums.double().sum(0))[:n_edges]
    expected = edge_steps.edge_gradient(given.geometry, tangents)
    torch.testing.assert_close(found[:n_edges], expected, **tolerances.WRITTEN_OUT)
    assert found[n_edges:].isnan().all()


@pytest.mark.parametrize("n_edges", [0, 1, 7, 331])
@pytest.mark.parametrize("atom_starts", [[0, 7], [0, 3, 3, 7], [0, 1, 2, 7]])
def test_forces_and_virial(n_edges: int, atom_starts: list[int]) -> None:
    given = Problem(2, 2, n_edges, 4, n_atoms=7)
    gradient, vectors = given.random(n_edges, 3), given.edge_vec
    starts = torch.tensor(atom_starts, dtype=torch.int32, device=DEVICE)
    forces, virial = forces_and_virial(given.filled(gradient), given.filled(vectors), given.edges, starts)
    expected = gradient.new_zeros(7, 3).index_add(0, given.order.source, gradient)
    expected = expected.index_add(0, given.order.target, gradient, alpha=-1)
    torch.testing.assert_close(forces, expected, **tolerances.WRITTEN_OUT)
    system = torch.bucketize(given.order.target, starts[1:].long(), right=True)
    outer = gradient[:, :, None] * vectors[:, None, :]
    expected = outer.new_zeros(len(atom_starts) - 1, 3, 3).index_add(0, system, outer)
    torch.testing.assert_close(virial, expected, **tolerances.WRITTEN_OUT)


def test_slices_of_many_atoms_add_up() -> None:
    given = Problem(2, 2, 7, 4, n_atoms=2 * 512 + 1)
    gradient, vectors = given.random(7, 3), given.edge_vec
    starts = torch.tensor([0, given.n_atoms], dtype=torch.int32, device=DEVICE)
    _, virial = forces_and_virial(given.filled(gradient), given.filled(vectors), given.edges, starts)
    torch.testing.assert_close(virial[0], gradient.T @ vectors, **tolerances.WRITTEN_OUT)


def test_other_degrees_are_refused() -> None:
    given = Problem(2, 2, 7, 4)
    shape = MessageShape(7, 2, 4, 4)
    assert serves(given.shape)
    assert not serves(shape)
    with pytest.raises(ValueError, match="lmax is 7; the kernel of edge geometry serves 1 to 6"):
        edge_geometry(given.edge_vec, given.edges.n_live, CUTOFF, shape, poisoned(7, 36), poisoned(7))


@pytest.mark.parametrize("name", ["edge_vec", "geometry", "distance"])
def test_tensors_that_do_not_fit_are_refused(name: str) -> None:
    given = Problem(2, 2, 7, 4)
    tensors = {
        "edge_vec": given.filled(given.edge_vec),
        "geometry": poisoned(7 + SPARE, geometry_width(2, 2)),
        "distance": poisoned(7 + SPARE),
    }
    tensors[name] = tensors[name].to(torch.float16)
    with pytest.raises(ValueError, match=f"{name} is"):
        edge_geometry(
            tensors["edge_vec"], given.edges.n_live, CUTOFF, given.shape, tensors["geometry"], tensors["distance"]
        )
