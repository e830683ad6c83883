"""Runs a network on a batch: energies, forces and stresses in one pass, and Hessians. Tensors in, tensors out."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.engine.mixtures import Mixtures
from edgewise.engine.precision import fixed_order, matmul_precision
from edgewise.engine.scales import OutputScales, ScaleTables
from edgewise.errors import EdgewiseWarning, PropertyUnavailableError
from edgewise.model.backbone import ModelWeights
from edgewise.model.network import Network, NetworkOutput
from edgewise.model.tasks import TaskScales
from edgewise.neighbors import EdgeList, build_edges
from edgewise.ops import REFERENCE, Workspace
from edgewise.settings import InferenceSettings, Precision
from edgewise.systems import SystemBatch

HESSIAN_ROWS_AT_ONCE = 48
"""Rows of a vectorised Hessian that are computed together; their memory does not grow with the structure's."""


@dataclass(frozen=True)
class Outputs:
    """Physical outputs of a batch, on the device.

    Attributes:
        energy: [n_systems], eV, float64.
        forces: [n_atoms, 3], eV/Å, float64.
        stress: [n_systems, 3, 3], eV/Å^3, float64; NaN where a structure has no periodic axis or the model no stress.
    """

    energy: Tensor
    forces: Tensor
    stress: Tensor


class Runner:
    """A network with its settings, ready to run on one device.

    Attributes:
        network: The network.
        settings: The settings in force.
        precision: The precision that runs.
        mixtures: The expert weights of the systems seen so far.
        n_capped: Atoms whose neighbours the cap has cut, in the last call.
    """

    def __init__(
        self,
        network: Network,
        scales: Mapping[str, TaskScales],
        settings: InferenceSettings,
        device: torch.device,
        precision: Precision,
    ) -> None:
        """Move the network to the device."""
        self.network = network.to(device)
        self.settings = settings
        self.precision: Precision = precision
        self.device = device
        if settings.compile:
            self.network.backbone.compile_features()
        self.mixtures = Mixtures(self.network, keep=settings.merge_mole)
        self.n_capped = 0
        self._workspace = Workspace()
        self._reference_network: Network | None = None
        self._scales = ScaleTables(scales)

    def run(self, batch: SystemBatch) -> Outputs:
        """Compute energies, forces and stresses.

        Args:
            batch: The structures, on the CPU.
        """
        with self._call():
            edges = self._edges(batch)
            with torch.no_grad():
                mixtures = self.mixtures.for_batch(batch)
            scales = self._scales.of(batch, self.device)
            batch, edges = batch.to(self.device), edges.to(self.device)
            output, gradient = self._evaluate(batch, edges, mixtures)
            with torch.no_grad():
                if gradient is None:
                    return self._direct_outputs(batch, output, scales)
                return self._conservative_outputs(batch, edges, output.node_energy.detach(), gradient, scales)

    @property
    def product_precision(self) -> Precision:
        """Precision of products that torch makes of float32 tensors."""
        return self.precision

    @property
    def notes(self) -> tuple[str, ...]:
        """What has happened so far that `describe()` tells."""
        return ()

    def redo(self, batch: SystemBatch) -> Outputs | None:
        """Do a batch again one precision higher, after its results were not finite; None if there is no higher one."""
        del batch
        return None

    def hessian(self, batch: SystemBatch) -> Tensor:
        """Compute the second derivatives of one structure's energy, [3 n_atoms, 3 n_atoms], eV/Å^2, float64.

        Raises:
            PropertyUnavailableError: The model predicts forces directly, so that its energy is not their potential.
        """
        if self.network.is_direct:
            message = "a Hessian needs a conservative model; this checkpoint predicts forces directly"
            raise PropertyUnavailableError(message)
        with self._call():
            edges = self._edges(batch)
            with torch.no_grad():
                mixtures = self.mixtures.for_batch(batch)
            batch, edges = batch.to(self.device), edges.to(self.device)
            edge_vec = edges.edge_vec.detach().requires_grad_()
            output = self._forward(batch, edges, edge_vec, mixtures, for_second_derivatives=True)
            gradient = _edge_gradient(output.node_energy.to(torch.float64), edge_vec, create_graph=True)
            n_coordinates = 3 * batch.positions.shape[0]
            at_atoms = _sum_at_atoms(gradient, edges.edge_index, batch.positions.shape[0]).flatten()
            rows = self._hessian_rows(at_atoms, edge_vec, edges.edge_index, n_coordinates)
        return rows * self._scales.energy_scale(batch.tasks[0])

    def _hessian_rows(self, at_atoms: Tensor, edge_vec: Tensor, edge_index: Tensor, n: int) -> Tensor:
        """Differentiate -forces [n] with respect to every coordinate."""
        if not at_atoms.requires_grad:
            # No edge at all: the energy does not depend on any position.
            return at_atoms.new_zeros(n, n)
        hessian = at_atoms.new_zeros(n, n)
        n_at_once = min(n, HESSIAN_ROWS_AT_ONCE) if self.settings.hessian_vmap else 1
        for start in range(0, n, n_at_once):
            rows = torch.arange(start, min(start + n_at_once, n), device=at_atoms.device)
            if self.settings.hessian_vmap:
                selected = torch.nn.functional.one_hot(rows, n).to(at_atoms.dtype)
                (by_edge,) = torch.autograd.grad(at_atoms, edge_vec, selected, retain_graph=True, is_grads_batched=True)
            else:
                (by_edge,) = torch.autograd.grad(at_atoms[start], edge_vec, retain_graph=True)
                by_edge = by_edge[None]
            for row, edge_gradient in zip(rows.tolist(), by_edge, strict=True):
                hessian[row] = _sum_at_atoms(edge_gradient, edge_index, n // 3).flatten().detach()
        return hessian

    @contextmanager
    def _call(self) -> Generator[None]:
        """Set what holds during a call, whatever gradient mode, precision and device the caller is in."""
        saving_memory = self.settings.activation_checkpointing or self.settings.edge_chunk_size is not None
        # A workspace keeps what was computed until the end of the call, which is what saving memory has to avoid.
        memory = nullcontext() if saving_memory else self._workspace.active()
        order = fixed_order() if self.settings.deterministic else nullcontext()
        # Kernels are launched on torch's current device, which need not be the one that the tensors are on.
        device = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with (
            torch.inference_mode(mode=False),
            torch.enable_grad(),
            torch.autocast(self.device.type, enabled=False),
            matmul_precision(self.product_precision),
            memory,
            order,
            device,
        ):
            yield

    @property
    def neighbor_list(self) -> str:
        """What finds the neighbours, and where."""
        if self.settings.uses_nvalchemi:
            return f"nvalchemi-toolkit-ops on {self.device}"
        if self.device.type == "cpu" or self.settings.external_graph_gen:
            return "vesin on the CPU"
        return f"cells on {self.device}"

    def _edges(self, batch: SystemBatch) -> EdgeList:
        config = self.network.config
        device = None if self.settings.external_graph_gen else self.device
        edges = build_edges(
            batch, config.cutoff, config.max_neighbors, device, by_nvalchemi=self.settings.uses_nvalchemi
        )
        self._note_cap(edges.n_capped)
        return edges

    def _note_cap(self, n_capped: int) -> None:
        """Remember how many atoms have lost neighbours to the cap, and warn when it begins to bind."""
        config = self.network.config
        if n_capped and not self.n_capped:
            warnings.warn(
                f"{n_capped} atoms have more than {config.max_neighbors} neighbours within {config.cutoff} Å; "
                "the model's neighbour cap leaves out the farthest, so energies jump where neighbours change places",
                EdgewiseWarning,
                stacklevel=4,
            )
        self.n_capped = n_capped

    def _evaluate(
        self, batch: SystemBatch, edges: EdgeList, mixtures: tuple[list[ModelWeights], list[int]]
    ) -> tuple[NetworkOutput, Tensor | None]:
        """Return the network's outputs and dE/d(edge_vec), [n_edges, 3] float64; None of a model with direct forces."""
        if self.network.is_direct:
            with torch.no_grad():
                return self._forward(batch, edges, edges.edge_vec, mixtures), None
        edge_vec = edges.edge_vec.detach().requires_grad_()
        output = self._forward(batch, edges, edge_vec, mixtures)
        return output, _edge_gradient(output.node_energy.to(torch.float64), edge_vec, create_graph=False)

    def _forward(
        self,
        batch: SystemBatch,
        edges: EdgeList,
        edge_vec: Tensor,
        mixtures: tuple[list[ModelWeights], list[int]],
        *,
        for_second_derivatives: bool = False,
    ) -> NetworkOutput:
        weights, weights_of_system = mixtures
        settings = self.settings
        network = self._twice_differentiable() if for_second_derivatives else self.network
        return network(
            batch,
            edges,
            edge_vec,
            weights,
            weights_of_system,
            # A Hessian differentiates the backward pass, which has to keep its own activations.
            activation_checkpointing=settings.activation_checkpointing and not for_second_derivatives,
            edge_chunk_size=None if for_second_derivatives else settings.edge_chunk_size,
        )

    def _twice_differentiable(self) -> Network:
        """Return the network on the reference operations, which have derivatives of every order."""
        if self._reference_network is None:
            self._reference_network = self.network.with_ops(REFERENCE)
        return self._reference_network

    def _energy(self, batch: SystemBatch, node_energy: Tensor, scales: OutputScales) -> Tensor:
        """Sum node energies, float64, and add the mean of the normaliser and the element references."""
        summed = _sum_over_atoms(node_energy.to(torch.float64), batch)
        if self.network.reduces_energy_by_mean:
            summed = summed / batch.n_atoms
        return summed * scales.energy + scales.energy_offset

    def _conservative_outputs(
        self, batch: SystemBatch, edges: EdgeList, node_energy: Tensor, gradient: Tensor, scales: OutputScales
    ) -> Outputs:
        forces = _sum_at_atoms(gradient, edges.edge_index, batch.positions.shape[0])
        virial = _virial(batch, edges, gradient)
        return Outputs(
            energy=self._energy(batch, node_energy, scales),
            forces=forces * -scales.forces[batch.system_idx, None],
            stress=(virial + virial.mT) * (0.5 * scales.virial)[:, None, None],
        )

    def _direct_outputs(self, batch: SystemBatch, output: NetworkOutput, scales: OutputScales) -> Outputs:
        assert output.direct_forces is not None
        if output.direct_stress is None:
            stress = torch.full((batch.n_systems, 3, 3), torch.nan, dtype=torch.float64, device=self.device)
        else:
            stress = output.direct_stress.to(torch.float64) * scales.stress[:, None, None]
        return Outputs(
            energy=self._energy(batch, output.node_energy, scales),
            forces=output.direct_forces.to(torch.float64) * scales.forces[batch.system_idx, None],
            stress=stress,
        )


def _edge_gradient(node_energy: Tensor, edge_vec: Tensor, *, create_graph: bool) -> Tensor:
    """Return dE/d(edge_vec), [n_edges, 3] float64; zeros where there is no edge to depend on."""
    if edge_vec.shape[0] == 0:
        return torch.zeros_like(edge_vec)
    (gradient,) = torch.autograd.grad(node_energy.sum(), edge_vec, create_graph=create_graph)
    return gradient


def _sum_at_atoms(edge_gradient: Tensor, edge_index: Tensor, n_atoms: int) -> Tensor:
    """Return dE/d(positions) [n_atoms, 3]: plus at each edge's source, minus at its target."""
    zeros = edge_gradient.new_zeros(n_atoms, 3)
    return zeros.index_add_(0, edge_index[0], edge_gradient).index_add_(0, edge_index[1], edge_gradient, alpha=-1)


def _virial(batch: SystemBatch, edges: EdgeList, gradient: Tensor) -> Tensor:
    """Return sum_e dE/dv_e (x) v_e, [n_systems, 3, 3] (MODEL.md section 10); an edge belongs to its target's system."""
    if batch.n_systems == 1:
        return (gradient.T @ edges.edge_vec)[None]
    outer = gradient[:, :, None] * edges.edge_vec[:, None, :]
    virial = outer.new_zeros(batch.n_systems, 3, 3)
    return virial.index_add(0, batch.system_idx[edges.edge_index[1]], outer)


def _sum_over_atoms(values: Tensor, batch: SystemBatch) -> Tensor:
    if batch.n_systems == 1:
        return values.sum(0, keepdim=True)
    return values.new_zeros(batch.n_systems).index_add_(0, batch.system_idx, values)
