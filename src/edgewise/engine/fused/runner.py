"""Runs mode fused: the written-out step in place of autograd through the network."""

from __future__ import annotations

import torch
from torch import Tensor

from edgewise.engine.fused.step import Step
from edgewise.engine.fused.weights import StepWeights, prepare
from edgewise.engine.runner import Runner
from edgewise.model.backbone import ModelWeights
from edgewise.model.network import NetworkOutput
from edgewise.neighbors import EdgeList
from edgewise.systems import SystemBatch


class FusedRunner(Runner):
    """A network whose steps are written out. Hessians differentiate the network itself."""

    def _evaluate(
        self, batch: SystemBatch, edges: EdgeList, mixtures: tuple[list[ModelWeights], list[int]]
    ) -> tuple[NetworkOutput, Tensor | None]:
        mixed, weights_of_system = mixtures
        output, gradient = Step(self.network)(batch, edges, [self._prepared(item) for item in mixed], weights_of_system)
        return output, None if gradient is None else gradient.to(torch.float64)

    def _prepared(self, mixed: ModelWeights) -> StepWeights:
        return prepare(self.network.backbone, mixed)
