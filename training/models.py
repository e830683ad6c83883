"""The students: sizes in the field's own configuration format, tasks, and what is held out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_FIELD = "fairchem.core"
"""Root of the names that the field's configuration format uses for its parts."""


@dataclass(frozen=True)
class Recipe:
    """One student.

    Attributes:
        name: Name of the model.
        task: Its one task.
        elements: Symbols that it is made for.
        held_out: Sets of atomic numbers whose structures are never trained on.
        model_config: Sizes and options in the field's format (MODEL.md section 13.2).
    """

    name: str
    task: str
    elements: tuple[str, ...]
    held_out: tuple[tuple[int, ...], ...]
    model_config: dict[str, Any]


def model_config(task: str, channels: int, layers: int, cutoff: float) -> dict[str, Any]:
    """Return the configuration of a conservative single-task network without experts.

    Args:
        task: Dataset name.
        channels: Width of nodes, edges and hidden layers.
        layers: Number of blocks.
        cutoff: Å.
    """
    return {
        "_target_": f"{_FIELD}.models.base.HydraModel",
        "backbone": {
            "model": f"{_FIELD}.models.uma.escn_md.eSCNMDBackbone",
            "max_num_elements": 100,
            "sphere_channels": channels,
            "hidden_channels": channels,
            "edge_channels": channels,
            "lmax": 2,
            "mmax": 2,
            "otf_graph": True,
            "max_neighbors": 300,
            "use_pbc": True,
            "use_pbc_single": True,
            "cutoff": cutoff,
            "distance_function": "gaussian",
            "num_distance_basis": 32,
            "regress_forces": True,
            "regress_stress": True,
            "direct_forces": False,
            "num_layers": layers,
            "norm_type": "rms_norm_sh",
            "act_type": "gate",
            "ff_type": "spectral",
            "chg_spin_emb_type": "rand_emb",
            "cs_emb_grad": True,
            "dataset_list": [task],
        },
        "heads": {
            "efs": {"module": f"{_FIELD}.models.uma.escn_md.MLP_EFS_Head", "prefix": task, "wrap_property": True}
        },
        "pass_through_head_outputs": True,
        "supports_single_atoms": True,
    }


def tasks_config(task: str, scale: float, references: list[float]) -> list[dict[str, Any]]:
    """Return the tasks in the field's format (MODEL.md section 13.3).

    Args:
        task: Dataset name.
        scale: The one normaliser of energy (eV), forces (eV/Å) and stress.
        references: Energy of each element by atomic number, eV.
    """
    losses = {"energy": ("PerAtomMAELoss", 20), "forces": ("L2NormLoss", 2), "stress": ("MAELoss", 1)}
    tasks = []
    for name, (loss, coefficient) in losses.items():
        entry: dict[str, Any] = {
            "_target_": f"{_FIELD}.units.mlip_unit.mlip_unit.Task",
            "name": f"{task}_{name}",
            "level": "atom" if name == "forces" else "system",
            "property": name,
            "loss_fn": {
                "_target_": f"{_FIELD}.modules.loss.DDPMTLoss",
                "loss_fn": {"_target_": f"{_FIELD}.modules.loss.{loss}"},
                "coefficient": coefficient,
            },
            "out_spec": {"dim": {"energy": [1], "forces": [3], "stress": [1, 9]}[name], "dtype": "float32"},
            "normalizer": {
                "_target_": f"{_FIELD}.modules.normalization.normalizer.Normalizer",
                "mean": 0.0,
                "rmsd": scale,
            },
            "datasets": [task],
            "metrics": ["mae"],
        }
        if name != "energy":
            entry["loss_fn"]["reduction"] = "mean"
        else:
            entry["element_references"] = {
                "_target_": f"{_FIELD}.modules.normalization.element_references.ElementReferences",
                "element_references": {"_target_": "torch.DoubleTensor", "_args_": [references]},
            }
        tasks.append(entry)
    return tasks


MODELS = {
    "emt-mini": Recipe(
        name="emt-mini",
        task="emt",
        elements=("Al", "Cu", "Ag", "Au", "Ni", "Pd", "Pt"),
        # Ag-Pd, Cu-Pt and Al-Ni.
        held_out=((46, 47), (29, 78), (13, 28)),
        model_config=model_config("emt", channels=32, layers=2, cutoff=6.0),
    )
}
