"""Progress of long work: a bar on a terminal, plain lines now and then elsewhere. Always on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Counts steps and shows how many are done, the rate and the time left."""

    def __init__(self, label: str, total: int, *, quiet: bool = False) -> None:
        """Prepare to show `total` steps of what `label` says."""
        self._label, self._total, self._quiet = label, total, quiet
        self._start = self._last = time.monotonic()
        self._done = self._first = 0
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        """Begin to show."""
        if sys.stderr.isatty() and not self._quiet:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(),
            )
            self._bar = Bar(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._total, note="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop showing."""
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, note: str = "") -> None:
        """Say that `done` steps are behind, counted from the very beginning.

        Args:
            done: Steps done; the first call after a restart does not begin at 0.
            note: What else to show, for example the current energy.
        """
        if self._done == 0:
            self._first = done
        self._done = done
        now = time.monotonic()
        rate = (done - self._first) / max(now - self._start, 1e-9)
        text = f"{rate:.3g} steps/s  {note}"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, note=text)
        elif not self._quiet and now - self._last > SECONDS_BETWEEN_LINES:
            self._last = now
            left = f"{(self._total - done) / rate:.0f} s left" if rate > 0 else "time left unknown"
            sys.stderr.write(f"{self._label}: {done}/{self._total}, {text}, {left}\n")
            sys.stderr.flush()
