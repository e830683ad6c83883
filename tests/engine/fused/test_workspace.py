"""Memory that recordings share."""

from __future__ import annotations

import pytest
import torch

from edgewise.engine.fused.recorded import Recorded
from edgewise.engine.fused.workspace import Workspace

MEBIBYTE = 2**20


class User:
    """Counts how often it had to give its memory up."""

    def __init__(self) -> None:
        self.n_forgotten = 0

    def forget(self) -> None:
        self.n_forgotten += 1


@pytest.fixture
def workspace(monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Return one whose pools are numbers."""
    numbers = iter(range(10))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(numbers))
    return Workspace()


def test_what_fits_shares_memory_and_what_does_not_takes_its_place(workspace: Workspace) -> None:
    users = [User() for _ in range(4)]
    assert [workspace.pool_for(user, size) for user, size in zip(users, (10, 10, 3, 11), strict=True)] == [0, 0, 0, 1]
    assert [user.n_forgotten for user in users] == [1, 1, 1, 0]
    assert workspace.pool_for(users[0], 10) == 1
    assert workspace.pool_for(User(), 12) == 2
    assert [user.n_forgotten for user in users] == [2, 1, 1, 1], "who has forgotten is no user any more"


@pytest.mark.gpu
def test_recordings_take_what_the_largest_needs_and_no_more() -> None:
    device = torch.device("cuda")
    workspace, out = Workspace(), torch.zeros((), device=device)

    def work(size: int) -> torch.Tensor:
        # Of float32: sums of bytes would be made of copies in a wider type.
        pieces = [torch.ones(count * size * MEBIBYTE // 4, device=device) for count in (1, 2)]
        return out.copy_(sum(piece.sum() for piece in pieces))

    recordings = {size: Recorded(lambda size=size: work(size), device, workspace, size) for size in (100, 140)}
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for size in (100, 100, 140, 140, 100, 100, 140):
        assert recordings[size]().item() == 3 * size * MEBIBYTE // 4
    assert all(recording.is_recorded for recording in recordings.values())
    torch.cuda.empty_cache()
    taken = (torch.cuda.memory_reserved() - before) / MEBIBYTE
    assert 420 <= taken < 480, f"{taken} MiB for at most 420 in use at once"
