"""Memory that recordings share."""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakSet

import torch


class Recording(Protocol):
    """What uses the memory."""

    def forget(self) -> None:
        """Give it up."""


class Workspace:
    """Memory for work that is never done at the same time.

    What small work has taken does not serve larger work, since its pieces are too small, and would stay beside that of the larger.
    So when larger work is recorded, all recordings of smaller work are thrown away; they are made again in its memory.
    """

    def __init__(self) -> None:
        """Take nothing yet."""
        self._pool: Any = None
        self._size = 0
        self._users: WeakSet[Recording] = WeakSet()

    def pool_for(self, recording: Recording, size: int) -> Any:
        """Return the pool for a recording.

        Args:
            recording: What records.
            size: How much its work takes, in a unit that all users share. It need not be exact: work that takes more than one of
                its size should gets more.
        """
        if self._pool is None or size > self._size:
            for user in list(self._users):
                user.forget()
            self._users.clear()
            self._pool, self._size = torch.cuda.graph_pool_handle(), size
        self._users.add(recording)
        return self._pool
