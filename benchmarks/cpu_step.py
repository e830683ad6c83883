"""Times one energy, forces and stress step on the CPU beside fairchem-core, alternately in one run.

    python benchmarks/cpu_step.py --checkpoint uma-s.pt --peer-python /path/of/the/peers/python --out results.jsonl

Both engines run in processes of their own on the same threads; the float64, unmerged result of the peer is the reference
for the errors of both. Nothing is timed unless both agree with it to float32 accuracy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from ase.build import bulk
from competitors import Competitor

LARGEST_FORCE_ERROR = 1e-4
"""Relative L2 error of forces beyond which nothing is timed."""

PAUSE = 0.5
"""s, between two timed calls."""


def copper(repeats: int) -> dict[str, Any]:
    """Return a rattled copper crystal of 4 repeats^3 atoms as plain data."""
    atoms = bulk("Cu", "fcc", a=3.6, cubic=True).repeat(repeats)
    atoms.positions += np.random.default_rng(1).normal(0, 0.12, atoms.positions.shape)
    return {
        "numbers": atoms.numbers.tolist(),
        "positions": atoms.positions.tolist(),
        "cell": atoms.cell.array.tolist(),
        "pbc": atoms.pbc.tolist(),
    }


def errors(outcome: dict[str, Any], exact: dict[str, Any]) -> dict[str, float]:
    """Return the errors of energy (meV/atom), forces and stress (relative L2)."""

    def relative(name: str) -> float:
        a, b = np.array(outcome[name]), np.array(exact[name])
        return float(np.linalg.norm(a - b) / np.linalg.norm(b))

    energy = 1000 * abs(outcome["energy"] - exact["energy"]) / len(exact["forces"])
    values = {
        "energy_meV_per_atom": energy,
        "forces_relative": relative("forces"),
        "stress_relative": relative("stress"),
    }
    return {name: float(f"{value:.3g}") for name, value in values.items()}


def processor() -> str:
    """Return the name of the processor."""
    if Path("/proc/cpuinfo").is_file():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    """Return the commit of this working tree."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


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
    structure = copper(arguments.repeats)
    engines = {
        "fairchem": Competitor(arguments.peer_python, "fairchem", arguments.checkpoint, arguments.threads),
        "edgewise": Competitor(sys.executable, "edgewise", arguments.checkpoint, arguments.threads),
    }
    # Two calls each: the first merges the experts.
    first = {name: [engine.run(structure, arguments.task) for _ in range(2)][1] for name, engine in engines.items()}
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    load_before = os.getloadavg()[0]
    for _ in range(arguments.rounds):
        for name, engine in engines.items():
            # Worker threads of the other engine spin for a while after its call.
            time.sleep(PAUSE)
            seconds[name].append(engine.run(structure, arguments.task)["seconds"])
    exact = engines["fairchem"].run(structure, arguments.task, "float64")
    rows = []
    for name in engines:
        row = {
            "case": f"Cu{len(structure['numbers'])}, energy + forces + stress, experts merged, float32",
            "engine": name,
            "version": first[name]["version"],
            "best_s": round(min(seconds[name]), 4),
            "median_s": round(statistics.median(seconds[name]), 4),
            "p20_s": round(float(np.quantile(seconds[name], 0.2)), 4),
            "p80_s": round(float(np.quantile(seconds[name], 0.8)), 4),
            "error_against_float64": errors(first[name], exact),
            "threads": arguments.threads,
            "rounds": arguments.rounds,
            "machine": f"{processor()}, {os.cpu_count()} cores",
            "load_before": load_before,
            "commit": commit(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": f"python benchmarks/cpu_step.py --repeats {arguments.repeats} --threads {arguments.threads} "
            f"--rounds {arguments.rounds}",
        }
        if row["error_against_float64"]["forces_relative"] > LARGEST_FORCE_ERROR:
            message = f"{name} is off by {row['error_against_float64']}; no times are reported"
            raise SystemExit(message)
        rows.append(row)
    for engine in engines.values():
        engine.close()
    for row in rows:
        print(json.dumps(row))
    ratio = {key: rows[0][key] / rows[1][key] for key in ("best_s", "median_s")}
    print(f"fairchem / edgewise: best {ratio['best_s']:.2f}, median {ratio['median_s']:.2f}")
    if arguments.out:
        with arguments.out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
