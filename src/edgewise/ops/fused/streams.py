"""Work that a GPU does side by side, where one thing does not need the other.

A product leaves multiprocessors idle at its end, and small structures leave most of them idle all the time; what runs beside it
fills them. Results are the same to the bit. A CUDA graph that records the work keeps its branches. On a CPU, and inside
`one_after_the_other`, everything is done when it is asked for.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

Result = TypeVar("Result")

MOST_AT_ONCE = 3
"""Pieces of work that `at_once` does side by side; of more, the rest follows one after the other."""

FIRST, LATER = -1, 0
"""Priorities: blocks of a branch, whose results nothing waits for yet, come when no others want to."""

_SIDE_BY_SIDE: ContextVar[bool] = ContextVar("side_by_side", default=True)


@contextmanager
def one_after_the_other() -> Generator[None]:
    """Let nothing run side by side, so that a profile tells how long each kernel takes alone."""
    token = _SIDE_BY_SIDE.set(False)
    try:
        yield
    finally:
        _SIDE_BY_SIDE.reset(token)


def recording_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which CUDA graphs are best recorded: what they record on it comes before what is on branches."""
    return _stream(device, FIRST, 0)


def at_once(works: Sequence[Callable[[], object]], device: torch.device) -> None:
    """Do pieces of work none of which needs another; what comes later waits for all of them.

    Args:
        works: What to do. They write to memory that was there before.
        device: Where.
    """
    if not _has_streams(device) or len(works) < 2:
        for work in works:
            work()
        return
    main, sides = torch.cuda.current_stream(device), [_stream(device, FIRST, 1 + n) for n in range(MOST_AT_ONCE - 1)]
    first, *others = works
    for side, work in zip(sides, others, strict=False):
        side.wait_stream(main)
        with torch.cuda.stream(side):
            work()
    for work in (first, *others[len(sides) :]):
        work()
    for side in sides[: len(others)]:
        main.wait_stream(side)


class Branch:
    """Work that is begun before its results are needed, and goes on beside what follows it.

    Each piece waits for everything that was asked for before it, earlier pieces too. So memory that is given back by then can be
    used again; what a piece reads has to stay until `join`.
    """

    def __init__(self, device: torch.device) -> None:
        """Begin nothing yet."""
        self._device = device
        self._stream = _stream(device, LATER, 0) if _has_streams(device) else None

    def begin(self, work: Callable[[], Result]) -> Result:
        """Begin a piece of work; its results are there after `join`."""
        if self._stream is None:
            return work()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            return work()

    def join(self) -> None:
        """Let everything that is asked for from now on wait for what was begun."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)


def _stream(device: torch.device, priority: int, number: int) -> torch.cuda.Stream:
    """Return one of a few streams; `number` tells those of a priority apart.

    Each thread has its own: what another puts into a stream that is being recorded would become part of the recording.
    """
    return _stream_of_thread(device, priority, number, threading.get_ident())


@functools.cache
def _stream_of_thread(device: torch.device, priority: int, *_: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=priority)


def _has_streams(device: torch.device) -> bool:
    return device.type == "cuda" and _SIDE_BY_SIDE.get()
