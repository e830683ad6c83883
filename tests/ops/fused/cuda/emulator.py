"""Runs the kernels in CUDA C++ on a CPU: the same text, compiled by g++ with `emulated.cuh` in the place of `device.cuh`."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from edgewise.ops.fused.cuda._driver import Arguments, Grid
from edgewise.ops.fused.cuda._source import Form, source

COMPILER = shutil.which("g++")

OPTIONS = ("-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread")

DEVICE_PART = Path(__file__).parent / "emulated.cuh"

KERNELS = {
    "gather_rotate.cu": ("gather_rotate", "gather_rotate_to_source", "gather_rotate_to_target"),
    "rotate_sum.cu": ("rotate_sum", "rotate_sum_to_edges"),
}


@functools.cache
def _library(file: str, given: Form) -> ctypes.CDLL:
    assert COMPILER is not None, "these tests need a GPU, or g++ to run the kernels on a CPU: install g++"
    text = source(file, given, device_part=DEVICE_PART.read_text(encoding="utf-8"))
    for name in KERNELS[file]:
        text += f'\nextern "C" void run_{name}(unsigned x, unsigned y, unsigned z, void** arguments) {{'
        text += f" run({name}, x, y, z, arguments); }}"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "kernels.cpp"
        place.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [COMPILER, *OPTIONS, str(place), "-o", f"{folder}/kernels.so"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(f"{folder}/kernels.so")


def launch(file: str, name: str, given: Form, grid: Grid, arguments: Sequence[Tensor | int]) -> None:
    """Stand in for `_kernels.launch`; arguments travel as the driver would get them."""
    getattr(_library(file, given), f"run_{name}")(*grid, Arguments(arguments).pointers)
