"""The six optimizations of mode umas_fast_gpu against the paths that they replace: operations, whole steps, numerics.

Whole steps run in processes of their own, base, head, head, base, each with fresh compile caches; base has all six off.
They compile side by side, and are timed one after the other while the others wait.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_step import busy_milliseconds
from models import uma_s
from ops import edge_problem, gate, gather_rotate, measure, rotate_scatter
from structures import copper

import edgewise
from edgewise.ops.fast import Optimizations, fast_ops
from edgewise.ops.packed_rotation import as_packed
from edgewise.so3 import edge_rotations, packed_edge_rotations

WARM_UP, BLOCKS, BLOCK = 24, 8, 100
DISPLACEMENTS = (-0.02, -0.003, 0.0, 0.003, 0.02)
"""Å, along one random direction for each atom."""

N_EXPERTS = 64

CASE = "1000 Cu, UMA-S size, energy + forces + stress, TF32, compiled"

READY = "ready"
"""What a worker says when it has compiled."""


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


def worker(name: str, out: Path) -> None:
    """Compile and warm up one variant, wait for the turn, time it by the protocol, and write a row and results."""
    given = frames()
    potential = edgewise.Potential(uma_s(n_experts=N_EXPERTS), task="omat", device="cuda", settings=settings())
    potential = potential.with_ops(fast_ops(variant(name)))
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    for number in range(WARM_UP):
        potential.predict([given[number % len(given)]])
        if number == 0:
            first = time.perf_counter() - begin
    row: dict[str, Any] = {"variant": name, "first_s": round(first, 1)}
    row["warm_up_s"] = round(time.perf_counter() - begin, 1)
    row["peak_MiB"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
    row["reserved_MiB"] = round(torch.cuda.memory_reserved() / 2**20, 1)
    print(READY, flush=True)
    input()
    row |= _timed_blocks(potential, given)
    busy, kernels = busy_milliseconds(potential, given[2])
    row |= {"busy_ms": round(busy, 3), "launches": sum(item[2] for item in kernels)}
    row["kernels"] = [(kernel[:90], round(ms, 3), calls) for kernel, ms, calls in kernels[:12]]
    results = potential.predict(given)
    np.savez(out.with_suffix(".npz"), energy=results.energy, forces=results.forces, stress=results.stress)
    out.write_text(json.dumps(row))


def _timed_blocks(potential: edgewise.Potential, given: list[Any]) -> dict[str, Any]:
    # The GPU has been at rest while others had their turn.
    for number in range(WARM_UP):
        potential.predict([given[number % len(given)]])
    torch.cuda.reset_peak_memory_stats()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]  # noqa: SLF001
    on_gpu, wall = [], []
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for number in range(BLOCKS * BLOCK):
        begin = time.perf_counter()
        start.record()
        potential.predict([given[number % len(given)]])
        stop.record()
        stop.synchronize()
        wall.append(1000 * (time.perf_counter() - begin))
        on_gpu.append(start.elapsed_time(stop))
    blocks = [statistics.median(wall[i : i + BLOCK]) for i in range(0, len(wall), BLOCK)]
    return {
        "recompiled": torch._dynamo.utils.counters["stats"]["unique_graphs"] - graphs,  # noqa: SLF001
        "steady_peak_MiB": round(torch.cuda.max_memory_allocated() / 2**20, 1),
        "gpu_median_ms": round(statistics.median(on_gpu), 3),
        "gpu_min_ms": round(min(on_gpu), 3),
        "wall_median_ms": round(statistics.median(wall), 3),
        "wall_min_ms": round(min(wall), 3),
        "wall_block_medians_ms": [round(item, 3) for item in blocks],
        "queries_per_second": round(1000 / statistics.median(on_gpu), 3),
    }


class _Worker:
    """A process that times one variant when it is told to."""

    def __init__(self, name: str, folder: Path, number: int) -> None:
        """Start the process; it compiles with caches of its own, while others do the same."""
        self.name, self.out, self.log = name, folder / f"{number}.json", folder / f"{number}.log"
        own = {
            "TORCHINDUCTOR_CACHE_DIR": str(folder / f"inductor{number}"),
            "TRITON_CACHE_DIR": str(folder / f"triton{number}"),
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__, name, str(self.out)],
            env={**os.environ, **own},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
        )

    def wait_until_ready(self) -> None:
        """Return when the process has compiled and warmed up."""
        assert self._process.stdout is not None
        if not any(line.strip() == READY for line in self._process.stdout):
            self._fail()

    def take_turn(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Let the process time its variant; return its row and its results for every frame."""
        self._process.communicate("go\n")
        if self._process.returncode:
            self._fail()
        with np.load(self.out.with_suffix(".npz")) as archive:
            return json.loads(self.out.read_text()), dict(archive)

    def stop(self) -> None:
        """End the process where it has not ended by itself."""
        self._process.kill()
        self._process.wait()

    def _fail(self) -> None:
        message = f"the worker of {self.name!r} failed:\n{self.log.read_text()[-3000:]}"
        raise RuntimeError(message)


def _differences(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> dict[str, float]:
    """Return largest and relative L2 differences of energy, forces and stress over all frames."""
    found = {}
    for name in ("energy", "forces", "stress"):
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
    return {name: np.concatenate([getattr(item, name) for item in results]) for name in ("energy", "forces", "stress")}


def ops(out: Path) -> Iterator[dict[str, Any]]:
    """Operations, fused against materialised, on the copper graph and on a random one."""
    del out
    for graph in ("copper", "random"):
        for op in (gather_rotate, rotate_scatter, gate):
            yield from op.rows(graph)
        yield from _joined_rows(graph)
        yield from _packed_rows(graph)


def _joined_rows(graph: str) -> Iterator[dict[str, Any]]:
    """The blocks kept, against joining them to [n_edges, 9, channels] and splitting them again."""
    blocks = edge_problem.make(graph).blocks()
    widths = [block.shape[1] for block in blocks]

    def joined() -> tuple[torch.Tensor, ...]:
        return torch.split(torch.cat(blocks, dim=1), widths, dim=1)

    yield {"op": "edge_message", "graph": graph, **measure.compare("blocks kept", lambda: blocks, joined)}


def _packed_rows(graph: str) -> Iterator[dict[str, Any]]:
    """The generator of packed rotations against the dense one."""
    given = edge_problem.make(graph)
    n = torch.nn.functional.normalize(
        torch.randn(given.edge_index.shape[1], 3, device="cuda", dtype=torch.float64), dim=1
    )
    row = measure.compare(
        "packed rotations made",
        lambda: [packed_edge_rotations(n, 2, 2)],
        lambda: [as_packed(edge_rotations(n, 2, 2))],
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
        workers = [_Worker(name, Path(folder), number) for number, name in enumerate(order)]
        for item in workers:
            stack.callback(item.stop)
        for item in workers:
            item.wait_until_ready()
        for item in workers:
            row, results = item.take_turn()
            row["error_against_float64"] = _differences(results, exact)
            if base is not None:
                row["difference_from_first_base"] = _differences(results, base)
            elif item.name == "base":
                base = results
            yield {"case": CASE, **row}


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
    worker(sys.argv[1], Path(sys.argv[2]))
