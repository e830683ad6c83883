"""Says where the time of a step of mode fused goes: each part with its time, its bytes and operations, and its share of a ceiling.

    python benchmarks/stage_table.py [--precisions fast tf32 float32] [--repeats 20]
    TRITON_INTERPRET=1 python benchmarks/stage_table.py --device cpu     a tiny model on two atoms, timed by the host, to try it out
    python benchmarks/run.py stages                                      the same for the record

A step of 1000 copper atoms, from positions to forces and stress, is recorded with marks between its parts (`step_marks`) and
once more without; nothing runs side by side in either. The profile of the first gives the time of each part, the second says
whether the marks have changed anything: their busy times must agree within 3 %. Bytes and operations are counted from the tensors
(`step_counts`).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from ase import Atoms
from ceilings import OF_GPU, Ceilings
from checks import CheckFailedError
from dynamics import PRECISIONS, frame_errors
from machine import require_gpu
from models import tiny, uma_s
from records import Row
from report_stages import as_table
from step_counts import Count
from step_marks import ELSE, ORDER, Marks, Piece, attributed, counted, marked, on_host
from structures import copper, count_edges
from timing import gpu_events

import edgewise
from edgewise.ops.fused.streams import one_after_the_other
from edgewise.weights import Checkpoint

FILE = "stage_table_{stage}.jsonl"

AGREEMENT = 0.03
"""Largest relative difference of the busy times with marks and without: between marks a GPU that is held back by its power cools
down, and was seen to be 1.6 % faster."""

ATTEMPTS = 4
"""A GPU that changes its clock makes times of one profile differ from those of the next."""

WARM_UPS = 5
"""Steps until all is recorded, and the room for edges is known before the host has looked."""

TASK = "omat"


@dataclass(frozen=True)
class Options:
    """What can be chosen.

    Attributes:
        device: "cuda" or "cpu".
        repeats: Steps of a profile.
    """

    device: str = "cuda"
    repeats: int = 20

    def case(self) -> tuple[Checkpoint, Atoms]:
        """Return the model and the structure; for trying out two atoms, each the other's only neighbour."""
        if self.device == "cuda":
            return uma_s(n_experts=8), copper()
        return tiny(), Atoms("Cu2", [(1, 1, 1), (1.5, 2.2, 3.1)], cell=(9, 9, 9), pbc=True)


@dataclass(frozen=True)
class Profile:
    """Where the time of some steps went.

    Attributes:
        pieces: With marks, which are left out.
        repeats: How many steps they are of.
        without_marks: Busy time of a step without marks, ms; None where nothing was profiled.
        other_kernels: Kernels that ran with marks and not without, or the other way round.
    """

    pieces: list[Piece]
    repeats: int
    without_marks: float | None = None
    other_kernels: tuple[str, ...] = ()


def rows(options: Options, precision: str) -> Iterator[Row]:
    """Check and measure a step; yield a row for each part, and one for the whole.

    Raises:
        CheckFailedError: Errors are too large, or marks change the step.
    """
    checkpoint, atoms = options.case()
    with one_after_the_other():
        plain = _potential(checkpoint, options, precision)
        found = frame_errors(plain, atoms, checkpoint, precision)
        marks = Marks(torch.device(options.device))
        with marked(marks):
            potential = _potential(checkpoint, options, precision)
            for _ in range(WARM_UPS if options.device == "cuda" else 0):
                potential.predict([atoms])
            marks.played.clear()
            potential.predict([atoms])
            one_step = list(marks.played)
            profile = Profile(on_host(one_step), 1)
            if options.device == "cuda":
                profile = _on_gpu(plain, potential, marks, atoms, options.repeats)
    ceilings = OF_GPU.get(torch.cuda.get_device_name()) if options.device == "cuda" else None
    shared = {
        "case": f"{len(atoms)} Cu, energy + forces + stress, {'UMA-S size' if options.device == 'cuda' else 'tiny'}, random weights",
        "precision": precision,
        "atoms": len(atoms),
        "edges": count_edges(atoms, "cpu"),
    }
    counts = counted(one_step)
    for row in parts(profile, counts, ceilings):
        yield {**shared, **row}
    yield {
        **shared,
        "part": "whole",
        "ms": round(sum(item.milliseconds for item in profile.pieces) / profile.repeats, 4),
        "launches": len(profile.pieces) / profile.repeats,
        "bytes": sum(item.bytes for item in counts.values()),
        "flops": sum(item.flops for item in counts.values()),
        "busy_without_marks_ms": profile.without_marks and round(profile.without_marks, 4),
        "other_kernels": profile.other_kernels,
        "timed": "the host" if profile.without_marks is None else "kernels in a recording",
        "ceilings": vars(ceilings) if ceilings else None,
        "error_against_float64": found,
    }


def parts(profile: Profile, counts: Mapping[str, Count], ceilings: Ceilings | None) -> Iterable[Row]:
    """Return a row for each part that took time.

    Args:
        profile: Of steps with marks.
        counts: Of one step.
        ceilings: Of the GPU; None where they were not measured, and no shares are given then.

    Raises:
        CheckFailedError: Pieces or counts of a part that has no place in `ORDER`.
    """
    repeats = profile.repeats
    times: dict[str, float] = defaultdict(float)
    launches: dict[str, int] = defaultdict(int)
    for item in profile.pieces:
        # A part that only calls others, which have rows of their own, has moved nothing.
        part = ELSE if counts.get(item.part) == Count(0) else item.part
        times[part] += item.milliseconds
        launches[part] += 1
    unknown = (set(times) | set(counts)) - set(ORDER)
    if unknown:
        message = f"parts without a place in the table: {', '.join(sorted(unknown))}"
        raise CheckFailedError(message)
    for part in ORDER:
        if part in times:
            row: Row = {"part": part, "ms": round(times[part] / repeats, 4), "launches": launches[part] / repeats}
            if part != ELSE and part in counts:
                row |= _speed(counts[part], times[part] / repeats / 1000, ceilings)
            yield row


def _speed(count: Count, seconds: float, ceilings: Ceilings | None) -> Row:
    """Return what was done, how fast, and the share of the ceiling that is nearer."""
    row: Row = {"bytes": count.bytes, "flops": count.flops}
    if seconds > 0:
        row |= {
            "TB_per_s": _rounded(count.bytes / seconds / 1e12),
            "TFLOP_per_s": _rounded(count.flops / seconds / 1e12),
        }
    if ceilings is None or seconds <= 0:
        return row
    shares = {"memory": count.bytes / seconds / ceilings.bytes_per_second}
    # Of other products than those of float16 no ceiling was measured, and rotations are not made by matrix units.
    if count.flops and count.float16:
        shares["products"] = count.flops / seconds / ceilings.flops_per_second
    row["ceiling"] = max(shares, key=lambda name: shares[name])
    row["share"] = _rounded(shares[row["ceiling"]])
    return row


def _on_gpu(
    plain: edgewise.Potential, potential: edgewise.Potential, marks: Marks, atoms: Atoms, repeats: int
) -> Profile:
    """Profile steps with marks and without.

    Raises:
        CheckFailedError: The busy times differ in all attempts.
    """
    difference = 0.0
    for _ in range(ATTEMPTS):
        without = _events(plain, atoms, repeats, Marks(torch.device("cpu")))[0]
        events, switches = _events(potential, atoms, repeats, marks)
        pieces = attributed(events, switches)
        whole = sum(milliseconds for _, milliseconds in without)
        difference = sum(item.milliseconds for item in pieces) / whole - 1
        if abs(difference) <= AGREEMENT:
            return Profile(pieces, repeats, whole / repeats, other_kernels([item.name for item in pieces], without))
    message = f"with marks a step is busy for {difference:+.1%} of the time without; allowed are {AGREEMENT:.0%}"
    raise CheckFailedError(message)


def other_kernels(names: Iterable[str], without: Iterable[tuple[str, float]]) -> tuple[str, ...]:
    """Return the names that do not occur as often with marks as without."""
    one, other = Counter(names), Counter(name for name, _ in without)
    return tuple(sorted(name[:90] for name in one.keys() | other.keys() if one[name] != other[name]))


def _events(
    potential: edgewise.Potential, atoms: Atoms, repeats: int, marks: Marks
) -> tuple[list[tuple[str, float]], list[str]]:
    """Profile steps; return what kept the GPU busy, and the parts that began with each mark of them."""

    def call(number: int) -> None:
        if number == 0:
            # Of the first call, which is not in the profile, and of the first in it: what was played before goes.
            marks.played.clear()
        potential.predict([atoms])

    for _ in range(WARM_UPS):
        potential.predict([atoms])
    events = gpu_events(call, repeats)
    return events, [item.part for item in marks.played]


def _potential(checkpoint: Checkpoint, options: Options, precision: str) -> edgewise.Potential:
    settings = edgewise.InferenceSettings(execution_mode="fused", precision=precision)
    return edgewise.Potential(checkpoint, task=TASK, device=options.device, settings=settings)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _stage(precision: str) -> Callable[[Path], Iterator[Row]]:
    def stage(out: Path) -> Iterator[Row]:
        del out
        return rows(Options(), precision)

    stage.__doc__ = f"The parts of a step of 1000 copper atoms, mode fused, precision {precision}."
    return stage


STAGES = {precision: _stage(precision) for precision in PRECISIONS}


def main() -> None:
    """Print rows and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=["fast"])
    parser.add_argument("--repeats", type=int, default=Options.repeats, help="steps of a profile")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the script out")
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        require_gpu(parser)
    for precision in arguments.precisions:
        found = list(rows(Options(arguments.device, arguments.repeats), precision))
        for row in found:
            print(json.dumps(row, ensure_ascii=False), flush=True)
        print(as_table(found), flush=True)


if __name__ == "__main__":
    main()
