"""The work of a step on features of nodes by kernels, in float32. Importing this module needs Triton."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import Tensor

from edgewise.engine.fused.nodes import AtomPlan, StepNodes
from edgewise.model.config import ModelConfig
from edgewise.ops.fused.balance import balance, balance_adjoint
from edgewise.ops.fused.embedding import embedding
from edgewise.ops.fused.norm import NormTables, norm, norm_adjoint, norm_of_sum, norm_tables
from edgewise.ops.reference.norm import NormWeights
from edgewise.systems import SystemBatch


class KernelNodes(StepNodes):
    """Kernels for norms, balance and embedding; everything else is plain PyTorch."""

    def __init__(self) -> None:
        """Begin without tables: they are made when a norm is first seen, and kept as long as its weights."""
        self._tables: WeakKeyDictionary[NormWeights, NormTables] = WeakKeyDictionary()

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

    def balance(self, x: Tensor, config: ModelConfig, batch: SystemBatch, plan: AtomPlan) -> Tensor:
        """See `StepNodes`. The features are changed in place."""
        channels = config.charge_balanced_channels, config.spin_balanced_channels
        return balance(x.contiguous(), *channels, plan.starts, batch.charge, batch.spin)

    def balance_adjoint(self, gradient: Tensor, config: ModelConfig, batch: SystemBatch, plan: AtomPlan) -> Tensor:
        """See `StepNodes`. The gradient is changed in place."""
        del batch
        channels = config.charge_balanced_channels, config.spin_balanced_channels
        return balance_adjoint(gradient.contiguous(), *channels, plan.starts)

    def _of(self, weights: NormWeights) -> NormTables:
        if weights not in self._tables:
            self._tables[weights] = norm_tables(weights)
        return self._tables[weights]
