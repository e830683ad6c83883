"""Sizes and options of a network, read from a checkpoint's `model_config` (MODEL.md section 13.2).

What an option means is decided here, and a value that is not implemented is refused by name. This module must not
know how checkpoints are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgewise.errors import UnsupportedModelError

PLAIN_BACKBONES = ("escnmd_backbone", "eSCNMDBackbone")
EXPERT_BACKBONES = ("escnmd_moe_backbone", "eSCNMDMoeBackbone")
COMPOSITION_COUNTS_EXTRA_ZERO = "UMA-S-1.2"
"""The model_id whose composition is a mean over n_atoms + 1 entries, one of them zero (MODEL.md section 6)."""

HEAD_CLASSES = ("MLP_EFS_Head", "MLP_Energy_Head", "Linear_Energy_Head", "Linear_Force_Head", "MLP_Stress_Head")
HEAD_WRAPPERS = {"DatasetSpecificMoEWrapper": "per_dataset", "DatasetSpecificSingleHeadWrapper": "shared"}


@dataclass(frozen=True)
class HeadConfig:
    """One output head.

    Attributes:
        name: Its name in the checkpoint, part of the parameter names.
        kind: One of `HEAD_CLASSES`.
        wrapper: "per_dataset", "shared", or None for a head that stands alone.
        datasets: Names that a wrapper serves, mapped to those whose expert is used; empty for a head alone.
        reduce: "sum" or "mean" over the atoms, for energies and stresses.
    """

    name: str
    kind: str
    wrapper: str | None
    datasets: Mapping[str, str]
    reduce: str


@dataclass(frozen=True)
class ModelConfig:
    """Everything that fixes the shapes and the mathematics of a network; symbols of MODEL.md in brackets.

    Attributes:
        channels: Width of node features (C).
        hidden_channels: Width inside the SO(2) and feed-forward layers (H).
        edge_channels: Width of the radial networks (EC).
        n_basis: Gaussians of the radial basis (K).
        lmax: Largest degree.
        mmax: Largest order on edges.
        n_layers: Number of blocks.
        cutoff: Å.
        max_neighbors: Cap on the neighbours of an atom; 0 or less is none.
        max_elements: Rows of the element tables, so atomic numbers up to max_elements - 1.
        n_experts: Experts of every SO(2) map (X); 0 for plain maps.
        expert_layers: Numbers of the blocks that have experts.
        experts_everywhere: Experts also in the radial and feed-forward networks of these blocks (moe_type "all").
        grid_resolution: Latitudes and longitudes of the grids; None for the smallest.
        norm_type: "rms_norm_sh", "layer_norm" or "layer_norm_sh".
        activation: "gate" or "s2".
        feed_forward: "spectral" or "grid".
        charge_spin_embedding: "rand_emb", "pos_emb" or "lin_emb".
        dataset_mapping: Dataset names mapped to those whose embedding is used.
        use_dataset_embedding: The system embedding holds the dataset.
        use_composition_embedding: Routing reads the composition.
        routing_norm: "softmax" or "pnorm".
        composition_counts_extra_zero: The composition rule of UMA-S-1.2.
        charge_balanced_channels: Scalar channels whose sum is set to the total charge after each block.
        spin_balanced_channels: The same for multiplicity - 1.
        direct_forces: Forces come from a head of their own, not from the energy.
        supports_single_atoms: None where the file does not say.
        model_id: Name of the architecture version, empty where there is none.
        heads: Output heads.
        pass_through_heads: Head outputs carry dataset names (True) or head names (False).
    """

    channels: int
    hidden_channels: int
    edge_channels: int
    n_basis: int
    lmax: int
    mmax: int
    n_layers: int
    cutoff: float
    max_neighbors: int
    max_elements: int
    n_experts: int
    expert_layers: tuple[int, ...]
    experts_everywhere: bool
    grid_resolution: int | None
    norm_type: str
    activation: str
    feed_forward: str
    charge_spin_embedding: str
    dataset_mapping: Mapping[str, str]
    use_dataset_embedding: bool
    use_composition_embedding: bool
    routing_norm: str
    composition_counts_extra_zero: bool
    charge_balanced_channels: tuple[int, ...]
    spin_balanced_channels: tuple[int, ...]
    direct_forces: bool
    supports_single_atoms: bool | None
    model_id: str
    heads: tuple[HeadConfig, ...]
    pass_through_heads: bool

    def experts_of_block(self, number: int) -> int:
        """Return the number of experts in the SO(2) maps of a block; 0 for plain maps."""
        return self.n_experts if number in self.expert_layers else 0

    @property
    def datasets(self) -> tuple[str, ...]:
        """Dataset names that the system embedding knows."""
        return tuple(self.dataset_mapping)


def parse_model_config(model_config: Mapping[str, Any]) -> ModelConfig:
    """Read a checkpoint's `model_config`.

    Args:
        model_config: Plain data, with the keys "backbone" and "heads".

    Raises:
        UnsupportedModelError: Another architecture, or an option value that is not implemented.
    """
    target = str(model_config.get("_target_", ""))
    if "backbone" not in model_config or "heads" not in model_config:
        message = f"the checkpoint's model is {target or 'unnamed'!r} without backbone and heads; only eSCN-MD models (UMA, eSEN) are supported"
        raise UnsupportedModelError(message)
    backbone = model_config["backbone"]
    has_experts_class = _backbone_class(backbone)
    model_id = str(model_config.get("model_id") or "")
    n_experts = int(_get(backbone, "num_experts", 8)) if has_experts_class else 0
    _refuse_uma_1p0(model_id, backbone, n_experts)
    _refuse_variants(backbone, n_experts)
    mapping = backbone.get("dataset_mapping") or {name: name for name in backbone.get("dataset_list") or ()}
    lmax, mmax = int(_get(backbone, "lmax", 2)), int(_get(backbone, "mmax", 2))
    if not 0 <= mmax <= lmax or lmax < 1:
        message = f"lmax {lmax} and mmax {mmax}: lmax has to be at least 1 and mmax at most lmax"
        raise UnsupportedModelError(message)
    resolution = backbone.get("grid_resolution")
    if resolution is not None and int(resolution) % 2:
        message = f"grid_resolution is {resolution}; only even numbers are supported"
        raise UnsupportedModelError(message)
    return ModelConfig(
        channels=int(_get(backbone, "sphere_channels", 128)),
        hidden_channels=int(_get(backbone, "hidden_channels", 128)),
        edge_channels=int(_get(backbone, "edge_channels", 128)),
        n_basis=int(_get(backbone, "num_distance_basis", 512)),
        lmax=lmax,
        mmax=mmax,
        n_layers=int(_get(backbone, "num_layers", 2)),
        cutoff=float(_get(backbone, "cutoff", 5.0)),
        max_neighbors=int(_get(backbone, "max_neighbors", 300)),
        max_elements=int(_get(backbone, "max_num_elements", 100)),
        n_experts=n_experts,
        expert_layers=_expert_layers(backbone),
        experts_everywhere=n_experts > 0 and backbone.get("moe_type") == "all",
        grid_resolution=None if resolution is None else int(resolution),
        norm_type=_choice(backbone, "norm_type", "rms_norm_sh", ("rms_norm_sh", "layer_norm", "layer_norm_sh")),
        activation=_choice(backbone, "act_type", "gate", ("gate", "s2")),
        feed_forward=_choice(backbone, "ff_type", "grid", ("spectral", "grid")),
        charge_spin_embedding=_choice(backbone, "chg_spin_emb_type", "pos_emb", ("rand_emb", "pos_emb", "lin_emb")),
        dataset_mapping=dict(mapping),
        use_dataset_embedding=bool(_get(backbone, "use_dataset_embedding", True)),
        use_composition_embedding=bool(_get(backbone, "use_composition_embedding", False)),
        routing_norm=_choice(backbone, "moe_expert_coefficient_norm", "softmax", ("softmax", "pnorm")),
        composition_counts_extra_zero=model_id == COMPOSITION_COUNTS_EXTRA_ZERO,
        charge_balanced_channels=_balanced_channels(backbone, "charge_balanced_channels"),
        spin_balanced_channels=_balanced_channels(backbone, "spin_balanced_channels"),
        direct_forces=bool(_get(backbone, "direct_forces", True)),
        supports_single_atoms=model_config.get("supports_single_atoms"),
        model_id=model_id,
        heads=tuple(_parse_head(name, head) for name, head in model_config["heads"].items()),
        pass_through_heads=bool(model_config.get("pass_through_head_outputs", False)),
    )


def _get(values: Mapping[str, Any], key: str, default: Any) -> Any:
    value = values.get(key)
    return default if value is None else value


def _choice(values: Mapping[str, Any], key: str, default: str, allowed: tuple[str, ...]) -> str:
    value = str(_get(values, key, default))
    if value not in allowed:
        message = f"{key} is {value!r}; supported are {', '.join(allowed)}"
        raise UnsupportedModelError(message)
    return value


def _backbone_class(backbone: Mapping[str, Any]) -> bool:
    """Return whether the backbone is the class with experts."""
    name = str(backbone.get("model", ""))
    short = name.rsplit(".", 1)[-1]
    if short in EXPERT_BACKBONES:
        return True
    if short in PLAIN_BACKBONES:
        return False
    message = (
        f"the checkpoint's backbone is {name!r}; only eSCN-MD backbones are supported "
        f"({', '.join((*PLAIN_BACKBONES, *EXPERT_BACKBONES))})"
    )
    raise UnsupportedModelError(message)


def _refuse_uma_1p0(model_id: str, backbone: Mapping[str, Any], n_experts: int) -> None:
    if n_experts > 0 and not model_id and backbone.get("model_version") is None:
        message = (
            "the checkpoint is UMA 1.0 (experts, but neither model_id nor model_version), which is not supported; "
            "use UMA 1.1 or later"
        )
        raise UnsupportedModelError(message)


def _refuse_variants(backbone: Mapping[str, Any], n_experts: int) -> None:
    basis = _get(backbone, "distance_function", "gaussian")
    if basis != "gaussian":
        message = f"distance_function is {basis!r}; supported is gaussian"
        raise UnsupportedModelError(message)
    moe_type = _get(backbone, "moe_type", "so2")
    if n_experts > 0 and moe_type not in ("so2", "all"):
        message = f"moe_type is {moe_type!r}; supported are so2 and all"
        raise UnsupportedModelError(message)


def _expert_layers(backbone: Mapping[str, Any]) -> tuple[int, ...]:
    listed = backbone.get("layers_moe")
    return tuple(range(int(_get(backbone, "num_layers", 2)))) if listed is None else tuple(int(item) for item in listed)


def _balanced_channels(backbone: Mapping[str, Any], key: str) -> tuple[int, ...]:
    channels = tuple(int(item) for item in backbone.get(key) or ())
    if channels and channels != tuple(range(channels[0], channels[-1] + 1)):
        message = f"{key} is {list(channels)}; supported are contiguous channels"
        raise UnsupportedModelError(message)
    return channels


def _parse_head(name: str, head: Mapping[str, Any]) -> HeadConfig:
    module = str(head.get("module", "")).rsplit(".", 1)[-1]
    wrapper = HEAD_WRAPPERS.get(module)
    kwargs: Mapping[str, Any] = head.get("head_kwargs") or {} if wrapper else head
    kind = str(head.get("head_cls", "")).rsplit(".", 1)[-1] if wrapper else module
    if kind not in HEAD_CLASSES:
        message = f"head {name!r} is {module or kind!r}; supported are {', '.join((*HEAD_CLASSES, *HEAD_WRAPPERS))}"
        raise UnsupportedModelError(message)
    names = head.get("dataset_mapping") or {item: item for item in head.get("dataset_names") or ()}
    return HeadConfig(
        name=str(name),
        kind=kind,
        wrapper=wrapper,
        datasets=dict(names) if wrapper else {},
        reduce=_choice(kwargs, "reduce", "sum", ("sum", "mean")),
    )
