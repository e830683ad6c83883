"""Write ``tests/golden/options``: the peer's numbers for every option that a checkpoint can set.

Run it in an environment of its own that has fairchem-core 2.24.0 (see README.md beside this file):

    python tests/golden/make_option_goldens.py

Each variant of ``option_variants.py`` becomes a random-weight model; the peer evaluates it in
float64, general mode, experts unmerged. What the peer refuses is written down with its message.
Variants whose weights are equal share one weight file; the manifest says which.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import shutil
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import fairchem.core.models.uma.escn_md as peer_backbone  # noqa: E402
import hydra  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from ase import Atoms  # noqa: E402
from fairchem.core.datasets.atomic_data import AtomicData, atomicdata_list_to_batch  # noqa: E402
from fairchem.core.units.mlip_unit import MLIPPredictUnit  # noqa: E402
from fairchem.core.units.mlip_unit.api.inference import (  # noqa: E402
    InferenceSettings,
    MLIPInferenceCheckpoint,
)
from option_cases import BATCHES, STRUCTURES  # noqa: E402
from option_variants import VARIANTS, Config, Variant, configs  # noqa: E402
from safetensors.torch import save  # noqa: E402

HERE = Path(__file__).parent
PROPERTIES = ("energy", "forces", "stress", "hessian")
Arrays = dict[str, np.ndarray]
Weights = dict[str, torch.Tensor]


def draw(name: str, like: torch.Tensor) -> torch.Tensor:
    """Draw the value of one parameter from its name alone.

    Args:
        name: Parameter name without prefixes; it seeds the generator.
        like: The parameter as built, for shape and dtype.

    Returns:
        Random values of a size that keeps features and forces of order one. Constants of the
        file format (the ``Jd_`` tables) come back unchanged.
    """
    if "Jd_" in name or not like.is_floating_point():
        return like.clone()
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big")
    noise = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))
    leaf, fan_in = name.rsplit(".", 1)[-1], like.shape[-1]
    is_norm = leaf == "affine_weight" or (leaf == "weight" and like.ndim == 1)
    if is_norm:
        value = 1 + 0.25 * noise
    elif leaf in ("bias", "affine_bias"):
        value = 0.25 * noise
    elif leaf == "W":  # frequencies of the positional charge and spin embedding
        value = noise
    elif leaf == "weights":  # experts: a shared part, so that their mixture does not average out
        shared = noise.mean(0, keepdim=True) * math.sqrt(like.shape[0])
        value = (0.75 * shared + 0.75 * noise) / math.sqrt(fan_in)
    elif "lin_emb" in name:
        value = 0.25 * noise
    elif "embedding.weight" in name or "_emb" in name:
        value = 0.5 * noise if "source" in name or "target" in name else noise
    else:
        value = noise / math.sqrt(fan_in)
    if "energy_block" in name or "scalar_block" in name:
        value = 2 * value
    if "routing_mlp" in name and leaf == "weight":
        value = 2 * value
    if "rad_func.net.0" in name and fan_in > 256:  # many narrow Gaussians: keep it smooth
        value = value / 64
    return value.to(like.dtype).contiguous()


def random_weights(model_config: Config) -> Weights:
    """Let the peer build a model and return random weights under its parameter names."""
    # A copy through JSON: building may edit the configuration it is given.
    model = hydra.utils.instantiate(json.loads(json.dumps(model_config)))
    model.load_state_dict({name: draw(name, value) for name, value in model.state_dict().items()})
    # Read back, so that parameters which a model ties carry one value under all their names.
    return {name: value.clone().contiguous() for name, value in model.state_dict().items()}


def checkpoint(model_config: Any, tasks_config: Any, weights: Weights) -> MLIPInferenceCheckpoint:
    """Pack a checkpoint whose training weights differ from the averaged ones that count."""
    averaged: Weights = {"n_averaged": torch.tensor(1000)}
    averaged |= {f"module.{name}": value for name, value in weights.items()}
    raw = {
        name: value * 1.01 if value.is_floating_point() and "Jd_" not in name else value.clone()
        for name, value in weights.items()
    }
    return MLIPInferenceCheckpoint(
        model_config=model_config,
        model_state_dict=raw,
        ema_state_dict=averaged,
        tasks_config=tasks_config,
    )


def structure(name: str, dtype: torch.dtype) -> AtomicData:
    """Build one structure of ``option_variants.STRUCTURES`` as the peer's input."""
    symbols, positions, cell, pbc, dataset, charge, spin = STRUCTURES[name]
    atoms = Atoms(symbols, positions=positions, cell=cell, pbc=[flag == "T" for flag in pbc])
    atoms.info = {"charge": charge, "spin": spin}
    return AtomicData.from_ase(atoms, task_name=dataset, r_data_keys=["charge", "spin"], target_dtype=dtype)


def predictor(path: Path, dtype: torch.dtype, hessian_of: frozenset[str] = frozenset()) -> MLIPPredictUnit:
    """Load a checkpoint on the peer's plainest path."""
    settings = InferenceSettings(
        tf32=False,
        activation_checkpointing=False,
        merge_mole=False,
        compile=False,
        external_graph_gen=False,
        internal_graph_gen_version=2,
        base_precision_dtype=dtype,
        execution_mode="general",
        predict_untrained_hessian=set(hessian_of),
    )
    return MLIPPredictUnit(str(path), device="cpu", inference_settings=settings)


def evaluate(unit: MLIPPredictUnit, names: tuple[str, ...], dtype: torch.dtype) -> Arrays:
    """Predict a batch of named structures; keys are property names."""
    out = unit.predict(atomicdata_list_to_batch([structure(name, dtype) for name in names]))
    return {key: out[key].detach().numpy() for key in PROPERTIES if key in out}


@contextmanager
def roll_zero() -> Iterator[None]:
    """Set the peer's random roll about each edge to zero."""
    original = peer_backbone.axis_angle_wigner_hybrid

    def fixed(vectors: torch.Tensor, lmax: int, *args: Any, **kwargs: Any) -> Any:
        kwargs["gamma"] = torch.zeros(len(vectors), dtype=vectors.dtype)
        return original(vectors, lmax, *args, **kwargs)

    peer_backbone.axis_angle_wigner_hybrid = fixed
    try:
        yield
    finally:
        peer_backbone.axis_angle_wigner_hybrid = original


def first_line(error: BaseException) -> str:
    """Name the root of an exception by its type and the first line of its message."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {re.sub(r'/[^ ]*/', '', lines[0])}"[:300]


def run_cases(unit: MLIPPredictUnit, variant: Variant, arrays: Arrays, entry: Config) -> None:
    """Evaluate the cases and batches of one variant, adding to ``arrays`` and ``entry``."""
    dtype = getattr(torch, variant.precision)
    for label in (*variant.cases, *variant.batches):
        names = BATCHES.get(label, (label,))
        try:
            out = evaluate(unit, names, dtype)
        except Exception as error:  # whatever the peer raises is the datum
            entry.setdefault("refused_cases", {})[label] = first_line(error)
            continue
        entry["batches" if label in BATCHES else "cases"].append(label)
        arrays |= {f"{label}/{key}": value for key, value in out.items()}
        if variant.rolls:
            calls = [evaluate(unit, names, dtype) for _ in range(variant.rolls)] + [out]
            with roll_zero():
                fixed = evaluate(unit, names, dtype)
            arrays |= {f"{label}/roll0/{key}": value for key, value in fixed.items()}
            for key in out:
                width = float(np.ptp(np.stack([call[key] for call in calls]), axis=0).max())
                entry.setdefault("spread", {}).setdefault(label, {})[key] = width


def run_variant(name: str, variant: Variant, out: Path, written: dict[str, str]) -> Config:
    """Write the files of one variant.

    Args:
        name: Name of the variant, the stem of its files.
        variant: What to build and compute.
        out: Folder to write into.
        written: Digest of each weight set so far -> name of its file; extended here.

    Returns:
        Its manifest entry; ``refused`` holds the message if the peer would not build or load it.
    """
    entry: Config = {"precision": variant.precision, "cases": [], "batches": [], "hessian": []}
    if variant.note:
        entry["note"] = variant.note
    model_config, tasks_config = configs(variant)
    # Through text, so that the checkpoint and the file beside it cannot differ.
    text = json.dumps({"model_config": model_config, "tasks_config": tasks_config})
    model_config, tasks_config = json.loads(text).values()
    (out / f"{name}.json").write_text(text + "\n")
    arrays: Arrays = {}
    dtype = getattr(torch, variant.precision)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        try:
            weights = random_weights(model_config)
            torch.save(checkpoint(model_config, tasks_config, weights), path)
            run_cases(predictor(path, dtype), variant, arrays, entry)
        except Exception as error:  # whatever the peer raises is the datum
            entry["refused"] = first_line(error)
            return entry
        if not arrays:
            entry["refused"] = "; ".join(sorted(set(entry.pop("refused_cases").values())))
            return entry
        for case in variant.hessian:
            unit = predictor(path, dtype, frozenset({STRUCTURES[case][4]}))
            arrays[f"{case}/hessian"] = evaluate(unit, (case,), dtype)["hessian"]
            entry["hessian"].append(case)
    np.savez_compressed(out / f"{name}.npz", allow_pickle=False, **arrays)
    data = save(weights, metadata={"generator": Path(__file__).name})
    entry["weights"] = written.setdefault(hashlib.sha256(data).hexdigest(), f"{name}.safetensors")
    (out / entry["weights"]).write_bytes(data)
    return entry


def case_entry(name: str) -> Config:
    """Describe one structure for the manifest."""
    symbols, positions, cell, pbc, dataset, charge, spin = STRUCTURES[name]
    return {
        "numbers": Atoms(symbols).numbers.tolist(),
        "positions": positions,
        "cell": cell or np.zeros((3, 3)).tolist(),
        "pbc": [flag == "T" for flag in pbc],
        "task": dataset,
        "charge": charge,
        "spin": spin,
    }


def main() -> None:
    """Run every variant and write the manifest."""
    torch.set_num_threads(1)
    out = HERE / "options"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    entries: dict[str, Config] = {}
    written: dict[str, str] = {}
    for name, variant in VARIANTS.items():
        torch.manual_seed(0)
        entries[name] = run_variant(name, variant, out, written)
        shown = ("refused", "refused_cases", "spread")
        print(name, {key: value for key, value in entries[name].items() if key in shown})
    manifest = {
        "generator": "fairchem-core 2.24.0, CPU, general mode, graph version 2, experts unmerged",
        "torch": torch.__version__,
        "units": "eV, Angstrom; stress eV/A^3, 9 numbers row major",
        "cases": {name: case_entry(name) for name in STRUCTURES},
        "batches": BATCHES,
        "variants": entries,
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()
