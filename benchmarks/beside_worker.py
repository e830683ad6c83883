"""One engine of beside_fairchem.py in a process of its own: `python beside_worker.py ENGINE CHECKPOINT DEVICE FRAME`.

Its interpreter may be that of fairchem-core's environment, so that nothing of our package is imported but by our engines.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import competitors
import torch
from records import Row
from timing import busy_milliseconds, timed_blocks
from workers import Answer, as_atoms, serve

TASK = "omat"


@dataclass(frozen=True)
class Protocol:
    """How often an engine predicts before and while it is timed."""

    warm_up: int
    blocks: int
    block: int


def worker(engine: str, checkpoint: str, device: str, frame: str) -> tuple[Answer, Callable[[Answer], Answer]]:
    """Load an engine and predict the frame in a file a few times; then answer requests to predict and to time."""
    begin = time.perf_counter()
    try:
        loaded = competitors.load(engine, checkpoint, device, TASK)
        load_s = time.perf_counter() - begin
        prepared = loaded.prepare(as_atoms(json.loads(Path(frame).read_text())))
        begin = time.perf_counter()
        # The values are taken out within the time: an engine may return before the GPU has finished.
        loaded.values(loaded.predict(prepared))
        first_s = time.perf_counter() - begin
        for _ in range(3):
            loaded.predict(prepared)
    except Exception as error:  # noqa: BLE001, whatever an engine raises is why it cannot serve; the others go on
        return {"unavailable": f"{type(error).__name__}: {error}"[:500]}, lambda request: request
    _tidy(device)
    first = {"version": loaded.version, "load_s": round(load_s, 1), "first_s": round(first_s, 1)}

    def respond(request: Answer) -> Answer:
        try:
            atoms = loaded.prepare(as_atoms(request["structure"]))
            if request["do"] == "predict":
                return loaded.values(loaded.predict(atoms))
            return _timed(partial(_predict, loaded, atoms), Protocol(**request["protocol"]), device)
        except Exception as error:  # noqa: BLE001, as above; a larger frame may not fit into memory
            return {"unavailable": f"{type(error).__name__}: {error}"[:500]}

    return first, respond


def _predict(engine: competitors.Engine, prepared: Any, number: int) -> None:
    del number
    engine.predict(prepared)


def _tidy(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _timed(call: Callable[[int], None], protocol: Protocol, device: str) -> Row:
    """Warm up and time; peaks are of the timed calls, and of everything since the start."""
    for number in range(protocol.warm_up):
        call(number)
    _tidy(device)
    if device != "cuda":
        return timed_blocks(call, protocol.blocks, protocol.block, device)
    call(0)
    torch.cuda.synchronize()
    earlier = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    row = timed_blocks(call, protocol.blocks, protocol.block)
    steady = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    free, total = torch.cuda.mem_get_info()
    names = ("allocated", "reserved")
    for name, now, before in zip(names, steady, earlier, strict=True):
        row[f"peak_{name}_GiB"] = round(now / 2**30, 3)
        row[f"whole_peak_{name}_GiB"] = round(max(now, before) / 2**30, 3)
    row["device_used_GiB"] = round((total - free) / 2**30, 3)
    busy, kernels = busy_milliseconds(call, min(5, protocol.block))
    row |= {"busy_ms": round(busy, 3), "launches": sum(item[2] for item in kernels)}
    row["kernels"] = [(name[:90], round(ms, 3), calls) for name, ms, calls in kernels[:12]]
    return row


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve(partial(worker, *sys.argv[1:]))
