"""Runs mode fused on kernels, captured in CUDA graphs where there is a GPU. Importing this module needs Triton."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from edgewise.engine.fused.capacity import capacity_of
from edgewise.engine.fused.captured import MOST_KEPT, CapturedSteps
from edgewise.engine.fused.kernel_edges import KernelEdges
from edgewise.engine.fused.kernel_nodes import KernelNodes
from edgewise.engine.fused.runner import FusedRunner
from edgewise.engine.runner import Outputs
from edgewise.engine.scales import OutputScales
from edgewise.errors import EdgewiseWarning
from edgewise.model.backbone import ModelWeights
from edgewise.model.network import Network, NetworkOutput
from edgewise.model.tasks import TaskScales
from edgewise.neighbors import EdgeList
from edgewise.ops import MessageShape
from edgewise.ops.reference.edge_steps import EdgeGeometry, edge_order, segment_sum
from edgewise.settings import InferenceSettings, Precision
from edgewise.systems import SystemBatch

REDONE = (
    "values of a structure were too large for float16, so its step was done again in float32; if this happens in most calls, "
    "precision='float32' is faster"
)

ROWS: dict[Precision, torch.dtype] = {"fast": torch.float16, "float32": torch.float32}
"""Type of the rows of edges for each precision."""


class KernelRunner(FusedRunner):
    """A network whose steps run on kernels.

    Attributes:
        n_redone: How many batches were done again one precision higher, since a value was too large for float16.
    """

    def __init__(
        self,
        network: Network,
        scales: Mapping[str, TaskScales],
        settings: InferenceSettings,
        device: torch.device,
        precision: Precision,
    ) -> None:
        """Move the network to the device; the arguments are those of `Runner`."""
        dtype = ROWS[precision]
        make_edges = partial(_edges_with_room, cutoff=network.config.cutoff, dtype=dtype)
        super().__init__(
            network, scales, settings, device, precision, make_edges=make_edges, nodes=KernelNodes(), row_dtype=dtype
        )
        self.n_redone = 0
        self._given_scales = scales
        self._padding: float | None = None
        self._captured = CapturedSteps(self._step) if device.type == "cuda" else None
        self._higher: KernelRunner | None = None

    @property
    def n_captured(self) -> int:
        """How many times a step was captured."""
        return 0 if self._captured is None else self._captured.n_captured

    @property
    def notes(self) -> tuple[str, ...]:
        """See `Runner.notes`."""
        found = ["sums run in a fixed order: the same structure gives the same bits"]
        if self._captured is not None:
            found.append(f"{self.n_captured} steps captured so far, for as many sizes; at most {MOST_KEPT} are kept")
        if self._padding is not None:
            found.append(f"the last call made room for {self._padding:.1%} more edges than there were")
        if self.n_redone:
            batches = "1 batch was" if self.n_redone == 1 else f"{self.n_redone} batches were"
            found.append(f"{batches} done again in float32, since a value was too large for float16")
        return tuple(found)

    def redo(self, batch: SystemBatch) -> Outputs | None:
        """Do a batch again in float32, after values were too large for float16; None if it already was float32."""
        if self.precision == "float32":
            return None
        if self._higher is None:
            self._higher = KernelRunner(self.network, self._given_scales, self.settings, self.device, "float32")
            self._higher.mixtures = self.mixtures
        if not self.n_redone:
            warnings.warn(REDONE, EdgewiseWarning, stacklevel=4)
        self.n_redone += 1
        return self._higher.run(batch)

    def run(self, batch: SystemBatch) -> Outputs:
        """See `Runner.run`."""
        with self._call(), torch.no_grad():
            edges = self._edges(batch)
            mixtures = self.mixtures.for_batch(batch)
            scales, sizes = self._scales.of(batch, self.device), tuple(batch.n_atoms.tolist())
            batch, edges = batch.to(self.device), edges.to(self.device)
            output, gradient = self._stepped(batch, edges, mixtures, sizes)
            if gradient is None:
                return self._direct_outputs(batch, output, scales)
            return self._conservative_outputs(batch, edges, output.node_energy, gradient, scales)

    def _stepped(
        self,
        batch: SystemBatch,
        edges: EdgeList,
        mixtures: tuple[list[ModelWeights], list[int]],
        sizes: tuple[int, ...],
    ) -> tuple[NetworkOutput, Tensor | None]:
        """Do the step, captured where it can be; return what `_evaluate` returns."""
        mixed, weights_of_system = mixtures
        weights = [self._prepared(item) for item in mixed]
        inputs = self._step.inputs(batch, edges, weights, weights_of_system, sizes)
        n_edges = edges.edge_index.shape[1]
        self._padding = capacity_of(n_edges) / n_edges - 1 if n_edges else None
        # Runs of edges or atoms with weights of their own have bounds that a captured step could not follow.
        if self._captured is None or len(weights) > 1 or len(set(batch.tasks)) > 1:
            output, gradient = self._step.evaluate(inputs)
        else:
            key = (sizes, capacity_of(n_edges), weights[0], batch.tasks[0])
            output, gradient = self._captured(key, inputs)
        return output, None if gradient is None else gradient[:n_edges].to(torch.float64)

    def _energy(self, batch: SystemBatch, node_energy: Tensor, scales: OutputScales) -> Tensor:
        summed = _sum_of_systems(node_energy.to(torch.float64)[:, None], batch)[:, 0]
        if self.network.reduces_energy_by_mean:
            summed = summed / batch.n_atoms
        return summed * scales.energy + scales.energy_offset

    def _conservative_outputs(
        self, batch: SystemBatch, edges: EdgeList, node_energy: Tensor, gradient: Tensor, scales: OutputScales
    ) -> Outputs:
        order = edge_order(edges.edge_index, batch.positions.shape[0])
        at_atoms = segment_sum(gradient[order.by_source], order.source_starts)
        at_atoms = at_atoms - segment_sum(gradient, order.target_starts)
        outer = (gradient[:, :, None] * edges.edge_vec[:, None, :]).flatten(1)
        virial = _sum_of_systems(segment_sum(outer, order.target_starts), batch).unflatten(1, (3, 3))
        return Outputs(
            energy=self._energy(batch, node_energy, scales),
            forces=at_atoms * -scales.forces[batch.system_idx, None],
            stress=(virial + virial.mT) * (0.5 * scales.virial)[:, None, None],
        )


def _edges_with_room(
    edges: EdgeList, n_atoms: int, geometry: EdgeGeometry, shape: MessageShape, *, cutoff: float, dtype: torch.dtype
) -> KernelEdges:
    capacity = capacity_of(edges.edge_index.shape[1])
    return KernelEdges(edges, n_atoms, geometry, shape, cutoff, dtype, capacity)


def _sum_of_systems(values: Tensor, batch: SystemBatch) -> Tensor:
    """Sum values of atoms over each system, in a fixed order."""
    if batch.n_systems == 1:
        return values.sum(0, keepdim=True)
    return segment_sum(values, functional.pad(batch.n_atoms.cumsum(0), (1, 0)))
