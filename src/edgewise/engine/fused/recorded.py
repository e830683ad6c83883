"""Work that is recorded in a CUDA graph once, and done again with what then stands in its inputs; elsewhere, plain calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")

WARM_UPS = 1
"""Rounds before the recording: kernels are compiled and libraries make their handles then."""


class Recorded(Generic[Result]):
    """Work on tensors that stay in their places.

    The work must neither wait for the device nor depend on numbers that the device alone knows. What it returns is written
    anew in every call.
    """

    def __init__(self, work: Callable[[], Result], device: torch.device, pool: Any = None) -> None:
        """Record the work on a GPU.

        Args:
            work: The work.
            device: Where its tensors are.
            pool: A pool of memory to share with other recordings, from `torch.cuda.graph_pool_handle`: never two of them at
                the same time, and none that has to keep more than what it returns. None for one of its own.
        """
        self._work = work
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type != "cuda":
            return
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                work()
        current.wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._result = work()

    def __call__(self) -> Result:
        """Do the work."""
        if self._graph is None:
            return self._work()
        self._graph.replay()
        return self._result
