"""Runs mode fused on kernels, recorded in CUDA graphs where there is a GPU. Importing this module needs Triton."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from edgewise.engine.fused.kernel_edges import KernelEdges
from edgewise.engine.fused.kernel_nodes import KernelNodes
from edgewise.engine.fused.runner import FusedRunner
from edgewise.engine.fused.system_steps import MOST_KEPT, RawOutputs, SystemSteps, sum_of_systems
from edgewise.engine.fused.weights import StepWeights
from edgewise.engine.runner import Outputs
from edgewise.engine.scales import OutputScales
from edgewise.errors import EdgewiseWarning
from edgewise.model.network import Network
from edgewise.model.tasks import TaskScales
from edgewise.neighbors import EdgeList, check_sizes
from edgewise.ops.fused import cuda
from edgewise.ops.fused.edge_geometry import serves
from edgewise.ops.fused.row_format import FLOAT16, FLOAT32, SPLIT, TF32, RowFormat
from edgewise.ops.reference.edge_steps import edge_order, segment_sum
from edgewise.settings import InferenceSettings, Precision, cache_folder
from edgewise.systems import SystemBatch

REDONE = (
    "values of a structure were too large for float16, so its step was done again in float32; if this happens in most calls, "
    "precision='tf32' is faster"
)

FORMATS: dict[Precision, RowFormat] = {"fast": FLOAT16, "tf32": TF32, "float32": SPLIT}
"""How rows of edges are stored for each precision."""

HIGHEST = FLOAT32
"""The format of steps that are done again: with the range and the products of float32 there is nothing above it."""


_OF_SIZES = ("cell", "pbc", "n_atoms")
"""What sizes depend on where all axes are periodic."""

_OF_WEIGHTS = ("n_atoms", "atomic_numbers", "charge", "spin")
"""What mixtures of experts depend on, beside the tasks."""


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
        row_format: RowFormat | None = None,
    ) -> None:
        """Move the network to the device; the arguments are those of `Runner`, and the format, if not that of the precision."""
        chosen = FORMATS[precision] if row_format is None else row_format
        make_edges = partial(KernelEdges.listed, cutoff=network.config.cutoff, row_format=chosen)
        super().__init__(
            network, scales, settings, device, precision, make_edges=make_edges, nodes=KernelNodes(), row_format=chosen
        )
        self.n_redone = 0
        self._checked: SystemBatch | None = None
        self._latest: tuple[SystemBatch, tuple[list[StepWeights], list[int]]] | None = None
        self._given_scales = scales
        self._padding: float | None = None
        self._higher: KernelRunner | None = None
        cuda.keep_code_in(cache_folder() / "kernels")
        self._steps = SystemSteps(self.network, self._step, chosen, device, around=self._call)

    @property
    def n_recorded(self) -> int:
        """See `SystemSteps.n_recorded`."""
        return self._steps.n_recorded

    @property
    def finds_neighbors(self) -> bool:
        """Whether the steps find neighbours by themselves."""
        settings = self.settings
        return not settings.external_graph_gen and not settings.uses_nvalchemi and serves(self._step.shape)

    @property
    def neighbor_list(self) -> str:
        """See `Runner.neighbor_list`."""
        return f"bins in the step on {self.device}" if self.finds_neighbors else super().neighbor_list

    @property
    def product_precision(self) -> Precision:
        """See `Runner.product_precision`: whatever rows of edges are rounded to, all else is float32."""
        return "float32"

    @property
    def notes(self) -> tuple[str, ...]:
        """See `Runner.notes`."""
        found = ["sums run in a fixed order: the same structure gives the same bits"]
        if self.n_recorded:
            found.append(f"{self.n_recorded} steps are recorded, for as many sizes; at most {MOST_KEPT} are kept")
        if self._padding is not None:
            found.append(f"the last call made room for {self._padding:.1%} more edges than there were")
        if self.n_redone:
            batches = "1 batch was" if self.n_redone == 1 else f"{self.n_redone} batches were"
            found.append(f"{batches} done again in float32, since a value was too large for float16")
        return tuple(found)

    def redo(self, batch: SystemBatch) -> Outputs | None:
        """Do a batch again in float32, after values were too large for float16; None if no values were float16."""
        if self._row_format.operands != torch.float16:
            return None
        if not self.n_redone:
            warnings.warn(REDONE, EdgewiseWarning, stacklevel=4)
        if self._higher is None:
            self._higher = KernelRunner(
                self.network, self._given_scales, self.settings, self.device, "float32", HIGHEST
            )
            self._higher.mixtures = self.mixtures
        self.n_redone += 1
        return self._higher.run(batch)

    def run(self, batch: SystemBatch) -> Outputs:
        """See `Runner.run`."""
        self._check_sizes(batch)
        weights, weights_of_system = self._weights(batch)
        # Runs of edges with weights of their own have bounds that a recorded step could not follow.
        alike = len(weights) == 1 and self.finds_neighbors
        begun = self._steps.begin(batch, weights[0]) if alike else None
        if begun is not None:
            # While the device works.
            factors = self._factors(batch)
            raw = self._steps.finish(begun)
            if raw is not None:
                self._padding = raw.padding
                self._note_cap(raw.n_capped)
                return factors.outputs(raw)
        with self._call(), torch.no_grad():
            edges = self._edges(batch)
            scales, sizes = self._scales.of(batch, self.device), batch.n_atoms.tolist()
            batch, edges = batch.to(self.device), edges.to(self.device)
            output, gradient = self._step.evaluate(self._step.inputs(batch, edges, weights, weights_of_system, sizes))
            if gradient is None:
                return self._direct_outputs(batch, output, scales)
            return self._conservative_outputs(batch, edges, output.node_energy, gradient, scales)

    def _weights(self, batch: SystemBatch) -> tuple[list[StepWeights], list[int]]:
        """Return the distinct weights of a batch and, for each system, the number of those it uses; the latest are kept."""
        if self._latest is not None:
            known, found = self._latest
            if batch.tasks == known.tasks and batch.agrees(known, _OF_WEIGHTS):
                return found
        with self._call(), torch.no_grad():
            mixed, of_system = self.mixtures.for_batch(batch)
            found = [self._prepared(item) for item in mixed], of_system
        # Most calls are a step on from the last.
        self._latest = batch, found
        return found

    def _check_sizes(self, batch: SystemBatch) -> None:
        """See `check_sizes`; where all axes are periodic it is the cell that counts, which seldom changes."""
        known = self._checked
        if known is None or not batch.agrees(known, _OF_SIZES) or not batch.pbc.all():
            check_sizes(batch, self.network.config.cutoff)
            self._checked = batch

    def _factors(self, batch: SystemBatch) -> _Factors:
        """Return what turns the results of a step into physical outputs."""
        scales, network = self._scales.of(batch, torch.device("cpu")), self.network
        energy = scales.energy / batch.n_atoms if network.reduces_energy_by_mean else scales.energy
        forces = scales.forces[batch.system_idx, None]
        if not network.is_direct:
            return _Factors(energy, scales.energy_offset, -forces, (0.5 * scales.virial)[:, None, None], is_virial=True)
        stress = scales.stress if network.stress_head is not None else torch.full_like(scales.stress, torch.nan)
        return _Factors(energy, scales.energy_offset, forces, stress[:, None, None], is_virial=False)

    def _energy(self, batch: SystemBatch, node_energy: Tensor, scales: OutputScales) -> Tensor:
        summed = sum_of_systems(node_energy.to(torch.float64)[:, None], _starts(batch))[:, 0]
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
        virial = sum_of_systems(segment_sum(outer, order.target_starts), _starts(batch)).unflatten(1, (3, 3))
        return Outputs(
            energy=self._energy(batch, node_energy, scales),
            forces=at_atoms * -scales.forces[batch.system_idx, None],
            stress=(virial + virial.mT) * (0.5 * scales.virial)[:, None, None],
        )


@dataclass(frozen=True)
class _Factors:
    """What the results of a step are multiplied by, on the CPU.

    Attributes:
        energy: [n_systems], eV.
        energy_offset: [n_systems], eV, is added.
        forces: [n_atoms, 1], eV/Å.
        stress: [n_systems, 1, 1], eV/Å^3.
        is_virial: The stress is that of the sum of virial and transposed virial.
    """

    energy: Tensor
    energy_offset: Tensor
    forces: Tensor
    stress: Tensor
    is_virial: bool

    def outputs(self, raw: RawOutputs) -> Outputs:
        """Return physical outputs."""
        stress = raw.stress + raw.stress.mT if self.is_virial else raw.stress
        energy = torch.addcmul(self.energy_offset, raw.energy, self.energy)
        return Outputs(energy, raw.forces * self.forces, stress * self.stress)


def _starts(batch: SystemBatch) -> Tensor:
    """Return where each system's atoms begin, and the end, [n_systems + 1]."""
    return torch.nn.functional.pad(batch.n_atoms.cumsum(0), (1, 0))
