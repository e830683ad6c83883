"""What a step does on features of nodes, behind one interface: in plain PyTorch, or by kernels (`kernel_nodes`).

Features have the shape [n_atoms, n_coefficients, channels]. Some operations of kernels write into what they are given, so
that a step uses the returned features alone, never those that it gave to `embed`, `balance` or `balance_adjoint`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from edgewise.model.config import ModelConfig
from edgewise.model.edge_inputs import segments_of
from edgewise.model.experts import ExpertLinear
from edgewise.model.heads import EnergyHead, PerDatasetHead, WrappedHead
from edgewise.model.network import Network
from edgewise.ops import EdgeSegment
from edgewise.ops.reference.balance import balance, balance_adjoint
from edgewise.ops.reference.feed_forward import (
    FeedForwardWeights,
    feed_forward,
    feed_forward_adjoint,
    scalar_network,
    scalar_network_adjoint,
)
from edgewise.ops.reference.norm import NormWeights, norm, norm_adjoint
from edgewise.systems import SystemBatch

TILE = 16
"""Most atoms of a tile of `AtomPlan`: what the kernel of the energy head takes."""


@dataclass(frozen=True, eq=False)
class EnergyWeights:
    """The network of an energy head, in one set of weights or in several.

    Attributes:
        layers: [n_sets, n_out, n_in] of each linear layer.
        biases: [n_out] of each, the same for all sets; None for none.
        sets: Number of the set of each task; empty where all share one.
    """

    layers: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]
    sets: dict[str, int]

    def of_set(self, number: int) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return the weights and biases of one set."""
        return [layer[number] for layer in self.layers], list(self.biases)


@dataclass(frozen=True)
class AtomPlan:
    """Which atoms belong together. The host makes it once, so that a step has to ask for nothing.

    Attributes:
        starts: [n_systems + 1] int32 on the device, where each system's atoms begin, and the end.
        energy_runs: Runs of atoms that share a set of weights of the energy head.
        energy_tiles: [n_tiles, 3] int32 on the device, the same runs in pieces of at most `TILE` atoms: start, stop, set.
    """

    starts: Tensor
    energy_runs: tuple[EdgeSegment, ...]
    energy_tiles: Tensor


def energy_weights(network: Network) -> EnergyWeights:
    """Return the weights of a network's energy head."""
    assert network.energy_head is not None
    head = network.output_heads[network.energy_head.name]
    if isinstance(head, PerDatasetHead):
        linear = [layer for layer in head.head.energy_block.modules() if isinstance(layer, ExpertLinear)]
        return EnergyWeights(
            tuple(layer.weights for layer in linear), tuple(layer.bias for layer in linear), head.number_of
        )
    if isinstance(head, WrappedHead):
        head = head.head
    assert isinstance(head, EnergyHead)
    layers, biases = head.layers()
    return EnergyWeights(tuple(layer[None] for layer in layers), tuple(biases), {})


def atom_plan(batch: SystemBatch, n_atoms: Sequence[int], weights: EnergyWeights) -> AtomPlan:
    """Plan the work on the atoms of a batch.

    Args:
        batch: The structures, on the device.
        n_atoms: Number of atoms of each, on the host.
        weights: Those of the energy head.
    """
    numbers = [weights.sets[task] if weights.sets else 0 for task in batch.tasks]
    runs = segments_of(n_atoms, numbers)
    tiles = [
        (start, min(start + TILE, run.stop), run.weights) for run in runs for start in range(run.start, run.stop, TILE)
    ]
    device = batch.n_atoms.device
    starts = functional.pad(batch.n_atoms.cumsum(0), (1, 0)).to(torch.int32)
    return AtomPlan(starts, runs, torch.tensor(tiles, dtype=torch.int32).reshape(-1, 3).to(device))


class StepNodes:
    """Plain PyTorch: any type, any device."""

    def embed(self, x: Tensor, numbers: Tensor, table: Tensor, at_atoms: Tensor) -> Tensor:
        """Add the rows of a table [n_elements, channels] for the elements, and [n_atoms, channels], to the scalars."""
        scalars = functional.embedding(numbers, table) + at_atoms
        return x + functional.pad(scalars[:, None], (0, 0, 0, x.shape[1] - 1))

    def norm(self, x: Tensor, weights: NormWeights, added: Tensor | None = None) -> Tensor:
        """Normalise features, and add [n_atoms, channels] to the scalars."""
        y = norm(x, weights)
        if added is not None:
            y[:, 0] += added
        return y

    def norm_of_sum(self, x: Tensor, update: Tensor, weights: NormWeights) -> tuple[Tensor, Tensor]:
        """Return the sum of two features, and the sum normalised."""
        summed = x + update
        return summed, self.norm(summed, weights)

    def norm_adjoint(self, x: Tensor, weights: NormWeights, gradient: Tensor, base: Tensor | None = None) -> Tensor:
        """Return the gradient of the features for that of the normalised ones, added to `base`.

        A gradient [n_atoms, channels] is that of the scalars; that of the other coefficients is zero then.
        """
        if gradient.dim() == 2:
            gradient = functional.pad(gradient[:, None], (0, 0, 0, x.shape[1] - 1))
        found = norm_adjoint(x, weights, gradient)
        return found if base is None else base + found

    def feed_forward(
        self, h: Tensor, weights: Sequence[FeedForwardWeights], segments: Sequence[EdgeSegment], base: Tensor
    ) -> tuple[Tensor, object]:
        """Apply feed-forward networks.

        Args:
            h: Normalised features.
            weights: One set, or one for each mixture.
            segments: Runs of atoms that share weights; they cover all of them in order.
            base: Features that the result is added to.

        Returns:
            The sum, and what `feed_forward_adjoint` wants to have kept.
        """
        parts = [feed_forward(h[item.start : item.stop], weights[item.weights]) for item in segments]
        return base + (parts[0] if len(parts) == 1 else torch.cat(parts)), None

    def feed_forward_adjoint(
        self,
        h: Tensor,
        weights: Sequence[FeedForwardWeights],
        segments: Sequence[EdgeSegment],
        gradient: Tensor,
        kept: object,
    ) -> Tensor:
        """Return the gradient of `h` for that of the result; `kept` is what `feed_forward` has returned."""
        del kept
        parts = [
            feed_forward_adjoint(h[rows], weights[item.weights], gradient[rows])
            for item in segments
            for rows in [slice(item.start, item.stop)]
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def balance(self, x: Tensor, config: ModelConfig, batch: SystemBatch, plan: AtomPlan) -> Tensor:
        """Set the sums of balanced channels over each system to its charge and to its multiplicity - 1."""
        del plan
        systems = batch.system_idx, batch.n_atoms
        x = balance(x, config.charge_balanced_channels, batch.charge, *systems)
        return balance(x, config.spin_balanced_channels, batch.spin - 1, *systems)

    def balance_adjoint(self, gradient: Tensor, config: ModelConfig, batch: SystemBatch, plan: AtomPlan) -> Tensor:
        """Return the gradient of the input of `balance` for that of its output."""
        del plan
        systems = batch.system_idx, batch.n_atoms
        gradient = balance_adjoint(gradient, config.spin_balanced_channels, *systems)
        return balance_adjoint(gradient, config.charge_balanced_channels, *systems)

    def energy(
        self, features: Tensor, weights: EnergyWeights, plan: AtomPlan, *, with_gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return node energies [n_atoms], and the gradient of their sum for the scalars, [n_atoms, channels], if wanted."""
        scalars = features[:, 0]
        energies: list[Tensor] = []
        gradients: list[Tensor] = []
        for run in plan.energy_runs:
            own, layers = scalars[run.start : run.stop], weights.of_set(run.weights)
            energies.append(scalar_network(own, *layers)[:, 0])
            if with_gradient:
                gradients.append(scalar_network_adjoint(own, *layers, own.new_ones(own.shape[0], 1)))
        return torch.cat(energies), torch.cat(gradients) if with_gradient else None
