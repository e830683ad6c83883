"""Times one energy, forces and stress step on the CPU beside fairchem-core, alternately in one run.

    python benchmarks/cpu_step.py --checkpoint uma-s.pt --peer-python /path/of/the/peers/python --out results.jsonl

Both engines run in processes of their own on the same threads; the float64, unmerged result of the peer is the reference
for the errors of both. Nothing is timed unless both agree with it to float32 accuracy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from checks import errors, require_errors
from competitors import precision, start
from machine import commit, processor
from structures import cubic_copper
from workers import Worker, as_plain

PAUSE = 0.5
"""s, between two timed calls."""


def main() -> None:
    """Check, then time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--peer-python", required=True, help="interpreter of an environment with fairchem-core")
    parser.add_argument("--task", default="omat")
    parser.add_argument("--repeats", type=int, default=2, help="cubes along each axis; 2 is 32 atoms")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="JSONL file to append to")
    arguments = parser.parse_args()
    atoms = cubic_copper(arguments.repeats)
    request = {"structure": as_plain(atoms)}
    pythons = {"fairchem:general": arguments.peer_python, "edgewise:general": sys.executable}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:

        def begin(python: str, name: str) -> tuple[Worker, str]:
            log = Path(folder) / f"{name.replace(':', '_')}.log"
            engine = start(python, name, arguments.checkpoint, arguments.threads, log, arguments.task)
            stack.callback(engine.stop)
            return engine, engine.answer()["version"]

        engines = {name: begin(python, name) for name, python in pythons.items()}
        # Two calls each: the first merges the experts.
        first = {name: [engine.ask(**request) for _ in range(2)][1] for name, (engine, _) in engines.items()}
        reference, _ = begin(arguments.peer_python, "fairchem:float64")
        exact = reference.ask(**request)
        reference.stop()
        found = {name: errors(outcome, exact) for name, outcome in first.items()}
        for name in engines:
            require_errors(name, found[name], precision(name, "cpu"))
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        load_before = os.getloadavg()[0]
        for _ in range(arguments.rounds):
            for name, (engine, _) in engines.items():
                # Worker threads of the other engine spin for a while after its call.
                time.sleep(PAUSE)
                seconds[name].append(engine.ask(**request)["seconds"])
    rows = []
    for name, (_, version) in engines.items():
        row = {
            "case": f"Cu{len(atoms)}, energy + forces + stress, experts merged, float32",
            "engine": name.partition(":")[0],
            "version": version,
            "best_s": round(min(seconds[name]), 4),
            "median_s": round(statistics.median(seconds[name]), 4),
            "p20_s": round(float(np.quantile(seconds[name], 0.2)), 4),
            "p80_s": round(float(np.quantile(seconds[name], 0.8)), 4),
            "error_against_float64": found[name],
            "threads": arguments.threads,
            "rounds": arguments.rounds,
            "machine": processor(),
            "load_before": load_before,
            "commit": commit(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": f"python benchmarks/cpu_step.py --repeats {arguments.repeats} --threads {arguments.threads} "
            f"--rounds {arguments.rounds}",
        }
        rows.append(row)
    for row in rows:
        print(json.dumps(row))
    ratio = {key: rows[0][key] / rows[1][key] for key in ("best_s", "median_s")}
    print(f"fairchem / edgewise: best {ratio['best_s']:.2f}, median {ratio['median_s']:.2f}")
    if arguments.out:
        with arguments.out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
