"""Memory that is used again from call to call, so that large temporary values cost no page faults on the CPU.

Fresh memory of a CPU process is handed out page by page on first touch, which took a quarter of the time of a step
(2 cores, 32 copper atoms, 128 channels: 0.94 s with fresh memory, 0.70 s with large pages). A workspace keeps what one
call took and hands it out again, in the same order, in the next.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor

HEADROOM = 1.05
"""New memory is this much larger than asked for, so that small changes of the edge count fit."""

KEPT_BYTES = 2 * 1024**3
"""A workspace that has grown beyond this is given back after the call."""

_active = threading.local()


class Workspace:
    """A list of buffers, handed out in order during a call and again in the next one.

    Values taken from a workspace are valid until the end of the call that took them: results are never kept in one.
    """

    def __init__(self) -> None:
        """Make an empty workspace."""
        self._buffers: list[Tensor] = []
        self._named: dict[tuple[str, torch.dtype], Tensor] = {}
        self._next = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Workspace], tuple[()]]:
        """Copies and pickles begin empty: what is inside belongs to a call, and a lock cannot travel."""
        return Workspace, ()

    @contextmanager
    def active(self) -> Generator[None]:
        """Serve `empty` and `scratch` in this thread; a second thread at the same time gets fresh memory."""
        if not self._lock.acquire(blocking=False):
            yield
            return
        before = getattr(_active, "workspace", None)
        _active.workspace = self
        self._next = 0
        try:
            yield
        finally:
            _active.workspace = before
            if self.n_bytes > KEPT_BYTES:
                self._buffers.clear()
                self._named.clear()
            self._lock.release()

    @property
    def n_bytes(self) -> int:
        """Memory held."""
        buffers = [*self._buffers, *self._named.values()]
        return sum(buffer.numel() * buffer.element_size() for buffer in buffers)

    def take(self, n_values: int, like: Tensor) -> Tensor:
        """Return the next buffer, [n_values]."""
        number = self._next
        self._next += 1
        if number == len(self._buffers):
            self._buffers.append(like.new_empty(0))
        if self._buffers[number].numel() < n_values or self._buffers[number].dtype != like.dtype:
            self._buffers[number] = like.new_empty(int(n_values * HEADROOM))
        return self._buffers[number][:n_values]

    def take_named(self, name: str, n_values: int, like: Tensor) -> Tensor:
        """Return the buffer of a name, [n_values]."""
        key = (name, like.dtype)
        if key not in self._named or self._named[key].numel() < n_values:
            self._named[key] = like.new_empty(n_values)
        return self._named[key][:n_values]


def empty(rows: int, columns: int, like: Tensor) -> Tensor:
    """Return [rows, columns] uninitialised values that live until the end of the call."""
    workspace = getattr(_active, "workspace", None)
    if workspace is None:
        return like.new_empty(rows, columns)
    return workspace.take(rows * columns, like).view(rows, columns)


def scratch(name: str, rows: int, columns: int, like: Tensor) -> Tensor:
    """Return [rows, columns] uninitialised values that live until the next request for the same name."""
    workspace = getattr(_active, "workspace", None)
    if workspace is None:
        return like.new_empty(rows, columns)
    return workspace.take_named(name, rows * columns, like).view(rows, columns)
