"""One step of mode fused: node energies and dE/d(edge_vec), forward and adjoint written out (MODEL.md sections 5 to 10).

The forward pass keeps, for each block, the node features before and after the messages and what is read of them, and the edge
features before the gate and after the second SO(2) map. The adjoint walks back through the blocks and computes everything else
again. Of each edge's geometry it collects three numbers, the torque and dE/dd (`edgewise.ops.reference.edge_steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from edgewise.engine.fused.edges import Hidden, PlainEdges, StepEdges
from edgewise.engine.fused.nodes import AtomPlan, StepNodes, atom_plan, energy_weights
from edgewise.engine.fused.scratch import Piece
from edgewise.engine.fused.weights import BlockWeights, RadialWeights, StepWeights
from edgewise.model.edge_inputs import segments_of
from edgewise.model.network import Network, NetworkOutput
from edgewise.neighbors import EdgeList
from edgewise.ops import EdgeSegment, MessageShape
from edgewise.ops.fused.so2_linear import SO2Map, so2_linear, so2_linear_adjoint
from edgewise.ops.fused.streams import Branch
from edgewise.ops.reference import edge_steps
from edgewise.ops.reference.edge_steps import EdgeGeometry
from edgewise.ops.reference.feed_forward import FeedForwardWeights
from edgewise.systems import SystemBatch

Weights = TypeVar("Weights")
Part = TypeVar("Part")

MakeEdges = Callable[[EdgeList, int, EdgeGeometry, MessageShape], StepEdges]
"""Makes the edges of a step, of the list, the number of atoms, the geometry and the sizes."""


@dataclass(frozen=True)
class StepInputs:
    """What every block reads.

    Attributes:
        batch: The structures, on the device.
        at_atoms: [n_atoms, channels], embedding of each atom's system.
        edges: The edges and the operations on them.
        segments: Runs of edges that share weights.
        atom_segments: Runs of atoms that share weights.
        weights: Distinct sets of weights.
        plan: Which atoms belong together.
        branch: What is begun before its results are needed: radial networks, which need nothing of the nodes, are evaluated
            beside the work on nodes of the block before.
    """

    batch: SystemBatch
    at_atoms: Tensor
    edges: StepEdges
    segments: tuple[EdgeSegment, ...]
    atom_segments: tuple[EdgeSegment, ...]
    weights: Sequence[StepWeights]
    plan: AtomPlan
    branch: Branch

    def of_block(self, number: int) -> list[BlockWeights]:
        """Return the weights of one block, one set for each mixture."""
        return [item.blocks[number] for item in self.weights]


@dataclass(frozen=True)
class _Kept:
    """What the adjoint of a block reads.

    Attributes:
        before: Node features before the block.
        nodes: What the messages read of them.
        between: Node features after the messages.
        h: What the feed-forward network reads of them.
        of_network: What the network's adjoint reads beside it.
        hidden: The radial network before its last layer.
        rows: Rows of edges before the gate, and after the second SO(2) map. The adjoint takes each out when it reads it, so
            that its memory is free for what comes next.
    """

    before: Tensor
    nodes: Tensor
    between: Tensor
    h: Tensor
    of_network: object
    hidden: Hidden
    rows: list[Tensor]


@dataclass(frozen=True)
class _Radial:
    """A radial network that has been begun on the branch.

    Attributes:
        hidden: All of it before its last layer.
        factors: Its results. Those of the last block stay for the adjoint; of the others it makes them again: kept for all
            blocks they would take a third more memory.
    """

    hidden: Hidden
    factors: Tensor


class Step:
    """The steps of one network."""

    def __init__(self, network: Network, make_edges: MakeEdges = PlainEdges, nodes: StepNodes | None = None) -> None:
        """Read the sizes of a network with gate activation.

        Args:
            network: The network.
            make_edges: Chooses what works on edges.
            nodes: What works on nodes; None for plain PyTorch.
        """
        self._nodes = StepNodes() if nodes is None else nodes
        config = network.config
        self._network, self._config, self._make_edges = network, config, make_edges
        self.shape = MessageShape(config.lmax, config.mmax, config.channels, config.hidden_channels)
        self.energy = energy_weights(network)

    @torch.no_grad()
    def __call__(
        self, batch: SystemBatch, edges: EdgeList, weights: Sequence[StepWeights], weights_of_system: Sequence[int]
    ) -> tuple[NetworkOutput, Tensor | None]:
        """Compute the outputs of the network, and the gradient of the energy unless it predicts forces directly.

        Args:
            batch: The structures, on the device.
            edges: Their edges, sorted by target.
            weights: Distinct sets of weights.
            weights_of_system: Which of them each system uses.

        Returns:
            The normalised outputs, and dE/d(edge_vec) [n_edges, 3]; None for a model with direct forces.
        """
        return self.evaluate(self.inputs(batch, edges, weights, weights_of_system))

    @torch.no_grad()
    def evaluate(self, inputs: StepInputs) -> tuple[NetworkOutput, Tensor | None]:
        """Do the work of a step on the device; the host is told nothing and waits for nothing."""
        batch, weights = inputs.batch, inputs.weights
        inputs.edges.begin()
        embedding = self._hidden(0, inputs)
        x = self._embed(inputs, embedding)
        kept: list[_Kept] = []
        radial = self._begin_radial(0, inputs)
        for number in range(self._config.n_layers):
            x, of_block, radial = self._block(x, radial, number, inputs)
            kept.append(of_block)
        last_norm = weights[0].norm
        features = self._nodes.norm(x, last_norm)
        node_energy, to_scalars = self._nodes.energy(
            features, self.energy, inputs.plan, with_gradient=not self._network.is_direct
        )
        output = self._network.outputs(features, batch, node_energy)
        if to_scalars is None:
            return output, None
        gradient = self._nodes.norm_adjoint(x, last_norm, to_scalars)
        factors = radial.factors
        for number in reversed(range(self._config.n_layers)):
            of_block = kept.pop()
            before = kept[-1].hidden if kept else embedding
            gradient, factors = self._block_adjoint(gradient, of_block, factors, before, number, inputs)
        slopes = self._last_layer(embedding[1], self._radial_weights(0, inputs), inputs, bias=False)
        inputs.branch.join()
        inputs.edges.embed_adjoint(gradient, factors, slopes)
        return output, inputs.edges.edge_gradient()

    def inputs(
        self,
        batch: SystemBatch,
        edges: EdgeList,
        weights: Sequence[StepWeights],
        weights_of_system: Sequence[int],
        n_atoms: Sequence[int] | None = None,
    ) -> StepInputs:
        """Lay out what a step reads; the arguments are those of a call.

        Args:
            batch: As there.
            edges: As there.
            weights: As there.
            weights_of_system: As there.
            n_atoms: Number of atoms of each system, where the host knows them: asking the device would wait for it.
        """
        config, backbone = self._config, self._network.backbone
        centres = torch.linspace(0, config.cutoff, config.n_basis, dtype=torch.float64, device=edges.edge_vec.device)
        dtype = backbone.sphere_embedding.weight.dtype
        geometry = edge_steps.edge_geometry(edges.edge_vec, config.cutoff, centres, config.lmax, dtype)
        n_atoms = batch.n_atoms.tolist() if n_atoms is None else n_atoms
        return StepInputs(
            batch=batch,
            at_atoms=backbone.system_embedding(batch)[batch.system_idx],
            edges=self._make_edges(edges, batch.atomic_numbers.shape[0], geometry, self.shape),
            segments=segments_of(edges.edges_per_system, weights_of_system),
            atom_segments=segments_of(n_atoms, weights_of_system),
            weights=weights,
            plan=atom_plan(batch, n_atoms, self.energy),
            branch=Branch(edges.edge_vec.device),
        )

    def _embed(self, inputs: StepInputs, embedding: Hidden) -> Tensor:
        """Return the first node features (MODEL.md section 7)."""
        x = inputs.edges.embed(self._last_layer(embedding[0], self._radial_weights(0, inputs), inputs, bias=True))
        table = self._network.backbone.sphere_embedding.weight
        return self._nodes.embed(x, inputs.batch.atomic_numbers, table, inputs.at_atoms)

    def _hidden(self, network: int, inputs: StepInputs) -> Hidden:
        """Return all layers but the last of a radial network: 0 is that of the embedding, then come those of the blocks."""
        weights, edges, numbers = inputs.weights, inputs.edges, inputs.batch.atomic_numbers
        if not self._config.experts_everywhere or len(inputs.segments) == 1:
            return edges.hidden(numbers, weights[inputs.segments[0].weights], network)
        own = self._radial_weights(network, inputs)
        if len(own) == 1:
            return edges.hidden_of_run(numbers, own[0], slice(None))
        parts = _by_segment(inputs.segments, own, partial(edges.hidden_of_run, numbers))
        return torch.cat([value for value, _ in parts]), torch.cat([slope for _, slope in parts])

    def _begin_radial(self, number: int, inputs: StepInputs) -> _Radial:
        """Begin to evaluate the radial network of a block."""

        def work() -> _Radial:
            hidden = self._hidden(number + 1, inputs)
            networks = self._radial_weights(number + 1, inputs)
            return _Radial(hidden, self._last_layer(hidden[0], networks, inputs, bias=True))

        return inputs.branch.begin(work)

    def _begin_factors(self, hidden: Hidden, network: int, inputs: StepInputs) -> Tensor:
        """Begin to make the results of a radial network again, for the adjoint."""
        networks = self._radial_weights(network, inputs)
        # The embedding's are features, which the adjoint needs as they were.
        values = networks[0].row_format.rounded(hidden[0]) if network else hidden[0]
        return inputs.branch.begin(partial(self._last_layer, values, networks, inputs, bias=True))

    def _last_layer(self, x: Tensor, weights: Sequence[RadialWeights], inputs: StepInputs, *, bias: bool) -> Tensor:
        """Apply the last layer of a radial network to values, or without the bias to slopes."""

        def evaluate(own: RadialWeights, rows: slice, out: Tensor | None = None) -> Tensor:
            return own.row_format.last_layer(x[rows], own.last, own.last_bias if bias else None, out)

        if len(weights) == 1:
            piece = Piece.FACTORS if bias else Piece.OPERANDS
            room = inputs.edges.room(piece, weights[0].last.shape[0], weights[0].row_format)
            return evaluate(weights[0], slice(None), room)
        return torch.cat(_by_segment(inputs.segments, weights, evaluate))

    def _radial_weights(self, network: int, inputs: StepInputs) -> list[RadialWeights]:
        """Return the weights of a radial network: one set for each mixture where they have experts, else one."""
        if network == 0:
            return [inputs.weights[0].degree]
        weights = inputs.of_block(network - 1)
        return [item.radial for item in (weights if self._config.experts_everywhere else weights[:1])]

    def _block(self, before: Tensor, radial: _Radial, number: int, inputs: StepInputs) -> tuple[Tensor, _Kept, _Radial]:
        """Update node features by one block (MODEL.md section 8); begin the radial network of the next one, if there is one."""
        weights, edges = inputs.of_block(number), inputs.edges
        nodes = self._nodes.norm(before, weights[0].norm_1, inputs.at_atoms)
        inputs.branch.join()
        rows = edges.gather_rotate(nodes, radial.factors)
        is_last = number == self._config.n_layers - 1
        before_gate = so2_linear(rows, [item.conv_1 for item in weights], inputs.segments)
        maps = [item.conv_2 for item in weights]
        # Of the last block these are read before anything else needs their place.
        room = edges.room(Piece.ROWS, maps[0].n_outputs, maps[0].row_format) if is_last else None
        convolved = edges.gate_and_multiply(before_gate, weights[0].conv_1.bias, maps, inputs.segments, out=room)
        following = radial if is_last else self._begin_radial(number + 1, inputs)
        messages = edges.rotate_sum(convolved, weights[0].conv_2.bias)
        between, h = self._nodes.norm_of_sum(before, messages, weights[0].norm_2)
        x, of_network = self._nodes.feed_forward(h, *self._networks(weights, inputs), between)
        x = self._nodes.balance(x, self._config, inputs.batch, inputs.plan)
        return x, _Kept(before, nodes, between, h, of_network, radial.hidden, [before_gate, convolved]), following

    def _block_adjoint(
        self, gradient: Tensor, kept: _Kept, factors: Tensor, before: Hidden, number: int, inputs: StepInputs
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient of the features before a block for that of the features after it, and begin what comes next.

        Args:
            gradient: Of the features after the block.
            kept: Of the block.
            factors: Results of its radial network.
            before: The radial network before this one, without its last layer.
            number: Of the block.
            inputs: Of the step.

        Returns:
            The gradient, and the results of the radial network before this one.
        """
        weights, edges = inputs.of_block(number), inputs.edges
        gradient = self._nodes.balance_adjoint(gradient, self._config, inputs.batch, inputs.plan)
        to_h = self._nodes.feed_forward_adjoint(kept.h, *self._networks(weights, inputs), gradient, kept.of_network)
        gradient = self._nodes.norm_adjoint(kept.between, weights[0].norm_2, to_h, gradient)
        rows = edges.rotate_sum_adjoint(gradient, kept.rows.pop(), weights[0].conv_2.bias)
        rows = self._products_adjoint(rows, [item.conv_2 for item in weights], inputs)
        rows = edges.gate_adjoint(rows, kept.rows.pop(), weights[0].conv_1.bias)
        rows = self._products_adjoint(rows, [item.conv_1 for item in weights], inputs)
        slopes = self._last_layer(kept.hidden[1], self._radial_weights(number + 1, inputs), inputs, bias=False)
        inputs.branch.join()
        to_nodes = edges.gather_rotate_adjoint(rows, kept.nodes, factors, slopes)
        factors = self._begin_factors(before, number, inputs)
        return self._nodes.norm_adjoint(kept.before, weights[0].norm_1, to_nodes, gradient), factors

    def _products_adjoint(self, rows: Tensor, maps: Sequence[SO2Map], inputs: StepInputs) -> Tensor:
        room = inputs.edges.room(Piece.ROWS, maps[0].n_inputs, maps[0].row_format)
        return so2_linear_adjoint(rows, maps, inputs.segments, out=room)

    def _networks(
        self, weights: Sequence[BlockWeights], inputs: StepInputs
    ) -> tuple[list[FeedForwardWeights], tuple[EdgeSegment, ...]]:
        """Return the feed-forward networks of a block, and the atoms of each."""
        if self._config.experts_everywhere:
            return [item.feed_forward for item in weights], inputs.atom_segments
        return [weights[0].feed_forward], (EdgeSegment(0, inputs.at_atoms.shape[0], 0),)


def _by_segment(
    segments: Sequence[EdgeSegment], weights: Sequence[Weights], function: Callable[[Weights, slice], Part]
) -> list[Part]:
    """Apply a function to each run of rows with the weights of the run."""
    return [function(weights[item.weights], slice(item.start, item.stop)) for item in segments]
