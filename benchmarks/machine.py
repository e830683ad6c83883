"""What every result says of where it was made."""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

from digest import kernels_digest

RESULTS = Path(__file__).parent / "results"


def commit() -> str:
    """Return the commit of this working tree, with a plus sign where it has been changed."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        )
        changed = subprocess.run(
            ["git", "status", "--porcelain", "-uno"], cwd=here, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def require_gpu(parser: argparse.ArgumentParser) -> None:
    """End with a clear message where there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        parser.error("torch finds no CUDA device here; this needs one")


def processor() -> str:
    """Return the name of the processor and the number of its cores."""
    name = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return f"{name}, {os.cpu_count()} cores"


def machine() -> dict[str, str]:
    """Return the GPU, or the processor where there is none, the versions that count, and which kernels these are."""
    import torch
    import triton

    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else processor(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": sys.version.split()[0],
        "kernels": kernels_digest(),
    }


def results_folder(gpu: str) -> Path:
    """Return the folder for the results of a GPU."""
    return RESULTS / re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
