"""The six optimizations of mode umas_fast_gpu against the paths that they replace: operations, whole steps, numerics.

Whole steps run in processes of their own, base, head, head, base, each with fresh compile caches; base has all six off.
They compile side by side, are checked against float64, and are timed one after the other while the others wait.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checks import errors, require_errors
from machine import require_gpu
from models import uma_s
from ops import edge_problem, gate, gather_rotate, measure, rotate_scatter
from sizes import CHANNELS, REFERENCE_EDGES
from structures import copper
from timing import busy_milliseconds, timed_blocks
from workers import Answer, Worker, as_lists, serve

import edgewise
from edgewise.ops.fast import Optimizations, fast_ops
from edgewise.ops.packed_rotation import as_packed
from edgewise.so3 import edge_rotations, packed_edge_rotations

WARM_UP, BLOCKS, BLOCK = 24, 8, 100
DISPLACEMENTS = (-0.02, -0.003, 0.0, 0.003, 0.02)
"""Å, along one random direction for each atom."""

N_EXPERTS = 64

QUANTITIES = ("energy", "forces", "stress")

CASE = "1000 Cu, UMA-S size, energy + forces + stress, TF32, compiled"


def frames() -> list[Any]:
    """Return the frames: the 1000-atom crystal, each atom moved along a direction of its own."""
    base = copper()
    direction = np.random.default_rng(7).normal(size=base.positions.shape)
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    made = []
    for step in DISPLACEMENTS:
        atoms = base.copy()
        atoms.positions += step * direction
        made.append(atoms)
    return made


def settings(*, compiled: bool = True) -> edgewise.InferenceSettings:
    """Return the settings of the protocol: TF32, merged experts, compiled."""
    return edgewise.InferenceSettings(
        tf32=True,
        activation_checkpointing=False,
        merge_mole=True,
        compile=compiled,
        execution_mode="umas_fast_gpu",
    )


def variant(name: str) -> Optimizations:
    """Return which optimizations a variant has: "head", "base", or "without" and the name of one."""
    if name == "head":
        return Optimizations()
    if name == "base":
        return Optimizations.none()
    return replace(Optimizations(), **{name.removeprefix("without "): False})


def worker(name: str) -> tuple[Answer, Callable[[Answer], Answer]]:
    """Compile and warm up one variant; answer with its results, and when asked with a row of times."""
    given = frames()
    potential = edgewise.Potential(uma_s(n_experts=N_EXPERTS), task="omat", device="cuda", settings=settings())
    potential = potential.with_ops(fast_ops(variant(name)))

    def call(number: int) -> None:
        potential.predict([given[number % len(given)]])

    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    call(0)
    first = time.perf_counter() - begin
    for number in range(1, WARM_UP):
        call(number)
    row: dict[str, Any] = {"variant": name, "first_s": round(first, 1)}
    row["warm_up_s"] = round(time.perf_counter() - begin, 1)
    row["peak_MiB"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
    row["reserved_MiB"] = round(torch.cuda.memory_reserved() / 2**20, 1)
    results = potential.predict(given)

    def respond(request: Answer) -> Answer:
        del request
        return row | _timed(potential, call, given[2])

    return as_lists({name: getattr(results, name) for name in QUANTITIES}), respond


def _timed(potential: edgewise.Potential, call: Callable[[int], None], atoms: Any) -> dict[str, Any]:
    # The GPU has been at rest while others had their turn.
    for number in range(WARM_UP):
        call(number)
    torch.cuda.reset_peak_memory_stats()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]  # noqa: SLF001
    times = timed_blocks(call, BLOCKS, BLOCK)
    found = {
        "recompiled": torch._dynamo.utils.counters["stats"]["unique_graphs"] - graphs,  # noqa: SLF001
        "steady_peak_MiB": round(torch.cuda.max_memory_allocated() / 2**20, 1),
        **times,
        "queries_per_second": round(1000 / times["gpu_median_ms"], 3),
    }
    busy, kernels = busy_milliseconds(lambda _: potential.predict([atoms]))
    found |= {"busy_ms": round(busy, 3), "launches": sum(item[2] for item in kernels)}
    found["kernels"] = [(kernel[:90], round(ms, 3), calls) for kernel, ms, calls in kernels[:12]]
    return found


def _differences(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> dict[str, float]:
    """Return largest and relative L2 differences of energy, forces and stress over all frames."""
    found = {}
    for name in QUANTITIES:
        difference = a[name] - b[name]
        found[f"{name}_max"] = float(f"{np.abs(difference).max():.3g}")
        found[f"{name}_relative"] = float(f"{np.linalg.norm(difference) / np.linalg.norm(b[name]):.3g}")
    return found


def _exact() -> dict[str, np.ndarray]:
    exact = edgewise.Potential(
        uma_s(n_experts=N_EXPERTS),
        task="omat",
        device="cuda",
        settings=edgewise.InferenceSettings(execution_mode="general", precision="float64"),
    )
    results = [exact.predict([atoms]) for atoms in frames()]
    return {name: np.concatenate([getattr(item, name) for item in results]) for name in QUANTITIES}


def ops(out: Path) -> Iterator[dict[str, Any]]:
    """Operations, fused against materialised, on the copper graph and on a random one."""
    del out
    for graph in ("copper", "random"):
        parts = (gather_rotate.rows, rotate_scatter.rows, gate.rows, _joined_rows, _packed_rows)
        for row in chain.from_iterable(part(graph) for part in parts):
            yield {**row, "edges": REFERENCE_EDGES, "channels": CHANNELS}


def _joined_rows(graph: str) -> Iterator[dict[str, Any]]:
    """The blocks kept, against joining them to [n_edges, 9, channels] and splitting them again."""
    blocks = edge_problem.make(graph).blocks()
    widths = [block.shape[1] for block in blocks]

    def joined() -> tuple[torch.Tensor, ...]:
        return torch.split(torch.cat(blocks, dim=1), widths, dim=1)

    yield {"op": "edge_message", "graph": graph, **measure.compare("blocks kept", lambda: blocks, joined, bound=0.0)}


def _packed_rows(graph: str) -> Iterator[dict[str, Any]]:
    """The generator of packed rotations against the dense one."""
    given = edge_problem.make(graph)
    n = torch.nn.functional.normalize(
        torch.randn(given.edge_index.shape[1], 3, device="cuda", dtype=torch.float64), dim=1
    )
    row = measure.compare(
        "packed rotations made",
        lambda: [packed_edge_rotations(n, edge_problem.LMAX, edge_problem.LMAX)],
        lambda: [as_packed(edge_rotations(n, edge_problem.LMAX, edge_problem.LMAX))],
        bound=1e-14,
    )
    row["MiB_a_tensor"] = round(given.packed.numel() * 4 / 2**20, 1)
    row["MiB_a_tensor_replaced"] = round(given.dense.numel() * 4 / 2**20, 1)
    yield {"op": "edge_geometry", "graph": graph, **row}


def _steps(order: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Compile all variants at the same time, then time one after the other with the GPU to itself."""
    exact = _exact()
    torch.cuda.empty_cache()
    base: dict[str, np.ndarray] | None = None
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        workers: list[Worker] = []
        for number, name in enumerate(order):
            own = Path(folder) / str(number)
            own.mkdir()
            workers.append(Worker(name, [sys.executable, "-u", __file__, name], own / "log", caches=own))
            stack.callback(workers[-1].stop)
        outcomes = [
            {name: np.array(value) for name, value in item.answer().items() if name in QUANTITIES} for item in workers
        ]
        for item, outcome in zip(workers, outcomes, strict=True):
            require_errors(item.name, errors(outcome, exact, len(copper())), "tf32")
        for item, outcome in zip(workers, outcomes, strict=True):
            row = item.ask(do="time")
            item.stop()
            row["error_against_float64"] = _differences(outcome, exact)
            if base is not None:
                row["difference_from_first_base"] = _differences(outcome, base)
            elif item.name == "base":
                base = outcome
            yield {"case": CASE, "atoms": len(copper()), **row}


def steps(out: Path) -> Iterator[dict[str, Any]]:
    """Whole steps by the protocol, base, head, head, base, with their numerics."""
    del out
    yield from _steps(("base", "head", "head", "base"))


def each(out: Path) -> Iterator[dict[str, Any]]:
    """Whole steps with all six, and with one after the other switched off."""
    del out
    yield from _steps(("head", *(f"without {item.name}" for item in fields(Optimizations))))


STAGES = {"ops": ops, "steps": steps, "each": each}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One worker; `python benchmarks/run.py six` starts and asks them.")
    parser.add_argument("variant", help='"head", "base", or "without" and the name of an optimization')
    chosen = parser.parse_args()
    require_gpu(parser)
    serve(partial(worker, chosen.variant))
