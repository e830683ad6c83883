"""Runs mode fused: the written-out step in place of autograd through the network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from edgewise.engine.fused.edges import PlainEdges
from edgewise.engine.fused.nodes import StepNodes
from edgewise.engine.fused.step import MakeEdges, Step
from edgewise.engine.fused.weights import StepWeights, prepare
from edgewise.engine.runner import Runner
from edgewise.model.backbone import ModelWeights
from edgewise.model.network import NetworkOutput
from edgewise.neighbors import EdgeList
from edgewise.systems import SystemBatch


class FusedRunner(Runner):
    """A network whose steps are written out. Hessians differentiate the network itself.

    Attributes:
        make_edges: What works on edges; plain PyTorch unless it is set.
        row_dtype: Type of the rows of edges; None for that of the parameters.
        nodes: What works on nodes; None for plain PyTorch.
    """

    make_edges: MakeEdges = PlainEdges
    row_dtype: torch.dtype | None = None
    nodes: StepNodes | None = None

    def __init__(self, *arguments: Any) -> None:
        """Make a runner; the arguments are those of `Runner`."""
        super().__init__(*arguments)
        self._kept: list[tuple[ModelWeights, StepWeights]] = []

    def _evaluate(
        self, batch: SystemBatch, edges: EdgeList, mixtures: tuple[list[ModelWeights], list[int]]
    ) -> tuple[NetworkOutput, Tensor | None]:
        mixed, weights_of_system = mixtures
        step = Step(self.network, self.make_edges, self.nodes)
        output, gradient = step(batch, edges, [self._prepared(item) for item in mixed], weights_of_system)
        return output, None if gradient is None else gradient.to(torch.float64)

    def _prepared(self, mixed: ModelWeights) -> StepWeights:
        """Return the weights of a mixture as the steps read them; as many are kept as there are mixtures in memory."""
        for known, prepared in self._kept:
            if known is mixed:
                return prepared
        dtype = self.row_dtype or next(self.network.parameters()).dtype
        made = prepare(self.network.backbone, mixed, dtype)
        self._kept.append((mixed, made))
        del self._kept[: -max(1, self.mixtures.n_kept)]
        return made
