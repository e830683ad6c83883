"""Checkpoints of published sizes with seeded random weights, for timing and for errors where no weights are at hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from sizes import CHANNELS, CUTOFF
from torch import Tensor, nn

from edgewise.model.config import parse_model_config
from edgewise.model.network import Network
from edgewise.ops import REFERENCE
from edgewise.weights import Checkpoint

TASKS = ("oc20", "oc22", "oc25", "omol", "omat", "odac", "omc")

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"

ENERGY_SCALE = 1.342
"""eV, the scale of published files (MODEL.md section 13.3)."""


def uma_s(seed: int = 0, *, n_experts: int = 64, mmax: int = 2) -> Checkpoint:
    """Return a checkpoint of the size of UMA-S-1.2.1.

    Args:
        seed: Decides all weights.
        n_experts: Number of experts; they change the time of merging only.
        mmax: Largest order on edges.
    """
    mapping = {name: name for name in TASKS}
    config: dict[str, Any] = {
        "_target_": "fairchem.core.models.base.HydraModel",
        "backbone": {
            "model": "fairchem.core.models.uma.escn_moe.eSCNMDMoeBackbone",
            "moe_dropout": 0.05,
            "moe_layer_type": "pytorch",
            "num_experts": n_experts,
            "use_composition_embedding": True,
            "use_global_embedding": False,
            "otf_graph": True,
            "use_pbc": True,
            "use_pbc_single": True,
            "cs_emb_grad": True,
            "max_num_elements": 100,
            "sphere_channels": CHANNELS,
            "lmax": 2,
            "mmax": mmax,
            "max_neighbors": 300,
            "cutoff": CUTOFF,
            "edge_channels": CHANNELS,
            "distance_function": "gaussian",
            "num_distance_basis": 32,
            "regress_forces": True,
            "regress_stress": True,
            "direct_forces": False,
            "num_layers": 4,
            "hidden_channels": CHANNELS,
            "norm_type": "rms_norm_sh",
            "act_type": "gate",
            "ff_type": "spectral",
            "chg_spin_emb_type": "rand_emb",
            "dataset_mapping": mapping,
            "charge_balanced_channels": [0, 1, 2],
        },
        "heads": {
            "energyandforcehead": {
                "module": "fairchem.core.models.uma.escn_moe.DatasetSpecificMoEWrapper",
                "head_cls": "fairchem.core.models.uma.escn_md.MLP_EFS_Head",
                "head_kwargs": {"wrap_property": False},
                "dataset_mapping": mapping,
            }
        },
        "pass_through_head_outputs": True,
        "supports_single_atoms": True,
        "model_id": "UMA-S-1.2.1",
    }
    tasks = [_task(name, quantity) for name in TASKS for quantity in ("energy", "forces", "stress")]
    return Checkpoint(model_config=config, tasks_config=tasks, weights=_random_weights(config, seed), name="uma-s-size")


def tiny() -> Checkpoint:
    """Return the tiny checkpoint of the tests, for trying a benchmark out."""
    name = "uma-s-tiny"
    return Checkpoint(
        model_config=json.loads((GOLDEN / f"{name}.model_config.json").read_text()),
        tasks_config=json.loads((GOLDEN / f"{name}.tasks_config.json").read_text()),
        weights=load_file(GOLDEN / f"{name}.safetensors"),
        name=name,
    )


def _task(name: str, quantity: str) -> dict[str, Any]:
    """Return a task as published files have it; what they say of losses is read by fairchem alone."""
    losses = {"energy": "PerAtomMAELoss", "forces": "L2NormLoss", "stress": "MAELoss"}
    return {
        "_target_": "fairchem.core.units.mlip_unit.mlip_unit.Task",
        "name": f"{name}_{quantity}",
        "level": "atom" if quantity == "forces" else "system",
        "property": quantity,
        "loss_fn": {
            "_target_": "fairchem.core.modules.loss.DDPMTLoss",
            "loss_fn": {"_target_": f"fairchem.core.modules.loss.{losses[quantity]}"},
            "coefficient": 1,
        },
        "out_spec": {"dim": {"energy": [1], "forces": [3], "stress": [1, 9]}[quantity], "dtype": "float32"},
        "normalizer": {
            "_target_": "fairchem.core.modules.normalization.normalizer.Normalizer",
            "mean": 0.0,
            "rmsd": ENERGY_SCALE,
        },
        "datasets": [name],
        "metrics": ["mae"],
    }


def _random_weights(config: dict[str, object], seed: int) -> dict[str, Tensor]:
    """Return weights as networks are usually initialised: uniform within 1 / sqrt(inputs), norms near one."""
    with torch.device("meta"):
        network = Network(parse_model_config(config), REFERENCE)
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for name, value in network.state_dict().items():
        noise = 2 * torch.rand(value.shape, generator=generator) - 1
        owner = network.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, nn.LayerNorm) or "affine" in name:
            weights[name] = (0.0 if name.endswith("bias") else 1.0) + 0.1 * noise
        elif isinstance(owner, nn.Embedding):
            weights[name] = math.sqrt(3) * noise
        else:
            weights[name] = noise / math.sqrt(value.shape[-1])
    return weights
