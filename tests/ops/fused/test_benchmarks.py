"""The benchmarks of mode fused check what they time: here the checks alone, on a few edges."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent

pytestmark = pytest.mark.kernels


def test_every_benchmark_passes_its_own_check() -> None:
    script = ROOT / "benchmarks" / "ops" / "fused" / "try_out.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ops = {line.split(",")[0] for line in done.stdout.splitlines()}
    files = {path.stem for path in script.parent.glob("*.py")} - {"all_ops", "problem", "try_out"}
    assert ops == files, "a benchmark that is not tried out"
