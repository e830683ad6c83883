"""Memory that recordings share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Result = TypeVar("Result")


class Recording(Protocol):
    """What uses the memory."""

    def forget(self) -> None:
        """Give it up."""


class Workspace:
    """Memory for work that is never done at the same time.

    What small work has taken does not serve larger work, since its pieces are too small, and would stay beside that of the larger.
    So recordings that need less than one that comes later are thrown away then, and made again in its memory, where they fit.
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
            What it returns, and the most bytes that it had in use at once.
        """
        before = torch.cuda.memory_allocated(self._device)
        with _MostInUse(self._device) as seen:
            result = work()
        return result, seen.most - before

    def pool_for(self, recording: Recording, n_bytes: int) -> Any:
        """Return the pool for a recording.

        Args:
            recording: What records.
            n_bytes: What `measured` has returned for its work.
        """
        if self._pool is None or n_bytes > self._n_bytes:
            for user in list(self._users):
                user.forget()
            self._users.clear()
            self._pool, self._n_bytes = torch.cuda.graph_pool_handle(), n_bytes
        self._users.add(recording)
        return self._pool


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
