"""Times the edge kernels of mode fused and a whole captured step, each beside its error against float64.

    python benchmarks/fused_step.py [--atoms 1000] [--types float16 float32] [--profile 20]

The step is captured as it stands: neighbours and geometry are made before.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from typing import Any

import torch
from checks import errors
from machine import require_gpu
from models import uma_s
from structures import copper
from torch import Tensor

import edgewise
from edgewise.engine.fused.kernel_edges import KernelEdges
from edgewise.engine.fused.kernel_nodes import KernelNodes
from edgewise.engine.fused.step import Step, StepInputs
from edgewise.engine.fused.weights import prepare
from edgewise.systems import batch_from_atoms


def potential(precision: str, **settings: Any) -> edgewise.Potential:
    """Return a potential of the size of UMA-S on the GPU, mode general."""
    chosen = edgewise.InferenceSettings(execution_mode="general", precision=precision, **settings)
    return edgewise.Potential(uma_s(n_experts=8), task="omat", device="cuda", settings=chosen)


def captured(step: Step, inputs: StepInputs) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
    """Capture a step; return the graph and where it leaves node energies and edge gradients."""
    for _ in range(3):
        step.evaluate(inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output, gradient = step.evaluate(inputs)
    assert gradient is not None
    return graph, output.node_energy, gradient


def timed(graph: torch.cuda.CUDAGraph, repeats: int = 50) -> dict[str, float]:
    """Return the time of a replay, ms, and the memory in use, GiB."""
    for _ in range(5):
        graph.replay()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(repeats):
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return {
        "step_ms": round(sorted(times)[repeats // 2], 3),
        "step_ms_best": round(min(times), 3),
        "peak_GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "reserved_GiB": round(torch.cuda.memory_reserved() / 2**30, 2),
    }


def show_kernels(graph: torch.cuda.CUDAGraph, shown: int, repeats: int = 5) -> None:
    """Print the kernels of a replay that take most of the time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeats):
            graph.replay()
        torch.cuda.synchronize()
    kernels = [item for item in profile.key_averages() if item.device_type == torch.autograd.DeviceType.CUDA]
    kernels.sort(key=lambda item: -item.self_device_time_total)
    busy = sum(item.self_device_time_total for item in kernels) / 1000 / repeats
    print(f"busy {busy:.3f} ms, {sum(item.count for item in kernels) // repeats} kernels")
    for item in kernels[:shown]:
        milliseconds = item.self_device_time_total / 1000 / repeats
        print(f"{milliseconds:8.3f} ms {item.count // repeats:5d}  {item.key[:110]}", flush=True)


def main() -> None:
    """Check, then time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, nargs=3, default=(10, 10, 10))
    parser.add_argument("--types", nargs="+", default=["float16", "float32"])
    parser.add_argument("--profile", type=int, default=25, help="print this many kernels")
    arguments = parser.parse_args()
    require_gpu(parser)
    atoms = copper(tuple(arguments.repeat))
    exact = potential("float64", edge_chunk_size=20000, activation_checkpointing=True).predict([atoms])
    torch.cuda.empty_cache()
    plain = potential("float32")
    runner = plain._runner  # noqa: SLF001
    network = runner.network
    batch = batch_from_atoms([atoms], ["omat"])
    edges = runner._edges(batch).to("cuda")  # noqa: SLF001
    mixed, of_system = runner.mixtures.for_batch(batch)
    scales = runner._scales.of(batch, runner.device)  # noqa: SLF001
    batch = batch.to("cuda")
    for name in arguments.types:
        dtype = getattr(torch, name)
        torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        step = Step(network, partial(KernelEdges, cutoff=network.config.cutoff, dtype=dtype), KernelNodes())
        inputs = step.inputs(batch, edges, [prepare(network.backbone, item, dtype) for item in mixed], of_system)
        graph, node_energy, gradient = captured(step, inputs)
        torch.cuda.synchronize()
        first = time.perf_counter() - begin
        graph.replay()
        outputs = runner._conservative_outputs(batch, edges, node_energy.double(), gradient.double(), scales)  # noqa: SLF001
        again = gradient.clone()
        graph.replay()
        row: dict[str, Any] = {"rows": name, "edges": edges.edge_index.shape[1], "first_s": round(first, 1)}
        row["repeats"] = bool(torch.equal(again, gradient))
        row |= errors(
            {key: getattr(outputs, key).cpu().numpy() for key in ("energy", "forces", "stress")},
            {key: getattr(exact, key) for key in ("energy", "forces", "stress")},
            len(atoms),
        )
        row |= timed(graph)
        print(json.dumps(row), flush=True)
        show_kernels(graph, arguments.profile)
        del graph, step, inputs, node_energy, gradient


if __name__ == "__main__":
    main()
