"""Embeddings of elements and systems, added to scalars in place."""

from __future__ import annotations

import pytest
import torch

from edgewise.ops.fused.embedding import ATOMS, embedding
from tests.ops.kernel_problems import DEVICE

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize(("n_atoms", "channels"), [(0, 4), (1, 4), (ATOMS, 6), (ATOMS + 1, 8), (7, 5)])
def test_scalars_alone_change(n_atoms: int, channels: int) -> None:
    x, table = torch.randn(n_atoms, 4, channels, device=DEVICE), torch.randn(5, channels, device=DEVICE)
    at_atoms = torch.randn(n_atoms, channels, device=DEVICE)
    numbers = torch.arange(n_atoms, device=DEVICE) % 5
    expected = x.clone()
    expected[:, 0] += table[numbers] + at_atoms
    found = embedding(x, numbers, table, at_atoms)
    assert found is x, "in place"
    assert torch.equal(found, expected)


def test_tensors_that_do_not_fit_are_refused() -> None:
    x, table, numbers = (torch.zeros(shape, device=DEVICE) for shape in ((3, 4, 6), (5, 6), (3,)))
    with pytest.raises(ValueError, match="at_atoms has shape"):
        embedding(x, numbers.int(), table, table)
    with pytest.raises(ValueError, match="table has shape"):
        embedding(x, numbers.int(), table[:, :5], x[:, 0])
