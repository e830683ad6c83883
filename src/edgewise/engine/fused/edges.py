"""What a step does on edges, behind one interface: in plain PyTorch, or by kernels. Features of edges stand in rows.

A row holds the coefficients of an edge in m-major order, each with all its channels. The adjoints add what each edge's
geometry receives, the torque and dE/dd, to numbers that the object keeps until `edge_gradient` asks for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from edgewise.engine.fused.scratch import Piece
from edgewise.engine.fused.weights import RadialWeights, StepWeights
from edgewise.neighbors import EdgeList
from edgewise.ops import EdgeSegment, MessageShape
from edgewise.ops.fused.row_format import RowFormat, plain_format
from edgewise.ops.fused.so2_linear import SO2Map, so2_linear
from edgewise.ops.reference import edge_steps, gate
from edgewise.ops.reference.edge_steps import EdgeGeometry, EdgeOrder
from edgewise.ops.reference.radial_network import hidden_with_slope

Hidden = tuple[Tensor, Tensor]
"""Input of a radial network's last layer, and its derivative with respect to the distance: [n_edges, columns], made by
`RowFormat.hidden`."""


class StepEdges(ABC):
    """The edges of one step, and the operations on them.

    Attributes:
        shape: Sizes.
        row_format: Of the rows that are multiplied: what `gather_rotate`, `gate`, `rotate_sum_adjoint` and `gate_adjoint`
            return. They read results of products.
    """

    def __init__(self, shape: MessageShape, row_format: RowFormat) -> None:
        """Keep what all edges have in common."""
        self.shape, self.row_format = shape, row_format

    @abstractmethod
    def begin(self) -> None:
        """Forget what earlier adjoints have added to the tangents."""

    def room(self, piece: Piece, n_columns: int, row_format: RowFormat) -> Tensor | None:
        """Return memory for results that are read before the piece is written again (`scratch`).

        Args:
            piece: Where.
            n_columns: Values of a row.
            row_format: The format that they are results of.

        Returns:
            [n_edges, n_columns]; None where results take memory of their own.
        """
        del piece, n_columns, row_format

    @abstractmethod
    def hidden(self, numbers: Tensor, weights: StepWeights, number: int) -> Hidden:
        """Return all layers but the last of a radial network.

        Args:
            numbers: [n_atoms], atomic numbers.
            weights: The networks.
            number: Which of them (`StepWeights.radial_networks`).
        """

    @abstractmethod
    def hidden_of_run(self, numbers: Tensor, weights: RadialWeights, rows: slice) -> Hidden:
        """Return all layers but the last of one radial network, for a run of edges."""

    @abstractmethod
    def gather_rotate(self, nodes: Tensor, radial: Tensor) -> Tensor:
        """Gather both ends of nodes [n_atoms, n_coefficients, channels], rotate them and scale them; return rows."""

    @abstractmethod
    def gather_rotate_adjoint(self, gradient: Tensor, nodes: Tensor, radial: Tensor, radial_slope: Tensor) -> Tensor:
        """Return the gradient of the nodes."""

    @abstractmethod
    def gate(self, before: Tensor, bias: Tensor) -> Tensor:
        """Add the bias of the map in front, and apply the gate activation; return rows."""

    def gate_and_multiply(
        self,
        before: Tensor,
        bias: Tensor,
        maps: Sequence[SO2Map],
        segments: Sequence[EdgeSegment],
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """Apply `gate`, then `so2_linear` with these weights, to `out` if it is given; the rows between are not kept."""
        return so2_linear(self.gate(before, bias), maps, segments, out=out)

    @abstractmethod
    def gate_adjoint(self, gradient: Tensor, before: Tensor, bias: Tensor) -> Tensor:
        """Return the gradient of `before`."""

    @abstractmethod
    def rotate_sum(self, features: Tensor, bias: Tensor) -> Tensor:
        """Add the bias of the map in front, rotate back, scale by the envelope and sum at the targets."""

    @abstractmethod
    def rotate_sum_adjoint(self, gradient: Tensor, features: Tensor, bias: Tensor) -> Tensor:
        """Return the gradient of the features."""

    @abstractmethod
    def embed(self, features: Tensor) -> Tensor:
        """Return `rotate_sum` of features that have m = 0 alone."""

    @abstractmethod
    def embed_adjoint(self, gradient: Tensor, features: Tensor, features_slope: Tensor) -> None:
        """Add to the tangents what the features' own dependence on the distance gives, and their rotation."""

    @abstractmethod
    def edge_gradient(self) -> Tensor:
        """Return dE/d(edge_vec), [n_edges, 3]."""


def plain_hidden(
    ends: tuple[Tensor, Tensor], gaussians: tuple[Tensor, Tensor], numbers: Tensor, weights: RadialWeights
) -> Hidden:
    """Evaluate one radial network up to its last layer, in plain PyTorch.

    Args:
        ends: Source and target of each edge.
        gaussians: The radial basis of each edge, and its derivative.
        numbers: [n_atoms], atomic numbers.
        weights: The network.
    """
    of_source, of_target = (numbers[item] for item in ends)
    first = weights.source_table[of_source] + weights.target_table[of_target]
    first, slope = (
        first + functional.linear(gaussians[0], weights.basis),
        functional.linear(gaussians[1], weights.basis),
    )
    value, slope = hidden_with_slope(first, slope, weights.hidden)
    made = weights.row_format.hidden
    return made(value, constant=True), made(slope, constant=False)


def hidden_of_run(
    order: EdgeOrder, geometry: EdgeGeometry, numbers: Tensor, weights: RadialWeights, rows: slice
) -> Hidden:
    """Do the same for a run of edges."""
    gaussians = geometry.gaussians[rows], geometry.gaussian_slopes[rows]
    return plain_hidden((order.source[rows], order.target[rows]), gaussians, numbers, weights)


class PlainEdges(StepEdges):
    """Plain PyTorch: any type, any device."""

    def __init__(self, edges: EdgeList, n_atoms: int, geometry: EdgeGeometry, shape: MessageShape) -> None:
        """Sort the edges by source as well."""
        order = edge_steps.edge_order(edges.edge_index, n_atoms)
        super().__init__(shape, plain_format(geometry.distance.dtype))
        self.order, self.geometry = order, geometry
        self._tangents = torch.zeros_like(geometry.frames[:, 0])

    def begin(self) -> None:
        """See `StepEdges`."""
        self._tangents.zero_()

    def hidden(self, numbers: Tensor, weights: StepWeights, number: int) -> Hidden:
        """See `StepEdges`."""
        return self.hidden_of_run(numbers, weights.radial_networks[number], slice(None))

    def hidden_of_run(self, numbers: Tensor, weights: RadialWeights, rows: slice) -> Hidden:
        """See `StepEdges`."""
        return hidden_of_run(self.order, self.geometry, numbers, weights, rows)

    def gather_rotate(self, nodes: Tensor, radial: Tensor) -> Tensor:
        """See `StepEdges`."""
        return torch.cat(edge_steps.gather_rotate(nodes, self.order, self.geometry, radial, self.shape), dim=1)

    def gather_rotate_adjoint(self, gradient: Tensor, nodes: Tensor, radial: Tensor, radial_slope: Tensor) -> Tensor:
        """See `StepEdges`."""
        blocks = self._split(gradient, 2 * self.shape.channels)
        to_nodes, tangents = edge_steps.gather_rotate_adjoint(
            blocks, nodes, self.order, self.geometry, radial, radial_slope, self.shape
        )
        self._tangents += tangents
        return to_nodes

    def gate(self, before: Tensor, bias: Tensor) -> Tensor:
        """See `StepEdges`."""
        return torch.cat(gate(self._before(before, bias), self.shape.lmax, self.shape.hidden), dim=1)

    def gate_adjoint(self, gradient: Tensor, before: Tensor, bias: Tensor) -> Tensor:
        """See `StepEdges`."""
        blocks = self._split(gradient, self.shape.hidden)
        return torch.cat(edge_steps.gate_adjoint(blocks, self._before(before, bias), self.shape), dim=1)

    def rotate_sum(self, features: Tensor, bias: Tensor) -> Tensor:
        """See `StepEdges`."""
        return edge_steps.rotate_sum(self._features(features, bias), self.order, self.geometry, self.shape.channels)

    def rotate_sum_adjoint(self, gradient: Tensor, features: Tensor, bias: Tensor) -> Tensor:
        """See `StepEdges`."""
        blocks = self._features(features, bias)
        found, tangents = edge_steps.rotate_sum_adjoint(gradient, blocks, self.order, self.geometry, self.shape)
        self._tangents += tangents
        return torch.cat(found, dim=1)

    def embed(self, features: Tensor) -> Tensor:
        """See `StepEdges`."""
        return edge_steps.rotate_sum([features], self.order, self.geometry, self.shape.channels)

    def embed_adjoint(self, gradient: Tensor, features: Tensor, features_slope: Tensor) -> None:
        """See `StepEdges`."""
        (found,), tangents = edge_steps.rotate_sum_adjoint(gradient, [features], self.order, self.geometry, self.shape)
        self._tangents += tangents
        self._tangents[:, 2] += (found * features_slope).sum(1)

    def edge_gradient(self) -> Tensor:
        """See `StepEdges`."""
        return edge_steps.edge_gradient(self.geometry, self._tangents)

    def _split(self, rows: Tensor, width: int, extra: int = 0) -> list[Tensor]:
        sizes = [(1 if m == 0 else 2) * size * width for m, size in enumerate(self.shape.sizes)]
        sizes[0] += extra
        return list(rows.split(sizes, dim=1))

    def _before(self, rows: Tensor, bias: Tensor) -> list[Tensor]:
        first, *rest = self._split(rows, self.shape.hidden, self.shape.lmax * self.shape.hidden)
        return [first + bias, *rest]

    def _features(self, rows: Tensor, bias: Tensor) -> list[Tensor]:
        first, *rest = self._split(rows, self.shape.channels)
        return [first + bias, *rest]
