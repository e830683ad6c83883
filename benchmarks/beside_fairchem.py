"""Times whole steps of our modes and of fairchem-core's beside each other: one run, one GPU, one process for each engine.

    python benchmarks/beside_fairchem.py [--atoms 100 1000 4000 10000] [--engines edgewise:fused:fast fairchem:nitro ...]
    python benchmarks/beside_fairchem.py --device cpu --atoms 12 --engines edgewise:general --quick --out /some/folder

All engines load, compile and warm up side by side; then each is checked against float64 and timed while the others wait.
What cannot serve, or fails its check, gives a row that says why and no time. Frames larger than 1000 atoms are prepared with
100, so that waiting engines hold little memory; each engine ends after its turn, so the last has the most (at 10,000
atoms some engines need nearly all of it: name them alone, with --engines).
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import competitors
from beside_worker import Protocol
from checks import CheckFailedError, errors, require_errors
from machine import commit, machine, require_gpu, results_folder
from records import Row, write_stage
from workers import Answer, Worker, WorkerFailedError, as_plain

FILE = "beside_fairchem.jsonl"
WORKER = Path(__file__).parent / "beside_worker.py"

TIMED = (
    "edgewise:fused:fast",
    "edgewise:fused:tf32",
    "edgewise:fused:float32",
    "edgewise:umas_fast_gpu",
    "fairchem:umas_fast_gpu",
    "fairchem:umas_fast_gpu:float32",
    "edgewise:general",
    "fairchem:general",
    "fairchem:nitro",
)
"""In the order of their turns: those that need most memory last."""

PEERS_LARGEST = 1000
"""Atoms up to which fairchem's float64 is the reference; beyond, our own, which works on some of the edges at a time."""


PROTOCOLS = {
    12: Protocol(2, 1, 3),
    100: Protocol(24, 3, 100),
    1000: Protocol(24, 3, 100),
    4000: Protocol(8, 1, 30),
    10000: Protocol(5, 1, 15),
}
QUICK = Protocol(2, 1, 3)


@dataclass(frozen=True)
class Options:
    """What can be chosen.

    Attributes:
        engines: Which are timed.
        checkpoint: In the format of published files; None makes one with random weights.
        device: "cuda" or "cpu".
        peer_python: Interpreter of an environment with fairchem-core.
        quick: A few steps only.
    """

    engines: Sequence[str] = TIMED
    checkpoint: Path | None = None
    device: str = "cuda"
    peer_python: str = sys.executable
    quick: bool = False


@functools.cache
def scratch() -> Path:
    """Return a folder for checkpoints and compile caches that lasts as long as this program."""
    scratch_folder = tempfile.TemporaryDirectory()
    # The cache holds on to the folder through its finalizer only.
    _KEPT.append(scratch_folder)
    return Path(scratch_folder.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def random_checkpoint(device: str) -> Path:
    """Write a file with random weights: of the size of UMA-S, or a tiny one of the tests for trying this on a CPU."""
    from models import tiny, uma_s

    from edgewise.weights import write_pt

    path = scratch() / "random.pt"
    write_pt(uma_s() if device == "cuda" else tiny(), path)
    return path


def case(atoms: int, options: Options) -> Iterator[Row]:
    """Measure one frame with all engines."""
    from sizes import REPEATS
    from structures import copper, count_edges

    frame, ready = copper(REPEATS[atoms], rounded=True), atoms if atoms <= PEERS_LARGEST else 100
    checkpoint = options.checkpoint or random_checkpoint(options.device)
    shared = {
        "case": f"{len(frame)} Cu, energy + forces + stress",
        "atoms": len(frame),
        "edges": count_edges(frame, options.device),
        "weights": checkpoint.name if options.checkpoint else "random, " + ("UMA-S size" if _big(options) else "tiny"),
        "first_s_atoms": ready,
        "run": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    reference = "fairchem:float64" if atoms <= PEERS_LARGEST and _any_peer(options) else "edgewise:float64"
    protocol = QUICK if options.quick else PROTOCOLS[atoms]
    ready_file = scratch() / f"frame_{ready}.json"
    ready_file.write_text(json.dumps(as_plain(copper(REPEATS[ready], rounded=True))))
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        had_caches = {name: _caches(name).exists() for name in options.engines}
        for name in (reference, *options.engines):
            python = options.peer_python if name.startswith("fairchem:") else sys.executable
            command = [python, "-u", str(WORKER), name, str(checkpoint), options.device, str(ready_file)]
            _caches(name).mkdir(exist_ok=True)
            workers[name] = Worker(name, command, _caches(name) / "log", caches=_caches(name))
            stack.callback(workers[name].stop)
        firsts = {name: _answer(item) for name, item in workers.items()}
        oracle = workers.pop(reference)
        exact = _asked(oracle, firsts.pop(reference), do="predict", structure=as_plain(frame))
        oracle.stop()
        if "unavailable" in exact:
            message = f"the reference {reference} gives no result: {exact['unavailable']}"
            raise CheckFailedError(message)
        for name, item in workers.items():
            row = _turn(
                item, firsts[name], exact, as_plain(frame), protocol, competitors.precision(name, options.device)
            )
            yield {**shared, "engine": name, "reference": reference, "compiled_before": had_caches[name], **row}


def _turn(item: Worker, first: Answer, exact: Answer, structure: Row, protocol: Protocol, precision: str) -> Row:
    """Check one engine, time it and end it."""
    outcome = _asked(item, first, do="predict", structure=structure)
    if "unavailable" in outcome:
        item.stop()
        return outcome
    found = errors(outcome, exact)
    try:
        require_errors(item.name, found, precision)
    except CheckFailedError as error:
        item.stop()
        return {**first, "error_against_float64": found, "unavailable": str(error)}
    times = _asked(item, first, do="time", structure=structure, protocol=vars(protocol))
    item.stop()
    return {**first, **vars(protocol), "error_against_float64": found, **times}


def _asked(item: Worker, first: Answer, **request: Any) -> Answer:
    """Ask a worker that is ready; say why there is no answer."""
    if "unavailable" in first:
        return first
    try:
        return item.ask(**request)
    except WorkerFailedError as error:
        return {"unavailable": str(error)[-500:]}


def _answer(item: Worker) -> Answer:
    try:
        return item.answer()
    except WorkerFailedError as error:
        return {"unavailable": str(error)[-500:]}


def _caches(engine: str) -> Path:
    return scratch() / engine.replace(":", "_")


def _big(options: Options) -> bool:
    return options.device == "cuda"


def _any_peer(options: Options) -> bool:
    return any(name.startswith("fairchem:") for name in options.engines)


def _stage(atoms: int) -> Callable[[Path], Iterator[Row]]:
    def stage(out: Path) -> Iterator[Row]:
        del out
        return case(atoms, Options())

    stage.__doc__ = f"Our modes and fairchem's, {atoms} atoms."
    return stage


STAGES = {f"atoms_{atoms}": _stage(atoms) for atoms in PROTOCOLS if atoms > 12}


def main() -> None:
    """Measure the cases that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atoms", type=int, nargs="+", choices=sorted(PROTOCOLS), default=[100, 1000])
    parser.add_argument("--engines", nargs="+", choices=TIMED, default=TIMED, metavar="ENGINE")
    parser.add_argument("--checkpoint", type=Path, help="in the format of published files; random weights unless given")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the script out")
    parser.add_argument(
        "--peer-python", default=sys.executable, help="interpreter with fairchem-core; this one unless given"
    )
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--commit", default=commit(), help="of this tree, where git cannot tell")
    parser.add_argument("--limit", type=float, default=float("inf"), help="s; no case is started after this")
    parser.add_argument("--quick", action="store_true", help="a few steps; nothing is kept unless --out is given")
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        require_gpu(parser)
    begin, where = time.monotonic(), machine()
    out = arguments.out or results_folder(where["gpu"])
    options = Options(
        tuple(dict.fromkeys(arguments.engines)),
        arguments.checkpoint,
        arguments.device,
        arguments.peer_python,
        arguments.quick,
    )
    for number, atoms in enumerate(arguments.atoms):
        if time.monotonic() - begin > arguments.limit:
            print(f"left out after {arguments.limit:.0f} s: {', '.join(map(str, arguments.atoms[number:]))} atoms")
            return
        rows = _described(case(atoms, options), options, arguments.commit, where)
        if arguments.quick and arguments.out is None:
            for _ in rows:
                pass
        else:
            write_stage(out / FILE, rows, _replaces)


def _described(rows: Iterator[Row], options: Options, at: str, where: dict[str, str]) -> Iterator[Row]:
    """Print rows and add where they were made; the command leaves out places on the machine."""
    for row in rows:
        print(
            json.dumps({key: value for key, value in row.items() if key != "kernels"}, ensure_ascii=False), flush=True
        )
        date = datetime.now(UTC).isoformat(timespec="seconds")
        command = f"python benchmarks/beside_fairchem.py --atoms {row['atoms']}"
        if options.engines != TIMED:
            command += f" --engines {' '.join(options.engines)}"
        yield {**row, **where, "stage": f"atoms_{row['atoms']}", "commit": at, "date": date, "command": command}


def _replaces(old: Row, new: list[Row]) -> bool:
    """Tell whether a row has been measured again: the same case, engine and commit."""
    keys = ("stage", "engine", "commit")
    return any(all(old.get(key) == row[key] for key in keys) for row in new)


if __name__ == "__main__":
    main()
