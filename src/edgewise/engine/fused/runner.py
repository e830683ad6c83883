"""Runs mode fused: the written-out step in place of autograd through the network."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from edgewise.engine.fused.edges import PlainEdges
from edgewise.engine.fused.nodes import StepNodes
from edgewise.engine.fused.step import MakeEdges, Step
from edgewise.engine.fused.weights import StepWeights, prepare
from edgewise.engine.runner import Runner
from edgewise.model.backbone import ModelWeights
from edgewise.model.network import Network, NetworkOutput
from edgewise.model.tasks import TaskScales
from edgewise.neighbors import EdgeList
from edgewise.ops.fused.row_format import RowFormat, plain_format
from edgewise.settings import InferenceSettings, Precision
from edgewise.systems import SystemBatch


class FusedRunner(Runner):
    """A network whose steps are written out. Hessians differentiate the network itself."""

    def __init__(
        self,
        network: Network,
        scales: Mapping[str, TaskScales],
        settings: InferenceSettings,
        device: torch.device,
        precision: Precision,
        *,
        make_edges: MakeEdges = PlainEdges,
        nodes: StepNodes | None = None,
        row_format: RowFormat | None = None,
    ) -> None:
        """Move the network to the device.

        Args:
            network: The network.
            scales: Scales of the tasks.
            settings: The settings in force.
            device: Where to run.
            precision: The precision that runs.
            make_edges: Chooses what works on edges; plain PyTorch unless given.
            nodes: What works on nodes; None for plain PyTorch.
            row_format: How rows of edges are stored; None for the type of the parameters throughout.
        """
        super().__init__(network, scales, settings, device, precision)
        self._step = Step(self.network, make_edges, nodes)
        self._row_format = row_format or plain_format(next(self.network.parameters()).dtype)
        self._kept: list[tuple[ModelWeights, StepWeights]] = []

    def _evaluate(
        self, batch: SystemBatch, edges: EdgeList, mixtures: tuple[list[ModelWeights], list[int]]
    ) -> tuple[NetworkOutput, Tensor | None]:
        mixed, weights_of_system = mixtures
        output, gradient = self._step(batch, edges, [self._prepared(item) for item in mixed], weights_of_system)
        return output, None if gradient is None else gradient.to(torch.float64)

    def _prepared(self, mixed: ModelWeights) -> StepWeights:
        """Return the weights of a mixture as the steps read them; as many are kept as there are mixtures in memory."""
        for known, prepared in self._kept:
            if known is mixed:
                return prepared
        made = prepare(self.network.backbone, mixed, self._row_format)
        self._kept.append((mixed, made))
        del self._kept[: -max(1, self.mixtures.n_kept)]
        return made
