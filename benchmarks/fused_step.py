"""Times the kernels of mode fused and whole captured steps, each after its check against float64.

    python benchmarks/fused_step.py [--repeat 10 10 10] [--formats float16 split tf32 float32] [--kernels 25]
    python benchmarks/run.py written_out                  the same for the record, and every kernel alone

A step is captured as it stands: neighbours and geometry are made before.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from checks import errors, require, require_errors
from machine import require_gpu
from models import uma_s
from ops.fused import problem
from ops.fused.all_ops import IN_CUDA, OPS
from structures import copper

import edgewise
from edgewise.engine.fused.kernel_edges import KernelEdges
from edgewise.engine.fused.kernel_nodes import KernelNodes
from edgewise.engine.fused.recorded import Recorded
from edgewise.engine.fused.step import Step
from edgewise.engine.fused.weights import prepare
from edgewise.ops.fused.row_format import FLOAT16, FLOAT32, FORMATS, SPLIT, TF32, RowFormat
from edgewise.systems import batch_from_atoms

Row = dict[str, Any]

PRECISIONS = {FLOAT16: "fast", TF32: "tf32", SPLIT: "float32", FLOAT32: "float32"}
"""By whose bounds rows in a format are judged."""


def potential(precision: str, **settings: Any) -> edgewise.Potential:
    """Return a potential of the size of UMA-S on the GPU, mode general."""
    chosen = edgewise.InferenceSettings(execution_mode="general", precision=precision, **settings)
    return edgewise.Potential(uma_s(n_experts=8), task="omat", device="cuda", settings=chosen)


def timed(recorded: Recorded[Any], repeats: int = 50) -> Row:
    """Return the time of a replay, ms, and the memory in use, GiB."""
    for _ in range(5):
        recorded()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(repeats):
        start.record()
        recorded()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return {
        "step_ms": round(sorted(times)[repeats // 2], 3),
        "step_ms_best": round(min(times), 3),
        "peak_GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "reserved_GiB": round(torch.cuda.memory_reserved() / 2**30, 2),
    }


def kernels(recorded: Recorded[Any], repeats: int = 5) -> list[tuple[str, float, int]]:
    """Return the kernels of a replay, those that take most of the time first: name, ms and calls."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeats):
            recorded()
        torch.cuda.synchronize()
    found = [item for item in profile.key_averages() if item.device_type == torch.autograd.DeviceType.CUDA]
    found.sort(key=lambda item: -item.self_device_time_total)
    return [
        (item.key[:110], round(item.self_device_time_total / 1000 / repeats, 3), item.count // repeats)
        for item in found
    ]


def steps(repeat: tuple[int, int, int], formats: list[RowFormat]) -> Iterator[Row]:
    """Check, then time a captured step with rows in each format."""
    atoms = copper(repeat)
    exact = potential("float64", edge_chunk_size=20000, activation_checkpointing=True).predict([atoms])
    torch.cuda.empty_cache()
    runner = potential("float32")._runner  # noqa: SLF001
    network, given = runner.network, batch_from_atoms([atoms], ["omat"])
    edges = runner._edges(given).to("cuda")  # noqa: SLF001
    mixed, of_system = runner.mixtures.for_batch(given)
    scales, batch = runner._scales.of(given, runner.device), given.to("cuda")  # noqa: SLF001
    for row_format in formats:
        torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        make_edges = partial(KernelEdges.listed, cutoff=network.config.cutoff, row_format=row_format)
        step = Step(network, make_edges, KernelNodes())
        inputs = step.inputs(batch, edges, [prepare(network.backbone, item, row_format) for item in mixed], of_system)
        recorded = Recorded(partial(step.evaluate, inputs), torch.device("cuda"))
        output, gradient = recorded()
        torch.cuda.synchronize()
        assert gradient is not None
        row: Row = {"rows": row_format.name, "atoms": len(atoms), "edges": edges.edge_index.shape[1]}
        row["first_s"] = round(time.perf_counter() - begin, 1)
        outputs = runner._conservative_outputs(batch, edges, output.node_energy.double(), gradient, scales)  # noqa: SLF001
        found = {key: getattr(outputs, key).cpu().numpy() for key in ("energy", "forces", "stress")}
        row |= errors(found, {key: getattr(exact, key) for key in found}, len(atoms))
        require_errors(f"rows in {row_format.name}", row, PRECISIONS[row_format])
        before = gradient.clone()
        recorded()
        require("difference of two replays", float((gradient - before).abs().max()), 0.0)
        row |= timed(recorded)
        row["kernels"] = kernels(recorded)
        row["busy_ms"] = round(sum(item[1] for item in row["kernels"]), 3)
        row["launches"] = sum(item[2] for item in row["kernels"])
        yield row
        del recorded, step, inputs, output, gradient, outputs


def ops(out: Path) -> Iterator[Row]:
    """Every kernel alone, beside plain PyTorch, with rows in each format."""
    del out
    for op in (*OPS, *IN_CUDA):
        for row_format in problem.BOUNDS:
            yield from op.rows("copper", row_format)


def step(out: Path) -> Iterator[Row]:
    """A captured step of 1000 copper atoms, with rows in each format."""
    del out
    yield from steps((10, 10, 10), list(PRECISIONS))


STAGES = {"ops": ops, "step": step}


def main() -> None:
    """Print what is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, nargs=3, default=(10, 10, 10), help="of the primitive cell of copper")
    names = [item.name for item in PRECISIONS]
    parser.add_argument("--formats", nargs="+", choices=names, default=names, help="of rows of edges")
    parser.add_argument("--kernels", type=int, default=25, help="print this many kernels")
    arguments = parser.parse_args()
    require_gpu(parser)
    for row in steps(tuple(arguments.repeat), [FORMATS[name] for name in arguments.formats]):
        print(json.dumps({key: value for key, value in row.items() if key != "kernels"}), flush=True)
        for name, milliseconds, calls in row["kernels"][: arguments.kernels]:
            print(f"{milliseconds:8.3f} ms {calls:5d}  {name}", flush=True)


if __name__ == "__main__":
    main()
