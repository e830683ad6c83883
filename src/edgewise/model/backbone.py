"""The eSCN-MD backbone: from structures and edges to node features (MODEL.md sections 5 to 8).

Written once for every execution mode: the work on edges goes through the `Ops` record that the model was built with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from edgewise.model.config import ModelConfig
from edgewise.model.edge_inputs import WHOLE, EdgeInputs, segments_of
from edgewise.model.experts import (
    DatasetEmbedding,
    SO2Convolution,
    charge_spin_embedding,
    routing_coefficients,
    routing_network,
)
from edgewise.model.layers import EquivariantNorm, GridFeedForward, RadialMLP, SpectralFeedForward, radial_width
from edgewise.neighbors import EdgeList
from edgewise.ops import EdgeSegment, MessageShape, MessageWeights, Ops
from edgewise.ops.reference.balance import balance
from edgewise.so3 import grid_matrices
from edgewise.systems import SystemBatch

DEGREE_RESCALE = 5.0
"""The edge-degree embedding is divided by this fixed number (MODEL.md section 7)."""


@dataclass(frozen=True)
class LayerWeights:
    """Weights of one block for one mixture of experts; maps without experts have the same in every mixture.

    Attributes:
        message: SO(2) maps and last radial layer.
        radial: All linear layers of the radial network.
        feed_forward: Linear layers of the feed-forward network.
    """

    message: MessageWeights
    radial: tuple[Tensor, ...]
    feed_forward: tuple[Tensor, ...]


ModelWeights = tuple[LayerWeights, ...]
"""The weights of all blocks for one mixture of experts."""


@dataclass(frozen=True)
class AtomInputs:
    """What every block reads of the atoms and of their systems.

    Attributes:
        atomic_numbers: [n_atoms].
        at_atoms: [n_atoms, channels], embedding of the system that each atom belongs to.
        system_idx: [n_atoms].
        n_atoms: [n_systems].
        charge: [n_systems].
        spin: [n_systems].
    """

    atomic_numbers: Tensor
    at_atoms: Tensor
    system_idx: Tensor
    n_atoms: Tensor
    charge: Tensor
    spin: Tensor


class EdgeDegreeEmbedding(nn.Module):
    """First node features: radial functions of each neighbour times its spherical harmonics (MODEL.md section 7)."""

    def __init__(self, config: ModelConfig, ops: Ops) -> None:
        """Make the embedding."""
        super().__init__()
        self.rad_func = RadialMLP(config, (config.lmax + 1) * config.channels)
        self.config, self.ops = config, ops

    def forward(self, edges: EdgeInputs, n_atoms: int) -> Tensor:
        """Return [n_atoms, n_coefficients, channels]."""
        radial = self.rad_func(edges)
        # The rows m = 0 of a rotation are the spherical harmonics of the edge's direction.
        summed = self.ops.rotate_scatter(
            [radial], edges.edge_index, edges.geometry.envelope_rotations, n_atoms, self.config.channels
        )
        return summed / DEGREE_RESCALE


class FirstConvolution(SO2Convolution):
    """Holder of the first SO(2) map's weights, with the radial network that scales its input."""

    def __init__(self, config: ModelConfig, n_experts: int, *, extra_scalars: int) -> None:
        """Make the weights."""
        super().__init__(config, 2 * config.channels, config.hidden_channels, n_experts, extra_scalars=extra_scalars)
        in_radial_network = n_experts if config.experts_everywhere else 0
        self.rad_func = RadialMLP(config, radial_width(config), in_radial_network)


class EdgeWise(nn.Module):
    """Messages: rotate in, convolve, activate, convolve, rotate back (MODEL.md section 8, steps 2 to 6)."""

    def __init__(self, config: ModelConfig, ops: Ops, n_experts: int) -> None:
        """Make the layer."""
        super().__init__()
        hidden = config.hidden_channels
        extra = config.lmax * hidden if config.activation == "gate" else hidden
        self.so2_conv_1 = FirstConvolution(config, n_experts, extra_scalars=extra)
        self.so2_conv_2 = SO2Convolution(config, hidden, config.channels, n_experts)
        self.config, self.ops = config, ops
        self.shape = MessageShape(config.lmax, config.mmax, config.channels, hidden)
        if config.activation == "s2":
            matrices = grid_matrices(config.lmax, config.mmax, config.grid_resolution, on_edges=True)
            self.register_buffer("to_grid", matrices[0], persistent=False)
            self.register_buffer("from_grid", matrices[1], persistent=False)

    def forward(self, x: Tensor, edges: EdgeInputs, weights: Sequence[LayerWeights]) -> Tensor:
        """Return the summed messages [n_atoms, n_coefficients, channels]."""
        config, ops, geometry = self.config, self.ops, edges.geometry
        hidden = self.so2_conv_1.rad_func.hidden(edges, [item.radial for item in weights])
        maps = [item.message for item in weights]
        if config.activation == "gate":
            rotations = geometry.rotations, geometry.envelope_rotations
            return ops.edge_message(x, edges.edge_index, *rotations, hidden, maps, edges.segments, self.shape)
        radial = ops.radial_factors(hidden, maps, edges.segments)
        blocks = ops.gather_rotate(x, edges.edge_index, geometry.rotations, radial, config.lmax)
        blocks = ops.so2_linear(blocks, [item.conv_1 for item in maps], edges.segments)
        grids = self.to_grid.to(x.dtype), self.from_grid.to(x.dtype)
        blocks = ops.grid_activation(blocks, *grids, config.hidden_channels)
        blocks = ops.so2_linear(blocks, [item.conv_2 for item in maps], edges.segments)
        return ops.rotate_scatter(blocks, edges.edge_index, geometry.envelope_rotations, x.shape[0], config.channels)


class Block(nn.Module):
    """One block: norm, messages, norm, feed-forward (MODEL.md section 8)."""

    def __init__(self, config: ModelConfig, ops: Ops, number: int) -> None:
        """Make block `number`."""
        super().__init__()
        n_experts = config.experts_of_block(number)
        feed_forward = SpectralFeedForward if config.feed_forward == "spectral" else GridFeedForward
        self.norm_1 = EquivariantNorm(config)
        self.edge_wise = EdgeWise(config, ops, n_experts)
        self.norm_2 = EquivariantNorm(config)
        self.atom_wise = feed_forward(config, n_experts if config.experts_everywhere else 0)
        self.experts_everywhere = config.experts_everywhere

    def mixed(self, coefficients: Tensor | None) -> LayerWeights:
        """Return the weights of this block for mixture coefficients [n_experts]."""
        radial_network = self.edge_wise.so2_conv_1.rad_func
        radial = radial_network.mixed(coefficients)
        message = MessageWeights(
            conv_1=self.edge_wise.so2_conv_1.mixed(coefficients),
            conv_2=self.edge_wise.so2_conv_2.mixed(coefficients),
            radial=radial[-1],
            radial_bias=radial_network.last_bias,
        )
        return LayerWeights(
            message=message,
            radial=radial,
            feed_forward=self.atom_wise.mixed(coefficients),
        )

    def forward(
        self,
        x: Tensor,
        at_atoms: Tensor,
        chunks: Sequence[EdgeInputs],
        atom_segments: Sequence[EdgeSegment],
        weights: Sequence[LayerWeights],
    ) -> Tensor:
        """Update node features.

        Args:
            x: [n_atoms, n_coefficients, channels].
            at_atoms: [n_atoms, channels], system embedding of each atom.
            chunks: The edges, in one or several runs; several are computed again in the backward pass.
            atom_segments: Runs of atoms that share weights.
            weights: This block's weights, one per distinct mixture.
        """
        h = self.norm_1(x)
        h = torch.cat([h[:, :1] + at_atoms[:, None], h[:, 1:]], dim=1)
        for chunk in chunks:
            if len(chunks) > 1 and torch.is_grad_enabled():
                x = x + checkpoint(self.edge_wise, h, chunk, weights, use_reentrant=False, preserve_rng_state=False)
            else:
                x = x + self.edge_wise(h, chunk, weights)
        h = self.norm_2(x)
        if not self.experts_everywhere or len(atom_segments) == 1:
            return x + self.atom_wise(h, weights[atom_segments[0].weights].feed_forward)
        parts = [
            self.atom_wise(h[item.start : item.stop], weights[item.weights].feed_forward) for item in atom_segments
        ]
        return x + torch.cat(parts)


class Backbone(nn.Module):
    """Node features of a batch of structures."""

    def __init__(self, config: ModelConfig, ops: Ops) -> None:
        """Make a backbone; parameters keep the names of the checkpoint format."""
        super().__init__()
        channels, width = config.channels, config.edge_channels
        self.config, self.ops = config, ops
        self.sphere_embedding = nn.Embedding(config.max_elements, channels)
        self.charge_embedding = charge_spin_embedding(config, "charge")
        self.spin_embedding = charge_spin_embedding(config, "spin")
        if config.use_dataset_embedding:
            self.dataset_embedding = DatasetEmbedding(config)
        self.mix_csd = nn.Linear((3 if config.use_dataset_embedding else 2) * channels, channels)
        self.source_embedding = nn.Embedding(config.max_elements, width)
        self.target_embedding = nn.Embedding(config.max_elements, width)
        self.edge_degree_embedding = EdgeDegreeEmbedding(config, ops)
        self.blocks = nn.ModuleList([Block(config, ops, number) for number in range(config.n_layers)])
        self.norm = EquivariantNorm(config)
        self._compiled: Callable[..., Tensor] | None = None
        if config.n_experts:
            self.routing_mlp = routing_network(config)
            if config.use_composition_embedding:
                self.composition_embedding = nn.Embedding(config.max_elements, channels)

    def system_embedding(self, batch: SystemBatch) -> Tensor:
        """Return the embedding of charge, spin and dataset, [n_systems, channels] (MODEL.md section 6)."""
        parts = [self.charge_embedding(batch.charge), self.spin_embedding(batch.spin)]
        if self.config.use_dataset_embedding:
            parts.append(self.dataset_embedding(batch.tasks))
        return nn.functional.silu(self.mix_csd(torch.cat(parts, dim=1)))

    def mixture_coefficients(self, batch: SystemBatch) -> Tensor | None:
        """Return the coefficients of the experts, [n_systems, n_experts], or None for a network without experts."""
        if not self.config.n_experts:
            return None
        inputs = self.system_embedding(batch)
        if self.config.use_composition_embedding:
            rows = self.composition_embedding(batch.atomic_numbers)
            # For one system in a fixed order, unlike `index_add` on GPUs.
            one = batch.n_systems == 1
            zeros = rows.new_zeros(batch.n_systems, rows.shape[1])
            summed = rows.sum(0, keepdim=True) if one else zeros.index_add(0, batch.system_idx, rows)
            counts = batch.n_atoms + (1 if self.config.composition_counts_extra_zero else 0)
            inputs = torch.cat([summed / counts[:, None], inputs], dim=1)
        return routing_coefficients(self.routing_mlp(inputs), self.config.routing_norm)

    def mixed_weights(self, coefficients: Tensor | None) -> ModelWeights:
        """Return the weights of all blocks for one system's coefficients [n_experts]."""
        layers: list[LayerWeights] = []
        for block in self.blocks:
            assert isinstance(block, Block)
            layers.append(block.mixed(coefficients))
        return tuple(layers)

    def forward(
        self,
        batch: SystemBatch,
        edges: EdgeList,
        edge_vec: Tensor,
        weights: Sequence[ModelWeights],
        weights_of_system: Sequence[int],
        *,
        activation_checkpointing: bool = False,
        edge_chunk_size: int | None = None,
    ) -> Tensor:
        """Compute node features.

        Args:
            batch: The structures.
            edges: Their edges.
            edge_vec: [n_edges, 3], Å, float64; the leaf of every derivative.
            weights: Distinct sets of weights.
            weights_of_system: Which of them each system uses.
            activation_checkpointing: Compute the activations of each block again in the backward pass.
            edge_chunk_size: Work on at most this many edges at a time.

        Returns:
            [n_atoms, n_coefficients, channels], after the last norm.
        """
        at_atoms = self.system_embedding(batch)[batch.system_idx]
        atoms = AtomInputs(
            atomic_numbers=batch.atomic_numbers,
            at_atoms=at_atoms,
            system_idx=batch.system_idx,
            n_atoms=batch.n_atoms,
            charge=batch.charge,
            spin=batch.spin,
        )
        if len(weights) > 1:
            segments = segments_of(edges.edges_per_system, weights_of_system)
            atom_segments = segments_of(batch.n_atoms.tolist(), weights_of_system)
        elif self._compiled is not None:
            # Where all systems share their weights, no bounds of runs have to be known: nothing but tensors goes in.
            _mark_sizes_that_change(atoms, edges.edge_index, edge_vec)
            return self._compiled(atoms, edges.edge_index, edge_vec, weights, WHOLE, WHOLE)
        else:
            segments = (EdgeSegment(0, edge_vec.shape[0], 0),)
            atom_segments = (EdgeSegment(0, batch.atomic_numbers.shape[0], 0),)
        return self.features(
            atoms,
            edges.edge_index,
            edge_vec,
            weights,
            segments,
            atom_segments,
            activation_checkpointing=activation_checkpointing,
            edge_chunk_size=edge_chunk_size,
        )

    def compile_features(self, backend: str = "inductor") -> None:
        """Compile `features` with dynamic shapes, for batches whose systems all share their weights."""
        # With dynamic=True, sizes of weights and numbers of the configuration would become variables as well, which
        # takes a second pass over the model to undo.
        self._compiled = torch.compile(
            self.features, fullgraph=True, backend=backend, options={"guard_filter_fn": _without_guards_on_modules}
        )

    def features(
        self,
        atoms: AtomInputs,
        edge_index: Tensor,
        edge_vec: Tensor,
        weights: Sequence[ModelWeights],
        segments: tuple[EdgeSegment, ...],
        atom_segments: tuple[EdgeSegment, ...],
        *,
        activation_checkpointing: bool = False,
        edge_chunk_size: int | None = None,
    ) -> Tensor:
        """Compute node features from tensors.

        Args:
            atoms: What is known of the atoms and their systems.
            edge_index: [2, n_edges].
            edge_vec: [n_edges, 3], Å, float64.
            weights: Distinct sets of weights.
            segments: Runs of edges that share weights.
            atom_segments: Runs of atoms that share weights.
            activation_checkpointing: Compute the activations of each block again in the backward pass.
            edge_chunk_size: Work on at most this many edges at a time.

        Returns:
            [n_atoms, n_coefficients, channels], after the last norm.
        """
        config = self.config
        dtype = self.sphere_embedding.weight.dtype
        centres = torch.linspace(0, config.cutoff, config.n_basis, dtype=torch.float64, device=edge_vec.device)
        inputs = EdgeInputs(
            edge_index=edge_index,
            geometry=self.ops.edge_geometry(edge_vec, config.cutoff, centres, config.lmax, config.mmax, dtype),
            source=self.source_embedding(atoms.atomic_numbers),
            target=self.target_embedding(atoms.atomic_numbers),
            segments=segments,
        )
        chunks = inputs.chunks(edge_chunk_size)
        n_atoms = atoms.atomic_numbers.shape[0]
        scalars = self.sphere_embedding(atoms.atomic_numbers) + atoms.at_atoms
        x = nn.functional.pad(scalars[:, None], (0, 0, 0, (config.lmax + 1) ** 2 - 1))
        for chunk in chunks:
            x = x + self.edge_degree_embedding(chunk, n_atoms)
        for number, block in enumerate(self.blocks):
            layer = [item[number] for item in weights]
            if activation_checkpointing and torch.is_grad_enabled():
                x = checkpoint(
                    block,
                    x,
                    atoms.at_atoms,
                    chunks,
                    atom_segments,
                    layer,
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
            else:
                x = block(x, atoms.at_atoms, chunks, atom_segments, layer)
            x = self.balance(x, atoms)
        return self.norm(x)

    def balance(self, x: Tensor, atoms: AtomInputs | SystemBatch) -> Tensor:
        """Set the sums of the balanced channels to total charge and to multiplicity - 1 (MODEL.md section 8.3)."""
        config, systems = self.config, (atoms.system_idx, atoms.n_atoms)
        x = balance(x, config.charge_balanced_channels, atoms.charge, *systems)
        return balance(x, config.spin_balanced_channels, atoms.spin - 1, *systems)


def _without_guards_on_modules(entries: Sequence[Any]) -> list[bool]:
    """Tell which conditions of a compiled program are looked at in every call: not that parameters are what they were.

    Looking at each takes the host a millisecond, and nothing changes a network once it is made.
    """
    return [not entry.orig_guard.source.is_unspecialized_nn_module() for entry in entries]


def _mark_sizes_that_change(atoms: AtomInputs, edge_index: Tensor, edge_vec: Tensor) -> None:
    """Tell `torch.compile` that the numbers of atoms, edges and systems are variables."""
    for tensor in (*vars(atoms).values(), edge_vec):
        torch._dynamo.maybe_mark_dynamic(tensor, 0)  # noqa: SLF001
    torch._dynamo.maybe_mark_dynamic(edge_index, 1)  # noqa: SLF001
