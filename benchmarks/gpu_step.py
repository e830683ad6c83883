"""Times one energy, forces and stress step on a GPU in several modes, after checking each against float64.

python benchmarks/gpu_step.py [--atoms 1000] [--profile] [--variants general fast fast_compiled ...]
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import pstats
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from checks import errors, require_errors
from machine import require_gpu
from models import uma_s
from sizes import REPEATS
from structures import copper
from timing import busy_milliseconds, timed_blocks

import edgewise
from edgewise.ops.fast import Optimizations, fast_ops


def settings(variant: str) -> edgewise.InferenceSettings:
    """Return the settings of a variant: mode, and the words compiled, tf32, float64 behind it."""
    words = variant.split("_")
    return edgewise.InferenceSettings(
        execution_mode="general" if words[0] == "general" else "umas_fast_gpu",
        compile="compiled" in words,
        precision="float64" if "float64" in words else "tf32" if "tf32" in words else "float32",
    )


def predict_again(potential: edgewise.Potential, atoms: Any, number: int) -> None:
    """Predict once more, whatever the number of the call."""
    del number
    potential.predict([atoms], "omat")


def export_trace(potential: edgewise.Potential, atoms: Any, path: Path, steps: int = 2) -> None:
    """Write what host and GPU do in a few steps, for Perfetto or chrome://tracing."""
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(steps):
            potential.predict([atoms], "omat")
        torch.cuda.synchronize()
    profile.export_chrome_trace(str(path))


def host_profile(potential: edgewise.Potential, atoms: Any, shown: int, steps: int = 20) -> None:
    """Print where the host spends its time: functions by cumulative and by own time, milliseconds over all steps."""
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(steps):
        potential.predict([atoms], "omat")
    profile.disable()
    for order in ("cumulative", "tottime"):
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats(order).print_stats(shown)
        print("\n".join(line[:130] for line in text.getvalue().splitlines() if line.strip()), flush=True)


def main() -> None:
    """Check, then time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atoms", type=int, choices=sorted(REPEATS), default=1000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--profile", type=int, default=0, help="print this many kernels of each variant")
    parser.add_argument(
        "--variants", nargs="+", default=["general_tf32", "fast", "fast_tf32", "base_tf32", "fast_tf32_compiled"]
    )
    parser.add_argument("--host", type=int, default=0, help="print this many functions of the host's profile")
    parser.add_argument("--trace", type=Path, help="folder for a trace of each variant")
    parser.add_argument("--compile-times", action="store_true", help="print what the first call spends its time on")
    arguments = parser.parse_args()
    require_gpu(parser)
    checkpoint, atoms = uma_s(n_experts=8), copper(REPEATS[arguments.atoms])
    exact = edgewise.Potential(checkpoint, device="cuda", settings=settings("general_float64")).predict([atoms], "omat")
    for variant in arguments.variants:
        potential = edgewise.Potential(checkpoint, device="cuda", settings=settings(variant))
        if variant.startswith("base"):
            potential = potential.with_ops(fast_ops(Optimizations.none()))
        start = time.perf_counter()
        result = potential.predict([atoms], "omat")
        first = time.perf_counter() - start
        found = errors(vars(result), vars(exact))
        require_errors(variant, found, settings(variant).resolve_precision("cuda"))
        call = partial(predict_again, potential, atoms)
        for number in range(5):
            call(number)
        torch.cuda.reset_peak_memory_stats()
        times = timed_blocks(call, 1, arguments.steps)
        peak = torch.cuda.max_memory_allocated()
        busy, kernels = busy_milliseconds(call)
        row = {
            "variant": variant,
            "atoms": len(atoms),
            "wall_ms": round(times["wall_median_ms"], 2),
            "wall_min_ms": round(times["wall_min_ms"], 2),
            "busy_ms": round(busy, 2),
            "launches": sum(item[2] for item in kernels),
            "peak_GiB": round(peak / 2**30, 2),
            "first_s": round(first, 1),
            **found,
        }
        print(json.dumps(row), flush=True)
        for name, milliseconds, calls in kernels[: arguments.profile]:
            print(f"    {milliseconds:7.3f} ms {calls:5d}  {name[:110]}", flush=True)
        if arguments.compile_times:
            print(torch._dynamo.utils.compile_times(repr="str", aggregate=True), flush=True)  # noqa: SLF001
        if arguments.trace:
            export_trace(potential, atoms, arguments.trace / f"{variant}.json.gz")
        if arguments.host:
            host_profile(potential, atoms, arguments.host)
        del potential
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
