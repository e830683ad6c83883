"""Engines behind one interface: ours and fairchem-core's, each in a process of its own with its own interpreter.

As a program this file is a worker (see workers.py): `python competitors.py ENGINE CHECKPOINT DEVICE TASK THREADS`. It
loads the checkpoint, takes `{"structure": {...}}` and answers with seconds and results. fairchem-core is imported here as a
peer to measure against, and nowhere else.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

from ase import Atoms
from workers import Answer, Worker, as_atoms, as_lists, serve

EDGEWISE: dict[str, dict[str, Any]] = {
    "general": {"execution_mode": "general", "tf32": True},
    "umas_fast_gpu": {"execution_mode": "umas_fast_gpu", "tf32": True, "compile": True},
    "fused:fast": {"execution_mode": "fused", "precision": "fast"},
    "fused:tf32": {"execution_mode": "fused", "precision": "tf32"},
    "fused:float32": {"execution_mode": "fused", "precision": "float32"},
    "float64": {
        "execution_mode": "general",
        "precision": "float64",
        "edge_chunk_size": 20_000,
        "activation_checkpointing": True,
    },
}
"""Settings of our engines, as they are given to InferenceSettings."""

FAIRCHEM: dict[str, dict[str, Any]] = {
    "general": {"execution_mode": "general"},
    "umas_fast_gpu": {"execution_mode": "umas_fast_gpu"},
    "umas_fast_gpu:float32": {"execution_mode": "umas_fast_gpu", "tf32": False},
    "nitro": {"nitro": True},
    "float64": {
        "execution_mode": "general",
        "tf32": False,
        "compile": False,
        # Merging passes through float32 there.
        "merge_mole": False,
        "activation_checkpointing": True,
        "base_precision_dtype": "float64",
    },
}
"""Settings of fairchem's engines, over those that all of them share."""

FAIRCHEM_SHARED: dict[str, Any] = {
    "tf32": True,
    "activation_checkpointing": False,
    "merge_mole": True,
    "compile": True,
    "external_graph_gen": False,
    "internal_graph_gen_version": 2,
}


def precision(engine: str, device: str) -> str:
    """Return the precision by whose bounds an engine is judged."""
    last = engine.rpartition(":")[2]
    if last in ("float64", "float32"):
        return last
    if last == "fast" or engine == "fairchem:nitro":
        return "fast"
    return "tf32" if device == "cuda" else "float32"


@dataclass(frozen=True)
class Engine:
    """A loaded model.

    Attributes:
        version: Of the engine and of torch.
        prepare: Makes the input of `predict` of a structure.
        predict: Computes energy, forces and stress.
        values: Takes these out of what `predict` returns, as lists in float64.
    """

    version: str
    prepare: Callable[[Atoms], Any]
    predict: Callable[[Any], Any]
    values: Callable[[Any], Answer]


def load(engine: str, checkpoint: str, device: str, task: str) -> Engine:
    """Load a checkpoint into an engine, "edgewise:" or "fairchem:" and a name of `EDGEWISE` or `FAIRCHEM`."""
    family, _, name = engine.partition(":")
    if family == "edgewise":
        return _edgewise(EDGEWISE[name], checkpoint, device, task)
    return _fairchem(FAIRCHEM_SHARED | FAIRCHEM[name], checkpoint, device, task)


def _for_cpu(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings without what a CPU does not have: TF32, and compiled programs that would pay."""
    return settings | {name: False for name in ("tf32", "compile") if name in settings}


def _edgewise(chosen: dict[str, Any], checkpoint: str, device: str, task: str) -> Engine:
    import torch

    import edgewise

    settings = edgewise.InferenceSettings.from_dict(chosen if device == "cuda" else _for_cpu(chosen))
    potential = edgewise.load(checkpoint, task=task, device=device, settings=settings)

    def values(output: edgewise.Results) -> Answer:
        only = output[0]
        return as_lists({"energy": only.energy, "forces": only.forces, "stress": only.stress})

    try:
        version = edgewise.__version__
    except PackageNotFoundError:
        # A tree on the import path, not installed; the row names its commit.
        version = "not installed"
    return Engine(f"edgewise {version}, torch {torch.__version__}", lambda atoms: [atoms], potential.predict, values)


def _fairchem(chosen: dict[str, Any], checkpoint: str, device: str, task: str) -> Engine:
    import torch
    from fairchem.core import __version__
    from fairchem.core.datasets.atomic_data import AtomicData, atomicdata_list_to_batch
    from fairchem.core.units.mlip_unit import MLIPPredictUnit
    from fairchem.core.units.mlip_unit.api.inference import InferenceSettings

    if chosen.get("nitro"):
        from fairchem.core.models.uma.uma_nitro import _inference

        # It takes published files only, by their checksums; ours has random weights.
        _inference.verify_checkpoint_file = lambda _path: None
    settings = InferenceSettings(**(chosen if device == "cuda" else _for_cpu(chosen)))
    unit = MLIPPredictUnit(checkpoint, device=device, inference_settings=settings)
    if chosen.get("nitro") and not unit.inference_settings.nitro:
        message = "nitro=True was asked for and another mode runs"
        raise RuntimeError(message)
    dtype = getattr(torch, chosen.get("base_precision_dtype", "float32"))

    def prepare(atoms: Atoms) -> Any:
        data = AtomicData.from_ase(atoms, task_name=task, r_data_keys=["charge", "spin"], target_dtype=dtype)
        return atomicdata_list_to_batch([data])

    def values(output: Any) -> Answer:
        arrays = {name: output[name].detach().double().cpu().numpy() for name in ("energy", "forces", "stress")}
        return as_lists({**arrays, "energy": arrays["energy"][0], "stress": arrays["stress"].reshape(3, 3)})

    return Engine(f"fairchem-core {__version__}, torch {torch.__version__}", prepare, unit.predict, values)


def start(python: str, engine: str, checkpoint: str, threads: int, log: Path, task: str) -> Worker:
    """Start a worker that evaluates structures on the CPU."""
    return Worker(engine, [python, "-u", __file__, engine, checkpoint, "cpu", task, str(threads)], log)


def main() -> None:
    """Be a worker."""
    warnings.simplefilter("ignore")
    name, checkpoint, device, task, threads = sys.argv[1:]

    def prepare() -> tuple[Answer, Callable[[Answer], Answer]]:
        import torch

        torch.set_num_threads(int(threads))
        engine = load(name, checkpoint, device, task)

        def respond(request: Answer) -> Answer:
            atoms = as_atoms(request["structure"])
            begin = time.perf_counter()
            output = engine.predict(engine.prepare(atoms))
            seconds = time.perf_counter() - begin
            return {"seconds": seconds, **engine.values(output)}

        return {"version": engine.version}, respond

    serve(prepare)


if __name__ == "__main__":
    main()
