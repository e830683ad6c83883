"""Runs the kernels in CUDA C++ on a CPU: the same text, compiled by g++ with `emulated.cuh` in the place of `device.cuh`."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgewise.ops.fused.cuda import gated_products
from edgewise.ops.fused.cuda._driver import Argument, Arguments, Grid
from edgewise.ops.fused.cuda._source import AnyForm, source

COMPILER = shutil.which("g++")

# Shared memory is a static variable of each library: unique ones would be those of the library that was loaded first.
OPTIONS = ("-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread", "-fno-gnu-unique")

DEVICE_PART = Path(__file__).parent / "emulated.cuh"

KERNELS = {
    "gather_rotate.cu": ("gather_rotate", "gather_rotate_to_source", "gather_rotate_to_target"),
    "radial_hidden.cu": ("radial_hidden",),
    "rotate_sum.cu": ("rotate_sum", "rotate_sum_to_edges"),
}


HOPPER_PART = Path(__file__).parent / "emulated_hopper.cuh"


@functools.cache
def _library(file: str, given: AnyForm) -> ctypes.CDLL:
    return _compiled(source(file, given, device_part=DEVICE_PART.read_text(encoding="utf-8")), KERNELS[file])


early_products = False
"""Products read their operands at once, and not as late as they may."""


@functools.cache
def _library_of_products(*, early: bool) -> ctypes.CDLL:
    hopper = f"constexpr bool EARLY = {int(early)};\nconstexpr int SHARED_BYTES = {gated_products.SHARED_BYTES};\n"
    hopper += f"constexpr unsigned int BARRIERS_START = SHARED_BYTES - {gated_products.BARRIER_BYTES};\n"
    hopper += HOPPER_PART.read_text(encoding="utf-8")
    text = gated_products.source(DEVICE_PART.read_text(encoding="utf-8"), hopper)
    return _compiled(text, ("gated_products",))


def _compiled(text: str, names: Sequence[str]) -> ctypes.CDLL:
    assert COMPILER is not None, "these tests need a GPU, or g++ to run the kernels on a CPU: install g++"
    for name in names:
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


def launch(file: str, name: str, given: AnyForm, grid: Grid, arguments: Sequence[Argument]) -> None:
    """Stand in for `_kernels.launch`; arguments travel as the driver would get them."""
    getattr(_library(file, given), f"run_{name}")(*grid, Arguments(arguments).pointers)


def launch_text(
    text: str,
    file: str,
    name: str,
    architecture: str,
    grid: Grid,
    arguments: Sequence[Argument],
    *,
    threads: int,
    shared: int,
) -> None:
    """Stand in for `_kernels.launch_text`, for the one kernel that goes there."""
    assert (file, name, threads) == (gated_products.FILE, "gated_products", 32 * gated_products.WARPS)
    assert shared == gated_products.SHARED_BYTES
    assert text == gated_products.source()
    assert architecture == gated_products.ARCHITECTURE
    _library_of_products(early=early_products).run_gated_products(*grid, Arguments(arguments).pointers)
