"""Runs the benchmarks that a GPU is needed for, in stages of a few minutes that can be run one at a time.

    python benchmarks/run.py six                 every stage
    python benchmarks/run.py six ops steps       some stages
    python benchmarks/run.py six --list          what stages there are

Every stage checks before it times, and appends rows to a file of its own under --out (benchmarks/results/<GPU> unless
given); a stage whose file holds rows of this commit is left out, so that an interrupted run can be resumed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import six
import torch
from machine import commit, machine, results_folder

STAGES: dict[str, dict[str, Callable[[Path], Iterable[dict[str, Any]]]]] = {"six": six.STAGES}


def main() -> None:
    """Run stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=sorted(STAGES))
    parser.add_argument("stages", nargs="*", help="all of them unless given")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--commit", default=commit(), help="of this tree, where git cannot tell")
    parser.add_argument("--list", action="store_true", help="name the stages and stop")
    parser.add_argument("--again", action="store_true", help="run stages whose results are there")
    arguments = parser.parse_args()
    stages = STAGES[arguments.set]
    if arguments.list:
        print("\n".join(f"{name}: {(stage.__doc__ or '').splitlines()[0]}" for name, stage in stages.items()))
        return
    unknown = sorted(set(arguments.stages) - set(stages))
    if unknown:
        parser.error(f"unknown stages {', '.join(unknown)}; allowed are {', '.join(stages)}")
    if not torch.cuda.is_available():
        parser.error("torch finds no CUDA device here; these benchmarks need one")
    where = machine()
    out = arguments.out or results_folder(where["gpu"])
    out.mkdir(parents=True, exist_ok=True)
    for name in arguments.stages or stages:
        file = out / f"{arguments.set}_{name}.jsonl"
        if not arguments.again and file.is_file() and f'"commit": "{arguments.commit}"' in file.read_text():
            print(f"{name}: results of this commit are in {file}", flush=True)
            continue
        begin = time.monotonic()
        with file.open("a", encoding="utf-8") as target:
            for row in stages[name](out):
                date = datetime.now(UTC).isoformat(timespec="seconds")
                command = f"python benchmarks/run.py {arguments.set} {name}"
                whole = {**row, **where, "commit": arguments.commit, "date": date, "command": command}
                print(json.dumps(row), flush=True)
                target.write(json.dumps(whole) + "\n")
                target.flush()
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
