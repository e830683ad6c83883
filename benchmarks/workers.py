"""Processes that do what they are asked, one request at a time, so that engines share neither memory nor interpreter.

A worker answers each line of JSON with a line of JSON, in order. It prepares itself before its first answer, which it gives
without being asked; several can so prepare side by side and then take their turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms

Answer = dict[str, Any]


class WorkerFailedError(RuntimeError):
    """A worker has ended without an answer."""


class Worker:
    """A process at work, seen from outside."""

    def __init__(self, name: str, command: Sequence[str], log: Path, caches: Path | None = None) -> None:
        """Start the process.

        Args:
            name: For messages.
            command: Runs a program that calls `serve`.
            log: File for all that the process prints.
            caches: Folder for compile caches of its own; None leaves them where they are.
        """
        own = {}
        if caches is not None:
            own = {"TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"), "TRITON_CACHE_DIR": str(caches / "triton")}
        self.name, self._log = name, log
        with log.open("w") as target:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **own},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=target,
                text=True,
            )

    def ask(self, **request: Any) -> Answer:
        """Send a request and return the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail()
        return self.answer()

    def answer(self) -> Answer:
        """Wait for the next answer.

        Raises:
            WorkerFailedError: The process has ended instead.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._fail()
        return json.loads(line)

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _fail(self) -> None:
        self._process.wait()
        message = (
            f"the worker of {self.name!r} ended with code {self._process.returncode}:\n{self._log.read_text()[-3000:]}"
        )
        raise WorkerFailedError(message)


def serve(prepare: Callable[[], tuple[Answer, Callable[[Answer], Answer]]]) -> None:
    """Be a worker until standard input ends.

    Args:
        prepare: Returns the first answer, and the function that answers requests.
    """
    # Engines may print what they like: only answers go to the pipe, the rest to the log.
    pipe = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    first, respond = prepare()
    print(json.dumps(first), file=pipe, flush=True)
    for line in sys.stdin:
        print(json.dumps(respond(json.loads(line))), file=pipe, flush=True)


def as_plain(atoms: Atoms) -> dict[str, Any]:
    """Return a structure as plain data, exactly."""
    return {
        "numbers": atoms.numbers.tolist(),
        "positions": atoms.positions.tolist(),
        "cell": atoms.cell.array.tolist(),
        "pbc": atoms.pbc.tolist(),
    }


def as_atoms(structure: dict[str, Any]) -> Atoms:
    """Return a structure from plain data, neutral and without spin."""
    return Atoms(**structure, info={"charge": 0, "spin": 0})


def as_lists(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return arrays as lists of floats."""
    return {name: np.asarray(value, dtype=float).tolist() for name, value in outcome.items()}
