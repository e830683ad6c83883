"""Work that is recorded in a CUDA graph when it is done a second time, and replayed from then on; elsewhere, plain calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from edgewise.engine.fused.workspace import Workspace
from edgewise.ops.fused.streams import recording_stream

Result = TypeVar("Result")


class Recorded(Generic[Result]):
    """Work on tensors that stay in their places.

    The work must neither wait for the device nor depend on numbers that the device alone knows. What it returns is written
    anew in every call.

    The first call does the work as it is: kernels are compiled and libraries make their handles then, and work that is done
    once is never recorded, which takes several times as long.

    Attributes:
        latest: What the last call returned. Once the work is recorded it stays in its place.
    """

    def __init__(
        self, work: Callable[[], Result], device: torch.device, workspace: Workspace | None = None, size: int = 0
    ) -> None:
        """Take the work.

        Args:
            work: The work.
            device: Where its tensors are.
            workspace: Memory to share with other recordings: never two of them at the same time, and none that has to keep
                anything there, what it returns included. None for memory of its own.
            size: How much of it the work takes, see `Workspace.pool_for`.
        """
        self._work, self._workspace, self._size = work, workspace, size
        self._device, self._can_record = device, device.type == "cuda"
        self._graph: torch.cuda.CUDAGraph | None = None
        self.latest: Result | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether calls replay a recording."""
        return self._graph is not None

    def forget(self) -> None:
        """Throw the recording away; the next call makes another."""
        self._graph = None

    def __call__(self) -> Result:
        """Do the work."""
        if self._can_record and self._graph is None and self.latest is not None:
            self._record()
        if self._graph is not None:
            self._graph.replay()
        else:
            self.latest = self._work()
        assert self.latest is not None
        return self.latest

    def _record(self) -> None:
        # What the first call left behind is free for the recording's own memory.
        self.latest, graph = None, torch.cuda.CUDAGraph()
        pool = None if self._workspace is None else self._workspace.pool_for(self, self._size)
        stream = recording_stream(self._device)
        with torch.cuda.device(self._device), torch.cuda.graph(graph, pool=pool, stream=stream):
            self.latest = self._work()
        self._graph = graph
