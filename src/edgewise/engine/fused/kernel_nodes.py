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
from edgewise.ops.fused.norm import NormTables, norm, norm_adjoint, norm_of_sum, norm_tables
from edgewise.ops.fused.split_kernels import WIDEST
from edgewise.ops.reference.feed_forward import FeedForwardWeights, SpectralWeights
from edgewise.ops.reference.norm import NormWeights
from edgewise.systems import SystemBatch


@dataclass(frozen=True)
class _OfGate:
    """What the adjoint of a feed-forward network reads: values after the first map, and gates before their functions."""

    hidden: Tensor
    before_gate: Tensor


class KernelNodes(StepNodes):
    """Kernels; feed-forward networks on a grid, and what is wider than a multiprocessor holds, are plain PyTorch."""

    def __init__(self) -> None:
        """Begin without tables: they are made when weights are first seen, and kept as long as these."""
        self._tables: WeakKeyDictionary[NormWeights, NormTables] = WeakKeyDictionary()
        self._networks: WeakKeyDictionary[FeedForwardWeights, SpectralTables] = WeakKeyDictionary()
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
        networks = self._spectral(weights)
        if networks is None:
            return super().feed_forward(h, weights, segments, base)
        n_atoms, n_coefficients, _ = h.shape
        out, hidden = torch.empty_like(base), h.new_empty(n_atoms, n_coefficients, networks[0].hidden)
        before_gate = h.new_empty(n_atoms, networks[0].lmax, networks[0].hidden)
        for item in segments:
            given = (tensor[item.start : item.stop] for tensor in (base, hidden, before_gate, out))
            feed_forward(h[item.start : item.stop], networks[item.weights], *given)
        return out, _OfGate(hidden, before_gate)

    def feed_forward_adjoint(
        self,
        h: Tensor,
        weights: Sequence[FeedForwardWeights],
        segments: Sequence[EdgeSegment],
        gradient: Tensor,
        kept: object,
    ) -> Tensor:
        """See `StepNodes`."""
        networks = self._spectral(weights)
        if networks is None:
            return super().feed_forward_adjoint(h, weights, segments, gradient, kept)
        assert isinstance(kept, _OfGate)
        products, out = torch.empty_like(kept.hidden), torch.empty_like(h)
        for item in segments:
            given = (tensor[item.start : item.stop] for tensor in (kept.hidden, kept.before_gate, products, out))
            feed_forward_adjoint(gradient[item.start : item.stop], networks[item.weights], *given)
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

    def _spectral(self, weights: Sequence[FeedForwardWeights]) -> list[SpectralTables] | None:
        """Return the networks as the kernels read them; None for those that plain PyTorch evaluates."""
        found: list[SpectralTables] = []
        for item in weights:
            if not isinstance(item, SpectralWeights) or max(item.first.shape[1:]) > WIDEST:
                return None
            if item not in self._networks:
                self._networks[item] = spectral_tables(item)
            found.append(self._networks[item])
        return found
