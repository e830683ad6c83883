"""The order of edges by source: the reference's, whatever lies beyond the last edge."""

from __future__ import annotations

import pytest
import torch

from edgewise.ops.fused.edge_order import EDGES, edge_order
from tests.ops.fused.problems import Problem
from tests.ops.kernel_problems import DEVICE

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("n_edges", [0, 1, 7, EDGES + 1])
@pytest.mark.parametrize("spare", [0, 1, 13])
@pytest.mark.parametrize("n_atoms", [5, 101, 32_767, 32_768])
def test_order(n_edges: int, spare: int, n_atoms: int) -> None:
    given = Problem(2, 2, n_edges, 4, n_atoms=n_atoms)
    ends = torch.full((2, n_edges + spare), -7, dtype=torch.int32, device=DEVICE)
    ends[:, :n_edges] = given.edge_index
    by_source, starts = edge_order(ends, given.edges.n_live, n_atoms)
    assert by_source.dtype == starts.dtype == torch.int32
    assert torch.equal(by_source[:n_edges].long(), given.order.by_source)
    assert torch.equal(starts.long(), given.order.source_starts)


def test_no_atoms() -> None:
    ends, n_live = (torch.zeros(shape, dtype=torch.int32, device=DEVICE) for shape in ((2, 0), (1,)))
    by_source, starts = edge_order(ends, n_live, 0)
    assert by_source.shape == (0,)
    assert starts.tolist() == [0]


def test_tensors_that_do_not_fit_are_refused() -> None:
    given = Problem(2, 2, 7, 4)
    with pytest.raises(ValueError, match=r"ends is torch\.int64"):
        edge_order(given.edge_index, given.edges.n_live, 5)
