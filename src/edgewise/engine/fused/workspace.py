"""Memory that recordings share, taken in one piece."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Result = TypeVar("Result")

SPARE = 1 / 32
"""Share that is taken above the most that was in use at once, since what is free in between comes in pieces."""


class Recording(Protocol):
    """What uses the memory."""

    def forget(self) -> None:
        """Give it up."""


class Workspace:
    """One piece of memory for work that is never done at the same time.

    Left to itself, the allocator takes a piece of the device for each size that the first work asks for, and later sizes do not
    fit into them. So the first act of a recording is to ask for everything at once, and to give it back: all that it asks
    for afterwards is cut from that piece.
    """

    def __init__(self, device: torch.device) -> None:
        """Take nothing yet."""
        self._device = device
        self._pool: Any = None
        self._n_bytes = 0
        self._users: WeakSet[Recording] = WeakSet()

    def measured(self, work: Callable[[], Result]) -> tuple[Result, int]:
        """Do some work.

        Returns:
            What it returns, and how many bytes to ask for when it is recorded.
        """
        before = torch.cuda.memory_allocated(self._device)
        with _MostInUse(self._device) as seen:
            result = work()
        return result, int((seen.most - before) * (1 + SPARE))

    def pool_for(self, recording: Recording, n_bytes: int) -> Any:
        """Return the pool for a recording.

        Where the piece is too small, those who use it have to forget what they recorded: a larger one takes its place, so
        that there is never more than one.
        """
        if self._pool is None or n_bytes > self._n_bytes:
            for user in list(self._users):
                user.forget()
            self._users.clear()
            self._pool, self._n_bytes = torch.cuda.graph_pool_handle(), n_bytes
        self._users.add(recording)
        return self._pool

    def take(self) -> None:
        """Ask for everything at once; the first act of a recording."""
        torch.empty(self._n_bytes, dtype=torch.uint8, device=self._device)


class _MostInUse(TorchDispatchMode):
    """Notes the most memory that is in use after any operation."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device, self.most = device, torch.cuda.memory_allocated(device)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.most = max(self.most, torch.cuda.memory_allocated(self._device))
        return result
