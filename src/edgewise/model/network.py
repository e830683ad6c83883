"""The whole network: backbone and heads, built from a checkpoint's configuration and weights.

Its outputs are normalised; `edgewise.model.tasks` says how they become eV and Å.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edgewise.errors import CheckpointError
from edgewise.model.backbone import Backbone, ModelWeights
from edgewise.model.config import HeadConfig, ModelConfig
from edgewise.model.heads import make_head
from edgewise.neighbors import EdgeList
from edgewise.ops import Ops
from edgewise.systems import SystemBatch

IGNORED_PREFIX = "backbone.Jd_"
"""Constant tables of the format that this implementation does not read (MODEL.md section 13.1)."""

ENERGY_HEADS = ("MLP_EFS_Head", "MLP_Energy_Head", "Linear_Energy_Head")


@dataclass(frozen=True)
class NetworkOutput:
    """Normalised outputs.

    Attributes:
        node_energy: [n_atoms].
        direct_forces: [n_atoms, 3] of a direct-force model, else None.
        direct_stress: [n_systems, 3, 3] of a direct-stress model, else None.
    """

    node_energy: Tensor
    direct_forces: Tensor | None
    direct_stress: Tensor | None


class Network(nn.Module):
    """Backbone and heads."""

    def __init__(self, config: ModelConfig, ops: Ops) -> None:
        """Make a network with random weights."""
        super().__init__()
        self.config = config
        self.backbone = Backbone(config, ops)
        self.output_heads = nn.ModuleDict({head.name: make_head(config, head) for head in config.heads})
        self.energy_head = _only_head(config, ENERGY_HEADS)
        self.force_head = _only_head(config, ("Linear_Force_Head",))
        self.stress_head = _only_head(config, ("MLP_Stress_Head",))
        if self.energy_head is None:
            message = f"the checkpoint has no energy head among {[head.name for head in config.heads]}"
            raise CheckpointError(message)

    def with_ops(self, ops: Ops) -> Network:
        """Return the same network, sharing its parameters, on other implementations of the operations."""
        with torch.device("meta"):
            other = Network(self.config, ops)
        other.load_state_dict(self.state_dict(), assign=True)
        other.requires_grad_(requires_grad=False)
        parameter = next(self.parameters())
        return other.to(device=parameter.device, dtype=parameter.dtype).eval()

    @property
    def is_direct(self) -> bool:
        """Whether forces come from a head of their own."""
        return self.force_head is not None

    @property
    def reduces_energy_by_mean(self) -> bool:
        """Whether the reported energy is the mean over atoms."""
        return self.energy_head is not None and self.energy_head.reduce == "mean"

    def forward(
        self,
        batch: SystemBatch,
        edges: EdgeList,
        edge_vec: Tensor,
        weights: Sequence[ModelWeights],
        weights_of_system: Sequence[int],
        *,
        activation_checkpointing: bool = False,
        edge_chunk_size: int | None = None,
    ) -> NetworkOutput:
        """Run the network; the arguments are those of `Backbone.forward`."""
        x = self.backbone(
            batch,
            edges,
            edge_vec,
            weights,
            weights_of_system,
            activation_checkpointing=activation_checkpointing,
            edge_chunk_size=edge_chunk_size,
        )
        return self.outputs(x, batch)

    def outputs(self, x: Tensor, batch: SystemBatch, node_energy: Tensor | None = None) -> NetworkOutput:
        """Apply the heads to node features [n_atoms, n_coefficients, channels].

        Args:
            x: The features.
            batch: The structures.
            node_energy: [n_atoms], where they are known; None to compute them.
        """
        heads = self.output_heads
        return NetworkOutput(
            node_energy=heads[self._energy_head_name](x, batch) if node_energy is None else node_energy,
            direct_forces=None if self.force_head is None else heads[self.force_head.name](x, batch),
            direct_stress=None if self.stress_head is None else heads[self.stress_head.name](x, batch),
        )

    @property
    def _energy_head_name(self) -> str:
        assert self.energy_head is not None
        return self.energy_head.name


def build_network(config: ModelConfig, ops: Ops, weights: Mapping[str, Tensor], dtype: torch.dtype) -> Network:
    """Build a network and fill it with a checkpoint's weights, strictly.

    Args:
        config: Sizes and options.
        ops: Implementations of the hot operations.
        weights: Parameters by the names of the format.
        dtype: Type of parameters and activations.

    Raises:
        CheckpointError: Parameters are missing, left over, or of another shape than the configuration says.
    """
    # Parameters without memory first: the checkpoint's own tensors take their places, and nothing is initialised twice.
    with torch.device("meta"):
        network = Network(config, ops)
    expected = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    given = {name: value for name, value in weights.items() if not name.startswith(IGNORED_PREFIX)}
    _check_names(expected, given)
    # Tensors that a caller made in inference mode cannot be parameters; copies can.
    usable = {name: value.clone() if value.is_inference() else value for name, value in given.items()}
    network.load_state_dict(usable, assign=True)
    network.requires_grad_(requires_grad=False)
    return network.to(dtype).eval()


def _only_head(config: ModelConfig, kinds: Sequence[str]) -> HeadConfig | None:
    found = [head for head in config.heads if head.kind in kinds]
    if len(found) > 1:
        message = f"the checkpoint has {len(found)} heads for the same property: {[head.name for head in found]}"
        raise CheckpointError(message)
    return found[0] if found else None


def _check_names(expected: Mapping[str, tuple[int, ...]], given: Mapping[str, Tensor]) -> None:
    missing, surplus = sorted(set(expected) - set(given)), sorted(set(given) - set(expected))
    if missing:
        message = (
            f"the checkpoint lacks {len(missing)} parameters that its configuration asks for: {_shortened(missing)}"
        )
        raise CheckpointError(message)
    if surplus:
        message = f"the checkpoint has {len(surplus)} parameters that its configuration has no place for: {_shortened(surplus)}"
        raise CheckpointError(message)
    for name, shape in expected.items():
        if tuple(given[name].shape) != shape:
            message = f"parameter {name} has shape {tuple(given[name].shape)}; its configuration asks for {shape}"
            raise CheckpointError(message)


def _shortened(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown}, ..."
