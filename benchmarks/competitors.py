"""Engines behind one interface: each runs in a process of its own, with its own interpreter, and answers on request.

As a program this file is a worker: `python competitors.py ENGINE CHECKPOINT THREADS`. It reads one request a line from
standard input, `{"structure": {...}, "precision": "float32"}`, and writes one line of JSON with the seconds that the call
took and its results. fairchem-core is imported here as a peer to measure against, and nowhere else.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

Outcome = dict[str, Any]
Evaluate = Callable[[Any, str], Outcome]


class Competitor:
    """An engine in a process of its own."""

    def __init__(self, python: str, engine: str, checkpoint: str, threads: int) -> None:
        """Start the process.

        Args:
            python: Interpreter of the environment that holds the engine.
            engine: "edgewise" or "fairchem".
            checkpoint: Path of the checkpoint.
            threads: Threads of torch.
        """
        command = [python, "-u", __file__, engine, checkpoint, str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, structure: dict[str, Any], task: str, precision: str = "float32") -> Outcome:
        """Evaluate a structure once and return seconds, energy, forces and stress."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"structure": structure, "task": task, "precision": precision}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            # Engines may print what they like; answers begin with a mark.
            if line.startswith("ANSWER "):
                return json.loads(line.removeprefix("ANSWER "))
        message = f"the worker ended with code {self._process.wait()}"
        raise SystemExit(message)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _edgewise(checkpoint: str) -> Evaluate:
    import torch

    import edgewise

    potentials: dict[str, edgewise.Potential] = {}

    def evaluate(atoms: Any, task: str, precision: str) -> Outcome:
        if precision not in potentials:
            # The reference is as plain as can be: experts unmerged.
            settings = edgewise.InferenceSettings(precision=precision, merge_mole=precision == "float32")
            potentials[precision] = edgewise.load(checkpoint, settings=settings)
        start = time.perf_counter()
        result = potentials[precision].predict([atoms], task)[0]
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "energy": result.energy,
            "forces": result.forces.tolist(),
            "stress": result.stress.tolist(),
            "version": f"edgewise {edgewise.__version__}, torch {torch.__version__}",
        }

    return evaluate


def _fairchem(checkpoint: str) -> Evaluate:
    import torch
    from fairchem.core import __version__
    from fairchem.core.datasets.atomic_data import AtomicData, atomicdata_list_to_batch
    from fairchem.core.units.mlip_unit import MLIPPredictUnit
    from fairchem.core.units.mlip_unit.api.inference import InferenceSettings

    units: dict[str, Any] = {}

    def evaluate(atoms: Any, task: str, precision: str) -> Outcome:
        dtype = getattr(torch, precision)
        if precision not in units:
            settings = InferenceSettings(
                tf32=False,
                activation_checkpointing=False,
                merge_mole=precision == "float32",
                compile=False,
                external_graph_gen=False,
                internal_graph_gen_version=2,
                base_precision_dtype=dtype,
                execution_mode="general",
            )
            units[precision] = MLIPPredictUnit(checkpoint, device="cpu", inference_settings=settings)
        start = time.perf_counter()
        data = AtomicData.from_ase(atoms, task_name=task, r_data_keys=["charge", "spin"], target_dtype=dtype)
        output = units[precision].predict(atomicdata_list_to_batch([data]))
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "energy": float(output["energy"][0]),
            "forces": output["forces"].double().tolist(),
            "stress": output["stress"].double().reshape(3, 3).tolist(),
            "version": f"fairchem-core {__version__}, torch {torch.__version__}",
        }

    return evaluate


ENGINES: dict[str, Callable[[str], Any]] = {"edgewise": _edgewise, "fairchem": _fairchem}


def main() -> None:
    """Serve requests until standard input ends."""
    warnings.simplefilter("ignore")
    engine, checkpoint, threads = sys.argv[1:]
    import torch
    from ase import Atoms

    torch.set_num_threads(int(threads))
    evaluate = ENGINES[engine](checkpoint)
    for line in sys.stdin:
        request = json.loads(line)
        atoms = Atoms(**request["structure"], info={"charge": 0, "spin": 0})
        print("ANSWER " + json.dumps(evaluate(atoms, request["task"], request["precision"])), flush=True)


if __name__ == "__main__":
    main()
