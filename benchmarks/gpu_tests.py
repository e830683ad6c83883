"""Runs every test that concerns a GPU there, the kernels' tests several times, and keeps the log.

    python benchmarks/gpu_tests.py [--repeats 3] [--out FILE] [--commit abc1234]

The log (benchmarks/results/<GPU>/gpu_tests.log unless given) names the commit and the digest of the kernels, and lists every
test with its outcome. It is made again whenever a kernel changes; a test compares the digests. Outputs are NaN before a kernel writes them, so that what it leaves out shows.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from machine import commit, machine, require_gpu, results_folder

ROOT = Path(__file__).parent.parent
# Ahead-of-time compilation needs no GPU, and runs in CI.
KERNELS = ("-m", "kernels", "--ignore=tests/ops/test_compile_kernels.py", "tests/ops")
EVERYTHING = ("-m", "gpu or kernels", *KERNELS[2:], "tests/engine", "tests/physics", "tests/test_cases.py")


def run(name: str, arguments: tuple[str, ...], log: Path) -> bool:
    """Run pytest once, add what it says to the log, and tell whether all tests passed."""
    command = [sys.executable, "-m", "pytest", "-v", "--no-header", "--tb=short", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"\n== {name}: pytest {' '.join(arguments)}\n{done.stdout}{done.stderr}")
    print(f"{name}: {done.stdout.splitlines()[-1] if done.stdout else done.stderr[-500:]}", flush=True)
    return done.returncode == 0


def main() -> None:
    """Run and write the log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="how often the kernels' tests run in all")
    parser.add_argument("--out", type=Path, help="the log")
    parser.add_argument("--commit", default=commit(), help="of this tree, where git cannot tell")
    arguments = parser.parse_args()
    require_gpu(parser)
    where = machine()
    log = arguments.out or results_folder(where["gpu"]) / "gpu_tests.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    log.write_text(f"commit {arguments.commit}, {date}, {where}\n", encoding="utf-8")
    passed = [run("round 1, everything", EVERYTHING, log)]
    passed += [run(f"round {number}, kernels", KERNELS, log) for number in range(2, arguments.repeats + 1)]
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
