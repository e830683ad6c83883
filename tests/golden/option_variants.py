"""The option variants behind ``tests/golden/options``: model configurations as plain data.

Nothing here imports the peer or torch: this module only says what is asked of them. One variant
changes one option of a small base model, so that a failing golden names the option it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

Config = dict[str, Any]

UMA = "fairchem.core.models.uma"
ESCN, MOE = f"{UMA}.escn_md", f"{UMA}.escn_moe"
PLAIN_BACKBONE, MOE_BACKBONE = f"{ESCN}.eSCNMDBackbone", f"{MOE}.eSCNMDMoeBackbone"
N_ELEMENTS = 20
ABSENT = object()  # an override with this value removes the key
DATASETS = {"omol": "omol", "omat": "omat", "oc20": "oc20"}
ALIASED = {"omol": "omol", "omat_rattle": "omat", "omat": "omat"}

BASE: Config = {
    "model": MOE_BACKBONE,
    "max_num_elements": N_ELEMENTS,
    "sphere_channels": 8,
    "hidden_channels": 8,
    "edge_channels": 8,
    "num_distance_basis": 8,
    "num_layers": 2,
    "num_experts": 2,
    "lmax": 2,
    "mmax": 2,
    "cutoff": 5.0,
    "max_neighbors": 300,
    "otf_graph": True,
    "distance_function": "gaussian",
    "norm_type": "rms_norm_sh",
    "act_type": "gate",
    "ff_type": "spectral",
    "chg_spin_emb_type": "rand_emb",
    "use_composition_embedding": True,
    "regress_forces": True,
    "regress_stress": True,
    "direct_forces": False,
    "dataset_mapping": DATASETS,
}
PLAIN: Config = {
    "model": PLAIN_BACKBONE,
    "num_experts": ABSENT,
    "use_composition_embedding": ABSENT,
}
# Narrow, so that files which cannot share the base's weights stay small.
THIN: Config = {"sphere_channels": 4, "hidden_channels": 4, "edge_channels": 4}
SLIM: Config = PLAIN | THIN
DIRECT: Config = SLIM | {
    "direct_forces": True,
    "regress_stress": False,
    "dataset_mapping": {"omol": "omol"},
}
DIRECT_STRESS: Config = {"regress_stress": True, "direct_stress": True}
IGNORED: Config = {
    "num_sphere_samples": 64,
    "use_pbc": False,
    "use_pbc_single": True,
    "always_use_pbc": True,
    "otf_graph": False,
    "activation_checkpointing": True,
    "edge_chunk_size": 7,
    "cs_emb_grad": True,
    "dataset_emb_grad": True,
    "moe_dropout": 0.5,
    "composition_dropout": 0.5,
    "moe_layer_type": "pytorch",
    "use_global_embedding": True,
    "use_cuda_graph_wigner": True,
    "use_quaternion_wigner": False,
    "radius_pbc_version": 1,
    "execution_mode": "general",
}


def _head(name: str, **kwargs: Any) -> Config:
    return {"module": f"{ESCN}.{name}", **kwargs}


def wrapped_head(kind: str, datasets: Any, head: str, **kwargs: Any) -> Config:
    """One head behind a dataset wrapper.

    Args:
        kind: "MoE" (an expert per dataset, UMA 1.2) or "SingleHead" (one for all, UMA 1.1).
        datasets: The mapping of names for "MoE", the list of names for "SingleHead".
        head: Class of the wrapped head.
        **kwargs: Its arguments.
    """
    key = "dataset_mapping" if kind == "MoE" else "dataset_names"
    return {
        "module": f"{MOE}.DatasetSpecific{kind}Wrapper",
        "head_cls": f"{ESCN}.{head}",
        "head_kwargs": kwargs,
        key: datasets,
    }


def moe_heads(mapping: dict[str, str], wrap: bool = False, **kwargs: Any) -> Config:
    """One energy head with an expert per dataset."""
    head = wrapped_head("MoE", mapping, "MLP_EFS_Head", wrap_property=wrap, **kwargs)
    return {"energyandforcehead": head}


def single_heads(names: list[str], wrap: bool = False, **kwargs: Any) -> Config:
    """One energy head shared by every dataset."""
    head = wrapped_head("SingleHead", names, "MLP_EFS_Head", wrap_property=wrap, **kwargs)
    return {"energyandforcehead": head}


def plain_heads(wrap: bool = True, prefix: str | None = "omol", **kwargs: Any) -> Config:
    """One bare head for one dataset (eSEN)."""
    head = _head("MLP_EFS_Head", wrap_property=wrap, **kwargs)
    return {"efs": head if prefix is None else head | {"prefix": prefix}}


def direct_heads(energy: str = "MLP_Energy_Head", **kwargs: Any) -> Config:
    """Separate heads per property, named like their tasks (eSEN direct)."""
    return {"omol_energy": _head(energy, **kwargs), "forces": _head("Linear_Force_Head")}


@dataclass(frozen=True)
class Tasks:
    """What the tasks of a variant look like; means and scales go by property."""

    properties: tuple[str, ...] = ("energy", "forces", "stress")
    stress_datasets: tuple[str, ...] = ("omat",)
    mean: dict[str, float] = field(default_factory=dict)
    rmsd: dict[str, float] = field(default_factory=dict)
    references: bool = True
    names: dict[str, str] | None = None  # property -> task name, for bare heads


DIRECT_TASKS = Tasks(("energy", "forces"), names={"energy": "omol_energy", "forces": "forces"})
STRESS_TASKS = Tasks(
    stress_datasets=("omol",),
    names={"energy": "omol_energy", "forces": "forces", "stress": "stress"},
)
CRYSTAL, MOLECULE = ("mgo", "ch2f_minus"), ("ch2f_minus", "o2_triplet", "mgo_omol")
MIXED = ("mgo", "slab_ttf", "ch2f_minus", "o2_triplet")


@dataclass(frozen=True)
class Variant:
    """One model: what differs from the base, and what to compute with it."""

    backbone: Config = field(default_factory=dict)
    model: Config = field(default_factory=dict)
    heads: Config | None = None  # None: heads over every dataset, MoE ones on a MoE backbone
    tasks: Tasks = Tasks()
    cases: tuple[str, ...] = CRYSTAL
    batches: tuple[str, ...] = ()
    hessian: tuple[str, ...] = ()
    precision: str = "float64"
    rolls: int = 0  # repeat calls this often to measure the peer's own spread
    note: str = ""


def _degrees(lmax: int, mmax: int, **changes: Any) -> Variant:
    base = SLIM if lmax > 2 else THIN
    return Variant(base | {"lmax": lmax, "mmax": mmax, **changes})


def _s2(base: Config | None = None, **changes: Any) -> Variant:
    note = "not roll invariant: CASE/roll0 is the peer with its roll set to 0"
    return Variant((base or {}) | {"act_type": "s2", **changes}, rolls=6, note=note)


def _direct(heads: Config, tasks: Tasks = DIRECT_TASKS, **changes: Any) -> Variant:
    unmerged = {"pass_through_head_outputs": False}
    return Variant(DIRECT | changes, unmerged, heads, tasks, MOLECULE, ("batch_omol",))


VARIANTS: dict[str, Variant] = {
    "base": Variant(cases=(*MIXED, "wire_tff", "h2o", "lone_atom"), batches=("batch4",), hessian=("h2o",)),
    "norm_layer_norm": Variant({"norm_type": "layer_norm"}),
    "norm_layer_norm_sh": Variant(THIN | {"norm_type": "layer_norm_sh"}),
    "act_s2_grid18": _s2(grid_resolution=18),
    "act_s2": _s2(),
    "act_s2_l3m2": _s2(SLIM, lmax=3),
    "act_s2_l2m1_grid18": _s2(THIN, mmax=1, grid_resolution=18),
    "act_s2_ff_grid": _s2(THIN, ff_type="grid"),
    "ff_grid": Variant({"ff_type": "grid"}, cases=(*CRYSTAL, "h2o"), hessian=("h2o",)),
    "ff_grid_res10": Variant({"ff_type": "grid", "grid_resolution": 10}),
    "ff_grid_res9": Variant(THIN | {"ff_type": "grid", "grid_resolution": 9}),
    "ff_grid_l3m2": _degrees(3, 2, ff_type="grid"),
    "l1m1": _degrees(1, 1),
    "l2m0": _degrees(2, 0),
    "l2m1": _degrees(2, 1),
    "l3m1": _degrees(3, 1),
    "l3m2": _degrees(3, 2),
    "l3m3": _degrees(3, 3),
    "l4m2": _degrees(4, 2),
    "l4m4": _degrees(4, 4),
    "l5m3": _degrees(5, 3),
    "l6m4": _degrees(6, 4),
    "l8m2": _degrees(8, 2, num_layers=1),
    "l12m2": _degrees(12, 2),
    "l4m2_grid_layer_norm_sh": _degrees(4, 2, ff_type="grid", norm_type="layer_norm_sh"),
    "emb_pos": Variant(THIN | {"chg_spin_emb_type": "pos_emb"}, cases=(*MIXED, "nh4_plus")),
    "emb_lin": Variant(
        THIN | {"chg_spin_emb_type": "lin_emb"},
        cases=(*MIXED, "nh4_plus"),
        precision="float32",
        note="float32: the peer's lin_emb fails in float64",
    ),
    "emb_lin_float64": Variant(THIN | {"chg_spin_emb_type": "lin_emb"}),
    "no_dataset_embedding": Variant(THIN | {"use_dataset_embedding": False}),
    "dataset_list": Variant(
        THIN | {"dataset_mapping": ABSENT, "dataset_list": list(DATASETS), "model_version": 1.1},
        {"model_id": ABSENT},
        single_heads(list(DATASETS)),
        cases=MIXED,
        batches=("batch4",),
    ),
    "dataset_alias": Variant(
        THIN | {"dataset_mapping": ALIASED},
        cases=("mgo", "mgo_rattle", "ch2f_minus"),
        batches=("batch_alias",),
        note="omat_rattle -> omat: the third expert of the head is never used",
    ),
    "single_head": Variant(THIN, heads=single_heads(list(DATASETS)), cases=MIXED),
    "charge_balance": Variant({"charge_balanced_channels": [0, 1, 2]}, cases=(*CRYSTAL, "nh4_plus")),
    "charge_balance_offset": Variant({"charge_balanced_channels": [2, 3]}, cases=("ch2f_minus",)),
    "charge_balance_gap": Variant({"charge_balanced_channels": [0, 2]}, cases=("ch2f_minus",)),
    "spin_balance": Variant({"spin_balanced_channels": [3, 4]}, cases=("o2_triplet", "mgo")),
    "both_balances": Variant(
        {"charge_balanced_channels": [0, 1, 2], "spin_balanced_channels": [3, 4]},
        cases=("ch2f_minus", "o2_triplet", "h2o"),
        batches=("batch4",),
        hessian=("h2o",),
    ),
    "experts_0": Variant(THIN | {"num_experts": 0}, heads=single_heads(list(DATASETS))),
    "experts_0_moe_head": Variant(THIN | {"num_experts": 0}),
    "experts_3_layers_1": Variant(THIN | {"num_experts": 3, "num_layers": 1}),
    "plain_backbone": Variant(PLAIN, cases=MIXED),
    "short_name": Variant(PLAIN | {"model": "escnmd_backbone"}),
    "short_name_moe": Variant({"model": "escnmd_moe_backbone"}),
    "no_composition": Variant(THIN | {"use_composition_embedding": False}),
    "pnorm": Variant({"moe_expert_coefficient_norm": "pnorm"}, cases=MIXED, batches=("batch4", "batch2")),
    "model_id_1p2": Variant(model={"model_id": "UMA-S-1.2"}, cases=(*CRYSTAL, "lone_atom"), batches=("batch4",)),
    "model_id_absent": Variant(model={"model_id": ABSENT}),
    "neighbors_10": Variant({"max_neighbors": 10}, cases=("mgo", "slab_ttf", "wire_tff")),
    "neighbors_0": Variant({"max_neighbors": 0}, cases=("mgo",)),
    "cutoff_3p5": Variant({"cutoff": 3.5}, cases=(*CRYSTAL, "wire_tff")),
    "cutoff_6": Variant({"cutoff": 6.0}),
    "elements_100": Variant(THIN | {"max_num_elements": 100}, cases=("mgo", "heavy")),
    "unequal_widths": Variant(
        {"sphere_channels": 6, "hidden_channels": 10, "edge_channels": 7, "num_distance_basis": 11},
        cases=MIXED,
    ),
    "layers_3": Variant(SLIM | {"num_layers": 3}),
    "moe_type_so2": Variant({"moe_type": "so2"}),
    "moe_type_all": Variant(
        THIN | {"moe_type": "all"},
        hessian=("h2o",),
        note="no batch: the peer splits atoms by edge counts there, and single calls disagree",
    ),
    "moe_type_all_grid": Variant(THIN | {"moe_type": "all", "ff_type": "grid"}),
    "moe_type_grid": Variant({"moe_type": "grid"}),
    "moe_single": Variant(THIN | {"moe_single": True}, note="blocks share the weights of orders m >= 1"),
    "layers_moe_0": Variant(THIN | {"layers_moe": [0]}, batches=("batch4",)),
    "layers_moe_none": Variant(THIN | {"layers_moe": []}),
    "ignored_keys": Variant(IGNORED, cases=MIXED),
    "distance_sigmoid": Variant({"distance_function": "sigmoid"}),
    "direct": _direct(direct_heads()),
    "direct_linear_energy": _direct(direct_heads("Linear_Energy_Head")),
    "direct_reduce_mean": _direct(direct_heads(reduce="mean")),
    "direct_linear_reduce_mean": _direct(direct_heads("Linear_Energy_Head", reduce="mean")),
    "direct_energy_only": _direct(
        {"omol_energy": _head("MLP_Energy_Head")}, replace(DIRECT_TASKS, properties=("energy",))
    ),
    "direct_stress_sum": _direct(
        direct_heads() | {"stress": _head("MLP_Stress_Head", reduce="sum")},
        STRESS_TASKS,
        **DIRECT_STRESS,
    ),
    "direct_stress_mean": _direct(
        direct_heads() | {"stress": _head("MLP_Stress_Head", reduce="mean")},
        STRESS_TASKS,
        **DIRECT_STRESS,
    ),
    "direct_single_wrapper": Variant(
        THIN | {"direct_forces": True, "regress_stress": False},
        heads={
            "energy": wrapped_head("SingleHead", list(DATASETS), "MLP_Energy_Head"),
            "forces": wrapped_head("SingleHead", list(DATASETS), "Linear_Force_Head"),
        },
        tasks=Tasks(("energy", "forces")),
        cases=MIXED,
    ),
    "direct_moe_wrapper": Variant(
        THIN | {"direct_forces": True, "regress_stress": False},
        heads={
            "energy": wrapped_head("MoE", DATASETS, "MLP_Energy_Head"),
            "forces": wrapped_head("MoE", DATASETS, "Linear_Force_Head"),
        },
        tasks=Tasks(("energy", "forces")),
        cases=MIXED,
    ),
    "reduce_mean": Variant(THIN, heads=single_heads(list(DATASETS), reduce="mean"), cases=MIXED, batches=("batch4",)),
    "reduce_mean_moe": Variant(heads=moe_heads(DATASETS, reduce="mean"), cases=MIXED),
    "wrap_property": Variant(heads=single_heads(list(DATASETS), wrap=True), cases=MIXED),
    "wrap_property_moe": Variant(heads=moe_heads(DATASETS, wrap=True), cases=MIXED),
    "bare_head_wrapped": Variant(
        SLIM | {"dataset_mapping": {"omol": "omol"}},
        heads=plain_heads(),
        tasks=Tasks(stress_datasets=("omol",)),
        cases=MOLECULE,
        batches=("batch_omol",),
    ),
    "bare_head_no_prefix": Variant(
        SLIM | {"dataset_mapping": {"omol": "omol"}},
        heads=plain_heads(prefix=None),
        tasks=replace(STRESS_TASKS, names={p: p for p in ("energy", "forces", "stress")}),
        cases=MOLECULE,
    ),
    "bare_head_unwrapped": Variant(
        SLIM | {"dataset_mapping": {"omol": "omol"}},
        heads=plain_heads(wrap=False),
        tasks=Tasks(stress_datasets=("omol",)),
        cases=MOLECULE,
    ),
    "no_pass_through": Variant(
        SLIM | {"dataset_mapping": {"omol": "omol"}},
        {"pass_through_head_outputs": False},
        {"omol_energy": _head("MLP_EFS_Head", wrap_property=False)},
        Tasks(("energy",), names={"energy": "omol_energy"}),
        MOLECULE,
    ),
    "energy_only": Variant({"regress_forces": False, "regress_stress": False}, tasks=Tasks(("energy",))),
    "no_regress_stress": Variant({"regress_stress": False}, tasks=Tasks(("energy", "forces"))),
    "normalizer": Variant(
        tasks=Tasks(mean={"energy": -0.75}, rmsd={"energy": 1.25, "forces": 1.75, "stress": 0.625}),
        cases=MIXED,
        note="the automatic omol/oc20 stress tasks take the energy normaliser with its mean",
    ),
    "normalizer_means": Variant(
        tasks=Tasks(mean={"energy": -0.75, "forces": 0.25, "stress": 0.125}),
        note="means of trained forces and stress tasks are added by the peer",
    ),
    "no_references": Variant(tasks=Tasks(references=False), cases=MIXED),
    "no_single_atoms": Variant(model={"supports_single_atoms": False}, cases=("mgo", "lone_atom")),
    "defaults": Variant(
        THIN
        | {k: ABSENT for k in BASE if "channels" not in k and k not in ("model", "dataset_mapping")}
        | {"direct_forces": False, "num_experts": 2, "max_num_elements": N_ELEMENTS},
        tasks=Tasks(("energy", "forces")),
        note="every key with a usable default left out; 512 Gaussians, grid feed-forward, pos_emb",
    ),
    "defaults_stress": Variant(
        dict.fromkeys(("ff_type", "chg_spin_emb_type", "norm_type", "act_type", "cutoff"), ABSENT)
        | dict.fromkeys(("lmax", "mmax", "max_neighbors", "num_layers", "num_experts"), ABSENT)
        | {"use_composition_embedding": ABSENT, "distance_function": ABSENT, "otf_graph": ABSENT}
        | THIN,
        note="8 experts",
    ),
    "defaults_direct": Variant(
        {
            k: ABSENT
            for k in BASE
            if "channels" not in k and k not in ("model", "max_num_elements", "num_distance_basis")
        }
        | {"model": PLAIN_BACKBONE, "dataset_mapping": {"omol": "omol"}},
        {"pass_through_head_outputs": ABSENT},
        direct_heads(),
        DIRECT_TASKS,
        MOLECULE,
    ),
}


def _override(base: Config, changes: Config) -> Config:
    return {k: v for k, v in (base | changes).items() if v is not ABSENT}


def _references(dataset: str, n: int) -> list[float]:
    slope = {"omol": -3.0, "omat": -0.125, "oc20": -0.25}.get(dataset, -0.5)
    return [0.0] + [slope * z + ((7 * z) % 5) / 8 for z in range(1, n)]


def _task(name: str, prop: str, dataset: str, spec: Tasks, n_elements: int) -> Config:
    modules = "fairchem.core.modules"
    unit = "fairchem.core.units.mlip_unit.mlip_unit"
    # The peer instantiates the loss of a task even when it only predicts.
    loss = {"_target_": f"{modules}.loss.DDPMTLoss", "coefficient": 1, "reduction": "mean"}
    task = {
        "_target_": f"{unit}.Task",
        "name": name,
        "level": "atom" if prop == "forces" else "system",
        "property": prop,
        "loss_fn": loss | {"loss_fn": {"_target_": f"{modules}.loss.MAELoss"}},
        "out_spec": {"dim": {"energy": [1], "forces": [3]}.get(prop, [1, 9]), "dtype": "float32"},
        "normalizer": {
            "_target_": f"{modules}.normalization.normalizer.Normalizer",
            "mean": spec.mean.get(prop, 0.0),
            "rmsd": spec.rmsd.get(prop, 1.5),
        },
        "datasets": [dataset],
        "metrics": ["mae"],
    }
    if prop == "energy" and spec.references:
        table = {"_target_": "torch.DoubleTensor", "_args_": [_references(dataset, n_elements)]}
        target = f"{modules}.normalization.element_references.ElementReferences"
        task["element_references"] = {"_target_": target, "element_references": table}
    return task


def configs(variant: Variant) -> tuple[Config, list[Config]]:
    """Write a variant out in full.

    Returns:
        The model_config and the tasks_config of its checkpoint.
    """
    backbone = _override(BASE, variant.backbone)
    names = backbone.get("dataset_mapping") or {n: n for n in backbone["dataset_list"]}
    is_moe = "moe" in backbone["model"].lower()
    heads = moe_heads(names) if is_moe else single_heads(list(names))
    model: Config = {
        "_target_": "fairchem.core.models.base.HydraModel",
        "backbone": backbone,
        "heads": heads if variant.heads is None else variant.heads,
        "pass_through_head_outputs": True,
        "supports_single_atoms": True,
        "model_id": "UMA-S-1.2.1",
    }
    spec, n_elements = variant.tasks, backbone.get("max_num_elements", 100)
    tasks = [
        _task((spec.names or {}).get(prop, f"{dataset}_{prop}"), prop, dataset, spec, n_elements)
        for prop in spec.properties
        for dataset in names
        if prop != "stress" or dataset in spec.stress_datasets
    ]
    return _override(model, variant.model), tasks
