"""One step of mode fused: node energies and dE/d(edge_vec), forward and adjoint written out (MODEL.md sections 5 to 10).

The forward pass keeps, for each block, the node features before and after the messages and the edge features before the
gate and after the second SO(2) map. The adjoint walks back through the blocks and computes everything else again. Of each
edge's geometry it collects three numbers, the torque and dE/dd (`edgewise.ops.reference.edge_steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from edgewise.engine.fused.weights import BlockWeights, RadialWeights, StepWeights
from edgewise.model.backbone import DEGREE_RESCALE
from edgewise.model.edge_inputs import segments_of
from edgewise.model.network import Network, NetworkOutput
from edgewise.neighbors import EdgeList
from edgewise.ops import EdgeSegment, MessageShape
from edgewise.ops.reference import edge_steps as ops
from edgewise.ops.reference.balance import balance_adjoint
from edgewise.ops.reference.edge_steps import EdgeGeometry, EdgeOrder
from edgewise.ops.reference.feed_forward import feed_forward, feed_forward_adjoint
from edgewise.ops.reference.norm import norm, norm_adjoint
from edgewise.ops.reference.radial_network import hidden_with_slope
from edgewise.so3 import n_coefficients
from edgewise.systems import SystemBatch

Weights = TypeVar("Weights")


@dataclass(frozen=True)
class _Inputs:
    """What every block reads.

    Attributes:
        batch: The structures, on the device.
        at_atoms: [n_atoms, channels], embedding of each atom's system.
        order: The edges of each atom.
        geometry: Geometry of the edges.
        segments: Runs of edges that share weights.
        atom_segments: Runs of atoms that share weights.
        weights: Distinct sets of weights.
    """

    batch: SystemBatch
    at_atoms: Tensor
    order: EdgeOrder
    geometry: EdgeGeometry
    segments: tuple[EdgeSegment, ...]
    atom_segments: tuple[EdgeSegment, ...]
    weights: Sequence[StepWeights]

    def of_block(self, number: int) -> list[BlockWeights]:
        """Return the weights of one block, one set for each mixture."""
        return [item.blocks[number] for item in self.weights]


@dataclass(frozen=True)
class _Kept:
    """What the adjoint of a block reads: features before and after the messages; edges before gate and after map 2."""

    before: Tensor
    between: Tensor
    before_gate: list[Tensor]
    convolved: list[Tensor]


class Step:
    """The steps of one network."""

    def __init__(self, network: Network) -> None:
        """Read the sizes of a network with gate activation."""
        config = network.config
        self._network, self._config = network, config
        self._shape = MessageShape(config.lmax, config.mmax, config.channels, config.hidden_channels)

    @torch.no_grad()
    def __call__(
        self, batch: SystemBatch, edges: EdgeList, weights: Sequence[StepWeights], weights_of_system: Sequence[int]
    ) -> tuple[NetworkOutput, Tensor | None]:
        """Compute the outputs of the network, and the gradient of the energy unless the model predicts forces directly.

        Args:
            batch: The structures, on the device.
            edges: Their edges, sorted by target.
            weights: Distinct sets of weights.
            weights_of_system: Which of them each system uses.

        Returns:
            The normalised outputs, and dE/d(edge_vec) [n_edges, 3]; None for a model with direct forces.
        """
        inputs = self._inputs(batch, edges, weights, weights_of_system)
        x = self._embed(inputs)
        kept: list[_Kept] = []
        for number in range(self._config.n_layers):
            x, of_block = self._block(x, number, inputs)
            kept.append(of_block)
        last_norm = weights[0].norm
        features = norm(x, last_norm)
        output = self._network.outputs(features, batch)
        if self._network.is_direct:
            return output, None
        to_scalars = self._network.energy_adjoint(features, batch)
        gradient = functional.pad(to_scalars[:, None], (0, 0, 0, features.shape[1] - 1))
        gradient = norm_adjoint(x, last_norm, gradient)
        tangents = torch.zeros_like(inputs.geometry.frames[:, 0])
        for number in reversed(range(self._config.n_layers)):
            gradient = self._block_adjoint(gradient, kept.pop(), number, inputs, tangents)
        self._embed_adjoint(gradient, inputs, tangents)
        return output, ops.edge_gradient(inputs.geometry, tangents)

    def _inputs(
        self, batch: SystemBatch, edges: EdgeList, weights: Sequence[StepWeights], weights_of_system: Sequence[int]
    ) -> _Inputs:
        config, backbone = self._config, self._network.backbone
        centres = torch.linspace(0, config.cutoff, config.n_basis, dtype=torch.float64, device=edges.edge_vec.device)
        dtype = backbone.sphere_embedding.weight.dtype
        return _Inputs(
            batch=batch,
            at_atoms=backbone.system_embedding(batch)[batch.system_idx],
            order=ops.edge_order(edges.edge_index, batch.atomic_numbers.shape[0]),
            geometry=ops.edge_geometry(edges.edge_vec, config.cutoff, centres, config.lmax, dtype),
            segments=segments_of(edges.edges_per_system, weights_of_system),
            atom_segments=segments_of(batch.n_atoms.tolist(), weights_of_system),
            weights=weights,
        )

    def _embed(self, inputs: _Inputs) -> Tensor:
        """Return the first node features (MODEL.md section 7)."""
        scalars = self._network.backbone.sphere_embedding(inputs.batch.atomic_numbers) + inputs.at_atoms
        x = functional.pad(scalars[:, None], (0, 0, 0, n_coefficients(self._config.lmax) - 1))
        radial, _ = self._radial(inputs, [item.degree for item in inputs.weights], everywhere=False)
        # The rows m = 0 of a rotation are the spherical harmonics of the edge's direction.
        return x + ops.rotate_sum([radial / DEGREE_RESCALE], inputs.order, inputs.geometry, self._config.channels)

    def _embed_adjoint(self, gradient: Tensor, inputs: _Inputs, tangents: Tensor) -> None:
        radial, slope = self._radial(inputs, [item.degree for item in inputs.weights], everywhere=False)
        to_radial, found = ops.rotate_sum_adjoint(
            gradient, [radial / DEGREE_RESCALE], inputs.order, inputs.geometry, self._shape
        )
        tangents += found
        tangents[:, 2] += (to_radial[0] * slope).sum(1) / DEGREE_RESCALE

    def _radial(self, inputs: _Inputs, weights: Sequence[RadialWeights], *, everywhere: bool) -> tuple[Tensor, Tensor]:
        """Return the outputs of radial networks, [n_edges, n_out], and their derivatives with respect to the distance."""
        numbers = inputs.batch.atomic_numbers
        source, target = numbers[inputs.order.source], numbers[inputs.order.target]
        geometry = inputs.geometry

        def evaluate(own: RadialWeights, rows: slice) -> tuple[Tensor, Tensor]:
            first = own.source_table[source[rows]] + own.target_table[target[rows]]
            first = first + functional.linear(geometry.gaussians[rows], own.basis)
            value, slope = hidden_with_slope(
                first, functional.linear(geometry.gaussian_slopes[rows], own.basis), own.hidden
            )
            return functional.linear(value, own.last, own.last_bias), functional.linear(slope, own.last)

        if not everywhere:
            return evaluate(weights[0], slice(None))
        parts = _by_segment(inputs.segments, weights, evaluate)
        return torch.cat([value for value, _ in parts]), torch.cat([slope for _, slope in parts])

    def _block(self, before: Tensor, number: int, inputs: _Inputs) -> tuple[Tensor, _Kept]:
        """Update node features by one block (MODEL.md section 8)."""
        weights, shape, order = inputs.of_block(number), self._shape, inputs.order
        radial, _ = self._radial(inputs, [item.radial for item in weights], everywhere=self._config.experts_everywhere)
        blocks = ops.gather_rotate(self._message_input(before, weights, inputs), order, inputs.geometry, radial, shape)
        before_gate = ops.so2_linear(blocks, [item.conv_1 for item in weights], inputs.segments)
        blocks = ops.gate(before_gate, shape.lmax, shape.hidden)
        convolved = ops.so2_linear(blocks, [item.conv_2 for item in weights], inputs.segments)
        between = before + ops.rotate_sum(convolved, order, inputs.geometry, shape.channels)
        h = norm(between, weights[0].norm_2)
        x = between + self._feed_forward(weights, inputs, lambda own, rows: feed_forward(h[rows], own.feed_forward))
        return self._network.backbone.balance(x, inputs.batch), _Kept(before, between, before_gate, convolved)

    def _block_adjoint(self, gradient: Tensor, kept: _Kept, number: int, inputs: _Inputs, tangents: Tensor) -> Tensor:
        """Return the gradient of the features before a block for that of the features after it; add to the tangents."""
        weights, shape, order, geometry = inputs.of_block(number), self._shape, inputs.order, inputs.geometry
        systems = inputs.batch.system_idx, inputs.batch.n_atoms
        gradient = balance_adjoint(gradient, self._config.spin_balanced_channels, *systems)
        gradient = balance_adjoint(gradient, self._config.charge_balanced_channels, *systems)
        h = norm(kept.between, weights[0].norm_2)
        to_h = self._feed_forward(
            weights, inputs, lambda own, rows: feed_forward_adjoint(h[rows], own.feed_forward, gradient[rows])
        )
        gradient = gradient + norm_adjoint(kept.between, weights[0].norm_2, to_h)
        blocks, found = ops.rotate_sum_adjoint(gradient, kept.convolved, order, geometry, shape)
        tangents += found
        blocks = ops.so2_linear_adjoint(blocks, [item.conv_2 for item in weights], inputs.segments)
        blocks = ops.gate_adjoint(blocks, kept.before_gate, shape)
        blocks = ops.so2_linear_adjoint(blocks, [item.conv_1 for item in weights], inputs.segments)
        radial = self._radial(inputs, [item.radial for item in weights], everywhere=self._config.experts_everywhere)
        nodes = self._message_input(kept.before, weights, inputs)
        to_nodes, found = ops.gather_rotate_adjoint(blocks, nodes, order, geometry, *radial, shape)
        tangents += found
        return gradient + norm_adjoint(kept.before, weights[0].norm_1, to_nodes)

    def _message_input(self, before: Tensor, weights: Sequence[BlockWeights], inputs: _Inputs) -> Tensor:
        """Return what the messages of a block read of the nodes."""
        h = norm(before, weights[0].norm_1)
        return torch.cat([h[:, :1] + inputs.at_atoms[:, None], h[:, 1:]], dim=1)

    def _feed_forward(
        self,
        weights: Sequence[BlockWeights],
        inputs: _Inputs,
        function: Callable[[BlockWeights, slice], Tensor],
    ) -> Tensor:
        if not self._config.experts_everywhere:
            return function(weights[0], slice(None))
        return torch.cat(_by_segment(inputs.atom_segments, weights, function))


Part = TypeVar("Part")


def _by_segment(
    segments: Sequence[EdgeSegment], weights: Sequence[Weights], function: Callable[[Weights, slice], Part]
) -> list[Part]:
    """Apply a function to each run of rows with the weights of the run."""
    return [function(weights[item.weights], slice(item.start, item.stop)) for item in segments]
