"""Runs the benchmarks that a GPU is needed for, in stages of a few minutes that can be run one at a time.

    python benchmarks/run.py six                 every stage
    python benchmarks/run.py six ops steps       some stages
    python benchmarks/run.py fused atoms_1000    our modes beside fairchem-core (see beside_fairchem.py)
    python benchmarks/run.py written_out         kernels and captured steps of mode fused (see fused_step.py)
    python benchmarks/run.py dynamics            molecular dynamics by ASE (see molecular_dynamics.py)
    python benchmarks/run.py stages              where the time of a step goes (see stage_table.py)
    python benchmarks/run.py drift               conservation of energy, a stage for each run (see energy_drift.py)
    python benchmarks/run.py six --list          what stages there are

Every stage checks before it times. Its rows are added to a file under --out (benchmarks/results/<GPU> unless given) when it
has ended; a stage whose rows of this commit are there is left out, so that an interrupted run can be taken up again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import beside_fairchem
import energy_drift
import fused_step
import molecular_dynamics
import optimizations
import stage_table
from machine import commit, machine, require_gpu, results_folder
from records import Row, is_finished, write_stage

Stages = Mapping[str, Callable[[Path], Iterable[Row]]]

SETS: dict[str, tuple[Stages, str]] = {
    "six": (optimizations.STAGES, "six_{stage}.jsonl"),
    "fused": (beside_fairchem.STAGES, beside_fairchem.FILE),
    "written_out": (fused_step.STAGES, "written_out_{stage}.jsonl"),
    "dynamics": (molecular_dynamics.STAGES, molecular_dynamics.FILE),
    "stages": (stage_table.STAGES, stage_table.FILE),
    "drift": (energy_drift.STAGES, energy_drift.FILE),
}
"""Stages, and the file that each writes to."""


def main() -> None:
    """Run stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=sorted(SETS))
    parser.add_argument("stages", nargs="*", help="all of them unless given")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--commit", default=commit(), help="of this tree, where git cannot tell")
    parser.add_argument("--list", action="store_true", help="name the stages and stop")
    parser.add_argument("--again", action="store_true", help="run stages whose results are there, and replace these")
    arguments = parser.parse_args()
    stages, file_name = SETS[arguments.set]
    if arguments.list:
        print("\n".join(f"{name}: {(stage.__doc__ or '').splitlines()[0]}" for name, stage in stages.items()))
        return
    unknown = sorted(set(arguments.stages) - set(stages))
    if unknown:
        parser.error(f"unknown stages {', '.join(unknown)}; allowed are {', '.join(stages)}")
    require_gpu(parser)
    where = machine()
    out = arguments.out or results_folder(where["gpu"])
    for name in arguments.stages or stages:
        file = out / file_name.format(stage=name)
        if not arguments.again and is_finished(file, name, arguments.commit):
            print(f"{name}: results of this commit are in {file}", flush=True)
            continue
        begin = time.monotonic()
        shared = {
            **where,
            "stage": name,
            "commit": arguments.commit,
            "command": f"python benchmarks/run.py {arguments.set} {name}",
        }
        write_stage(file, _described(stages[name](out), shared), partial(_replaces, name, arguments.commit))
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)


def _described(rows: Iterable[Row], shared: Row) -> Iterator[Row]:
    """Print rows and add what the stage has in common."""
    for row in rows:
        print(json.dumps(row, ensure_ascii=False), flush=True)
        yield {**row, **shared, "date": datetime.now(UTC).isoformat(timespec="seconds")}


def _replaces(stage: str, at: str, old: Row, new: list[Row]) -> bool:
    """Tell whether a row is of this stage and commit."""
    del new
    return old["commit"] == at and old.get("stage", stage) == stage


if __name__ == "__main__":
    main()
