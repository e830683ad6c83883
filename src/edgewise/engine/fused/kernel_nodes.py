"""The work of a step on features of nodes by kernels, in float32. Importing this module needs Triton."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import Tensor

from edgewise.engine.fused.nodes import StepNodes
from edgewise.ops.fused.norm import NormTables, norm, norm_adjoint, norm_tables
from edgewise.ops.reference.norm import NormWeights


class KernelNodes(StepNodes):
    """Kernels for norms; everything else is plain PyTorch."""

    def __init__(self) -> None:
        """Begin without tables: they are made when a norm is first seen, and kept as long as its weights."""
        self._tables: WeakKeyDictionary[NormWeights, NormTables] = WeakKeyDictionary()

    def norm(self, x: Tensor, weights: NormWeights, added: Tensor | None = None) -> Tensor:
        """See `StepNodes`."""
        return norm(x, self._of(weights), None if added is None else added.contiguous())

    def norm_adjoint(self, x: Tensor, weights: NormWeights, gradient: Tensor, base: Tensor | None = None) -> Tensor:
        """See `StepNodes`."""
        return norm_adjoint(x, self._of(weights), gradient.contiguous(), None if base is None else base.contiguous())

    def _of(self, weights: NormWeights) -> NormTables:
        if weights not in self._tables:
            self._tables[weights] = norm_tables(weights)
        return self._tables[weights]
