"""Packed rotations hold what dense ones hold, bit for bit, gradients of positions included."""

from __future__ import annotations

import pytest
import torch

from edgewise import so3
from edgewise.ops.packed_rotation import SIZES, _pack, as_packed, unpack

pytestmark = pytest.mark.kernels


def directions(n: int = 11) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    given = torch.nn.functional.normalize(torch.randn(n, 3, dtype=torch.float64, generator=generator), dim=1)
    given[:6] = torch.cat([torch.eye(3, dtype=torch.float64), -torch.eye(3, dtype=torch.float64)])
    return given.requires_grad_()


@pytest.mark.parametrize("mmax", [2, 1])
def test_generator_equals_the_blocks_of_the_dense_one(mmax: int) -> None:
    n = directions()
    packed, dense = so3.packed_edge_rotations(n, 2, mmax), so3.edge_rotations(n, 2, mmax)
    assert packed.shape[1] == SIZES[mmax]
    assert torch.equal(as_packed(dense), packed)
    assert torch.equal(unpack(packed), dense)
    factors = torch.randn(packed.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    (first,) = torch.autograd.grad(packed, n, factors, retain_graph=True)
    (second,) = torch.autograd.grad(as_packed(dense), n, factors)
    assert torch.equal(first, second)


def test_sizes() -> None:
    assert SIZES == {2: 35, 1: 25}
    assert as_packed(torch.zeros(4, 35)).shape == (4, 35)
    assert as_packed(torch.zeros(4, 7, 9)).shape == (4, 25)


@pytest.mark.parametrize("mmax", [2, 1])
def test_registration(mmax: int) -> None:
    dense = so3.edge_rotations(directions(), 2, mmax).detach().requires_grad_()
    torch.library.opcheck(_pack, (dense,))
    torch.library.opcheck(unpack, (as_packed(dense).detach().requires_grad_(),))
    assert torch.autograd.gradcheck(as_packed, (dense[:3],))
    assert torch.autograd.gradgradcheck(as_packed, (dense[:3],))
