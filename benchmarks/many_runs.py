"""Runs kernels with products on matrix units, and those in CUDA C++, many times in many processes: the same bits each time, or it is broken.

    python benchmarks/many_runs.py [--launches 200] [--processes 10] [--together 5]
    TRITON_INTERPRET=1 python benchmarks/many_runs.py --device cpu --launches 2 --processes 2      a few edges, to try it out

A product that a compiler has put out of step with its loads is right in most launches, so that a test that looks once may well
pass. Here the first result of a process is checked against float64, and all others against the first bit by bit, with NaN where
they are going to be written; results of different processes must be the same bits too. One more process runs under
compute-sanitizer, if it is there, with fewer edges and launches. Whatever fails makes this end with code 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from machine import require_gpu
from records import Row
from torch import Tensor

KERNELS = ("energy_head", "feed_forward", "grid_feed_forward", "radial_hidden")
"""Benchmarks of `ops.fused` whose kernels in Triton have products on matrix units; a test compares them with the sources. All
kernels in CUDA C++ are run too, on a GPU."""

OF_EVERY_FORMAT = ("radial_hidden",)
"""Those that write rows of edges; the others are the same for all formats."""

SANITIZER = "compute-sanitizer"
SANITIZER_FOLDER = "/usr/local/cuda/bin"
FOUND_ERRORS = 99
"""The code with which the sanitizer says that it has found errors."""

TINY = (18, 5, 16)
"""Edges, atoms and channels in Triton's interpreter."""


@dataclass(frozen=True)
class Options:
    """What can be chosen.

    Attributes:
        launches: Of each kernel, in a process.
        processes: How many.
        together: How many at the same time.
        device: "cuda" or "cpu".
        timeout: s, after which a process counts as failed.
        sanitizer_edges: Edges under the sanitizer.
        sanitizer_launches: Launches under it.
    """

    launches: int = 200
    processes: int = 10
    together: int = 5
    device: str = "cuda"
    timeout: float = 300.0
    sanitizer_edges: int = 2000
    sanitizer_launches: int = 3


def repeated(
    launches: int,
    name: str,
    ours: Callable[[], Sequence[Tensor]],
    replaced: object,
    *,
    bound: float,
    exact: Sequence[Tensor],
    read: Callable[[Sequence[Tensor]], Sequence[Tensor]] | None = None,
    read_replaced: object = None,
) -> Row:
    """Launch a kernel many times, in place of `measure.compare`, whose arguments follow the number of launches."""
    from ops import measure

    del replaced, read_replaced
    # What this leaves behind is where the first result is going to be written.
    _poison(ours())
    result = ours()
    first = [item.clone() for item in result]
    error = measure.relative(first if read is None else read(first), exact)
    different = 0
    for _ in range(launches - 1):
        _poison(result)
        # Memory of the last result is free again before the next is made.
        del result
        result = ours()
        different += not all(same_bits(*pair) for pair in zip(result, first, strict=True))
    row: Row = {"row": name, "launches": launches, "different": different, "error": error, "bound": bound}
    return row | {"digest": digest(first)}


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors are the same to the bit, NaN and signs of zeros included."""
    import torch

    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(*(item.contiguous().view(torch.uint8) for item in (one, other)))


def digest(tensors: Iterable[Tensor]) -> str:
    """Return a digest of the bits of tensors."""
    import torch

    found = hashlib.sha256()
    for item in tensors:
        found.update(item.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def _poison(tensors: Iterable[Tensor]) -> None:
    for item in tensors:
        item.fill_(float("nan"))


def work(launches: int, device: str, edges: int | None) -> None:
    """Do the work of one process: print a row for each kernel.

    Args:
        launches: Of each kernel.
        device: "cuda", or "cpu" for a few edges in Triton's interpreter.
        edges: Of a random graph; None for the graph that kernels are timed on.
    """
    import torch
    from ops import measure
    from ops.fused import problem
    from ops.fused.all_ops import IN_CUDA, OPS
    from structures import random_graph, reference_graph

    measure.compare = partial(repeated, launches)
    place, formats = torch.device(device), list(problem.BOUNDS)
    chosen = [
        (op, op.__name__.split(".")[-1] in OF_EVERY_FORMAT) for op in OPS if op.__name__.split(".")[-1] in KERNELS
    ]
    chosen += [(op, True) for op in IN_CUDA if device == "cuda"]
    for op, of_every_format in chosen:
        for row_format in formats if of_every_format else formats[:1]:
            if device == "cpu":
                n_edges, n_atoms, channels = TINY
                graph = random_graph(place, n_edges, n_atoms)
                given = problem.FusedProblem(*graph, row_format, channels=channels, n_atoms=n_atoms)
            else:
                graph = reference_graph(place) if edges is None else random_graph(place, edges)
                given = problem.FusedProblem(*graph, row_format)
            for row in op.rows("copper", row_format, given):
                kernel = f"{row['op']}, {row['row']}, {row['rows']}"
                print(json.dumps(row | {"kernel": kernel}), flush=True)


@dataclass(frozen=True)
class Outcome:
    """How a process has ended.

    Attributes:
        name: Of the process.
        rows: What it has printed.
        failure: Why it did not end well; empty if it did.
    """

    name: str
    rows: list[Row]
    failure: str = ""


def start(name: str, command: Sequence[str], timeout: float, environment: dict[str, str] | None = None) -> Outcome:
    """Run a process to its end."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            env={**os.environ, **(environment or {})},
        )
    except subprocess.TimeoutExpired:
        return Outcome(name, [], f"not at its end after {timeout:g} s")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        said = f"{done.stdout}\n{done.stderr}" if done.returncode == FOUND_ERRORS else done.stderr
        return Outcome(name, rows, f"ended with code {done.returncode}: {said.strip()[-2000:]}")
    return Outcome(name, rows)


def summary(outcomes: Sequence[Outcome]) -> tuple[list[str], bool]:
    """Return a line for each kernel and for each process that failed, and whether all is well.

    Args:
        outcomes: Of processes with the same work.
    """
    lines = [f"FAILED: {item.name} {item.failure}" for item in outcomes if item.failure]
    well = not lines
    kernels = list(dict.fromkeys(row["kernel"] for item in outcomes for row in item.rows))
    if not kernels:
        return [*lines, "FAILED: no kernel was launched"], False
    for kernel in kernels:
        rows = [row for item in outcomes for row in item.rows if row["kernel"] == kernel]
        launches, different = (sum(row[name] for row in rows) for name in ("launches", "different"))
        # NaN is within no bound.
        wrong = sum(not row["error"] <= row["bound"] for row in rows)
        others = len({row["digest"] for row in rows}) - 1
        missing = len(outcomes) - len(rows)
        good = not (different or wrong or others or missing)
        well = well and good
        errors = max((row["error"] for row in rows), key=lambda value: (value != value, value))  # noqa: PLR0124
        lines.append(
            f"{'passed' if good else 'FAILED'}: {kernel}: {launches} launches in {len(rows)} processes; {different} differ "
            f"from the first, {others} processes have other bits, {wrong} are beyond {rows[0]['bound']:g}, {missing} are "
            f"missing; largest error {errors:.2e}"
        )
    return lines, well


def sanitizer() -> str | None:
    """Return the path of compute-sanitizer; None where it is not there."""
    return shutil.which(SANITIZER) or shutil.which(SANITIZER, path=SANITIZER_FOLDER)


def run(options: Options) -> bool:
    """Run all processes, print what they say, and tell whether all is well."""
    itself = [sys.executable, "-u", __file__, "--worker", "--device", options.device]
    command = [*itself, "--launches", str(options.launches)]
    begun = [f"process {number + 1}" for number in range(options.processes)]
    # The first one fills the cache of compiled kernels, so that the others begin at once.
    outcomes = [start(begun[0], command, options.timeout)]
    with ThreadPoolExecutor(max_workers=options.together) as pool:
        outcomes += pool.map(lambda name: start(name, command, options.timeout), begun[1:])
    lines, well = summary(outcomes)
    print("\n".join(lines), flush=True)
    if options.device == "cpu":
        return well
    program = sanitizer()
    if program is None:
        print(f"not run: {SANITIZER} is neither on the path nor in {SANITIZER_FOLDER}")
        return well
    few = ["--launches", str(options.sanitizer_launches), "--edges", str(options.sanitizer_edges)]
    watched = [program, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", str(FOUND_ERRORS)]
    # Memory that torch keeps to itself would hide what is read or written beyond the end of a tensor.
    apart = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    lines, clean = summary([start("the process under memcheck", [*watched, *itself, *few], options.timeout, apart)])
    print("\n".join(f"memcheck {line}" for line in lines), flush=True)
    return well and clean


def main() -> None:
    """Run processes, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=Options.launches, help="of each kernel, in a process")
    parser.add_argument("--processes", type=int, default=Options.processes)
    parser.add_argument("--together", type=int, default=Options.together, help="processes at the same time")
    parser.add_argument("--timeout", type=float, default=Options.timeout, help="s, of a process")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries it out in the interpreter")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--edges", type=int, help=argparse.SUPPRESS)
    arguments = vars(parser.parse_args())
    if arguments["launches"] < 2 or arguments["processes"] < 1 or arguments["together"] < 1:
        parser.error("two launches, one process and one at a time are the least")
    if arguments["device"] == "cuda":
        require_gpu(parser)
    is_worker, edges = arguments.pop("worker"), arguments.pop("edges")
    if is_worker:
        work(arguments["launches"], arguments["device"], edges)
        return
    sys.exit(0 if run(Options(**arguments)) else 1)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
