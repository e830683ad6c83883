"""What every result says of where it was made."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import torch
import triton

RESULTS = Path(__file__).parent / "results"


def commit() -> str:
    """Return the commit of this working tree, with a plus sign where it has been changed."""
    try:
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(["git", "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def machine() -> dict[str, str]:
    """Return the GPU and the versions that count."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": sys.version.split()[0],
    }


def results_folder(gpu: str) -> Path:
    """Return the folder for the results of a GPU."""
    return RESULTS / re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
