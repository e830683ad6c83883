"""The work of a step on features of nodes by kernels, in float32. Importing this module needs Triton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from edgewise.engine.fused.nodes import AtomPlan, EnergyWeights, StepNodes
from edgewise.model.config import ModelConfig
from edgewise.ops import EdgeSegment
from edgewise.ops.fused.balance import balance, balance_adjoint
from edgewise.ops.fused.embedding import embedding
from edgewise.ops.fused.energy_head import HeadTables, energy_head, head_tables
from edgewise.ops.fused.feed_forward import SpectralTables, feed_forward, feed_forward_adjoint, spectral_tables
from edgewise.ops.fused.grid_feed_forward import (
    GridTables,
    grid_feed_forward,
    grid_feed_forward_adjoint,
    grid_tables,
)
from edgewise.ops.fused.norm import NormTables, norm, norm_adjoint, norm_of_sum, norm_tables
from edgewise.ops.fused.split_kernels import WIDEST
from edgewise.ops.reference.feed_forward import FeedForwardWeights, GridWeights
from edgewise.ops.reference.norm import NormWeights
from edgewise.systems import SystemBatch


@dataclass(frozen=True)
class _OfGate:
    """What the adjoint of a feed-forward network reads: values after the first map, and gates before their functions."""

    hidden: Tensor
    before_gate: Tensor


class KernelNodes(StepNodes):
    """Kernels; networks that are wider than what a multiprocessor holds are plain PyTorch."""

    def __init__(self) -> None:
        """Begin without tables: they are made when weights are first seen, and kept as long as these."""
        self._tables: WeakKeyDictionary[NormWeights, NormTables] = WeakKeyDictionary()
        self._networks: WeakKeyDictionary[FeedForwardWeights, SpectralTables | GridTables] = WeakKeyDictionary()
        self._heads: WeakKeyDictionary[EnergyWeights, HeadTables] = WeakKeyDictionary()

    def embed(self, x: Tensor, numbers: Tensor, table: Tensor, at_atoms: Tensor) -> Tensor:
        """See `StepNodes`. The features are changed in place."""
        return embedding(x.contiguous(), numbers, table, at_atoms.contiguous())

    def norm(self, x: Tensor, weights: NormWeights, added: Tensor | None = None) -> Tensor:
        """See `StepNodes`."""
        return norm(x, self._of(weights), None if added is None else added.contiguous())

    def norm_of_sum(self, x: Tensor, update: Tensor, weights: NormWeights) -> tuple[Tensor, Tensor]:
        """See `StepNodes`."""
        return norm_of_sum(x, update.contiguous(), self._of(weights))

    def norm_adjoint(self, x: Tensor, weights: NormWeights, gradient: Tensor, base: Tensor | None = None) -> Tensor:
        """See `StepNodes`."""
        return norm_adjoint(x, self._of(weights), gradient.contiguous(), None if base is None else base.contiguous())

    def feed_forward(
        self, h: Tensor, weights: Sequence[FeedForwardWeights], segments: Sequence[EdgeSegment], base: Tensor
    ) -> tuple[Tensor, object]:
        """See `StepNodes`."""
        if not _fit(weights):
            return super().feed_forward(h, weights, segments, base)
        networks, out = [self._network(item) for item in weights], torch.empty_like(base)
        kept = _room_for_gate(h, networks[0])
        for item in segments:
            rows, network = slice(item.start, item.stop), networks[item.weights]
            if isinstance(network, GridTables):
                grid_feed_forward(h[rows], network, base[rows], out[rows])
            else:
                assert kept is not None
                feed_forward(h[rows], network, base[rows], kept.hidden[rows], kept.before_gate[rows], out[rows])
        return out, kept

    def feed_forward_adjoint(
        self,
        h: Tensor,
        weights: Sequence[FeedForwardWeights],
        segments: Sequence[EdgeSegment],
        gradient: Tensor,
        kept: object,
    ) -> Tensor:
        """See `StepNodes`."""
        if not _fit(weights):
            return super().feed_forward_adjoint(h, weights, segments, gradient, kept)
        networks, out = [self._network(item) for item in weights], torch.empty_like(h)
        products = torch.empty_like(kept.hidden) if isinstance(kept, _OfGate) else None
        for item in segments:
            rows, network = slice(item.start, item.stop), networks[item.weights]
            if isinstance(network, GridTables):
                grid_feed_forward_adjoint(h[rows], network, gradient[rows], out[rows])
            else:
                assert isinstance(kept, _OfGate)
                assert products is not None
                of_gate = kept.hidden[rows], kept.before_gate[rows], products[rows]
                feed_forward_adjoint(gradient[rows], network, *of_gate, out[rows])
        return out

    def balance(self, x: Tensor, config: ModelConfig, batch: SystemBatch, plan: AtomPlan) -> Tensor:
        """See `StepNodes`. The features are changed in place."""
        channels = config.charge_balanced_channels, config.spin_balanced_channels
        return balance(x.contiguous(), *channels, plan.starts, batch.charge, batch.spin)

    def balance_adjoint(self, gradient: Tensor, config: ModelConfig, batch: SystemBatch, plan: AtomPlan) -> Tensor:
        """See `StepNodes`. The gradient is changed in place."""
        del batch
        channels = config.charge_balanced_channels, config.spin_balanced_channels
        return balance_adjoint(gradient.contiguous(), *channels, plan.starts)

    def energy(
        self, features: Tensor, weights: EnergyWeights, plan: AtomPlan, *, with_gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """See `StepNodes`. A head of a single layer is plain PyTorch."""
        if len(weights.layers) != 3 or max(weights.layers[0].shape[1:]) > WIDEST:
            return super().energy(features, weights, plan, with_gradient=with_gradient)
        if weights not in self._heads:
            biases = [bias for bias in weights.biases if bias is not None]
            self._heads[weights] = head_tables(weights.layers, biases)
        n_atoms, _, channels = features.shape
        energy = features.new_empty(n_atoms)
        gradient = features.new_empty(n_atoms, channels) if with_gradient else None
        energy_head(features.contiguous(), plan.energy_tiles, self._heads[weights], energy, gradient)
        return energy, gradient

    def _of(self, weights: NormWeights) -> NormTables:
        if weights not in self._tables:
            self._tables[weights] = norm_tables(weights)
        return self._tables[weights]

    def _network(self, weights: FeedForwardWeights) -> SpectralTables | GridTables:
        if weights not in self._networks:
            is_grid = isinstance(weights, GridWeights)
            self._networks[weights] = grid_tables(weights) if is_grid else spectral_tables(weights)
        return self._networks[weights]


def _fit(weights: Sequence[FeedForwardWeights]) -> bool:
    """Tell whether networks, which all have the same sizes, are narrow enough for the kernels."""
    first = weights[0]
    return max((first.layers[0] if isinstance(first, GridWeights) else first.first[0]).shape) <= WIDEST


def _room_for_gate(h: Tensor, network: SpectralTables | GridTables) -> _OfGate | None:
    """Return memory for what is between the maps; networks on a grid leave nothing there."""
    if isinstance(network, GridTables):
        return None
    hidden, n_atoms = network.hidden, h.shape[0]
    return _OfGate(h.new_empty(n_atoms, h.shape[1], hidden), h.new_empty(n_atoms, network.lmax, hidden))
