"""How calls are timed: by the wall clock, between CUDA events, and by what the profiler sees on the GPU."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

Call = Callable[[int], object]
"""Does one thing; the argument counts the calls."""

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of a trace that keep the GPU busy; ranges named by a program overlap them and are left out."""


def timed_blocks(call: Call, blocks: int, block: int, device: str = "cuda") -> dict[str, Any]:
    """Time calls one by one, with the device at rest between them.

    Returns:
        Median and best between CUDA events (on a GPU) and of the wall clock, ms; the wall clock's median of each block.
    """
    wall, on_gpu = [], []
    for number in range(blocks * block):
        if device == "cuda":
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin = time.perf_counter()
            start.record()
            call(number)
            stop.record()
            torch.cuda.synchronize()
            wall.append(1000 * (time.perf_counter() - begin))
            on_gpu.append(start.elapsed_time(stop))
        else:
            begin = time.perf_counter()
            call(number)
            wall.append(1000 * (time.perf_counter() - begin))
    found: dict[str, Any] = {}
    if on_gpu:
        found |= {"gpu_median_ms": round(statistics.median(on_gpu), 3), "gpu_min_ms": round(min(on_gpu), 3)}
    found |= {"wall_median_ms": round(statistics.median(wall), 3), "wall_min_ms": round(min(wall), 3)}
    parts = [wall[start : start + block] for start in range(0, len(wall), block)]
    found["wall_block_medians_ms"] = [round(statistics.median(part), 3) for part in parts]
    return found


def busy_milliseconds(call: Call, steps: int = 5) -> tuple[float, list[tuple[str, float, int]]]:
    """Return the GPU's busy time of a call, and the kernels that take most of it (name, ms a call, launches a call)."""
    seen: dict[str, list[float]] = defaultdict(list)
    for name, milliseconds in gpu_events(call, steps):
        seen[name].append(milliseconds)
    listed = [(name, sum(times) / steps, len(times) // steps) for name, times in seen.items()]
    listed.sort(key=lambda item: -item[1])
    return sum(item[1] for item in listed), listed


def gpu_events(call: Call, steps: int = 5) -> list[tuple[str, float]]:
    """Return name and ms of everything that keeps the GPU busy in some calls, in the order of time."""
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    # The first call under the profiler is slowed by its start.
    call(0)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        for number in range(steps):
            call(number)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8", errors="replace"), strict=False)["traceEvents"]
    return in_order(events)


def in_order(events: Iterable[dict[str, Any]]) -> list[tuple[str, float]]:
    """Return name and ms of those events of a trace that keep the GPU busy, in the order of time."""
    busy = [event for event in events if event.get("ph") == "X" and event.get("cat") in ON_GPU]
    return [(event["name"], event["dur"] / 1000) for event in sorted(busy, key=lambda event: event["ts"])]
