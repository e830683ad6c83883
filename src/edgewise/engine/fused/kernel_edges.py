"""The work of a step on edges by kernels. Importing this module needs Triton."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional

from edgewise.engine.fused.edges import Hidden, StepEdges
from edgewise.engine.fused.weights import StepWeights
from edgewise.neighbors import EdgeList
from edgewise.ops import MessageShape
from edgewise.ops.fused.gate import gate, gate_adjoint
from edgewise.ops.fused.gather_rotate import gather_rotate, gather_rotate_adjoint
from edgewise.ops.fused.layout import n_edge_coefficients
from edgewise.ops.fused.radial_hidden import RadialStack, radial_hidden, radial_stack
from edgewise.ops.fused.rotate_sum import rotate_sum, rotate_sum_adjoint
from edgewise.ops.fused.segment_sum import segment_sum
from edgewise.ops.fused.shapes import edge_tables
from edgewise.ops.reference import edge_steps
from edgewise.ops.reference.edge_steps import EdgeGeometry

PROGRAMS_WANTED = 4000
"""Programs for each degree that keep a large GPU busy; the edges of an atom are cut into slices to have about as many."""

MOST_SLICES = 8

_TABLES_OF_EDGES = ("ends", "geometry", "n_live", "target_starts", "by_source", "source_starts")
"""What the edges of a step decide; the scales are worked out in each step."""

_STACKS: WeakKeyDictionary[StepWeights, RadialStack] = WeakKeyDictionary()

LARGEST_EXPONENT = 5
"""Gradients in float16 are scaled so that the largest of an atom is below 2^5: the rest of the range, 2^11 above and 2^19
below, is room for what the maps and the gate make of them."""


class KernelEdges(StepEdges):
    """Kernels on rows of float32 or float16; sums, geometry and features of nodes stay float32."""

    def __init__(
        self,
        edges: EdgeList,
        n_atoms: int,
        geometry: EdgeGeometry,
        shape: MessageShape,
        cutoff: float,
        dtype: torch.dtype = torch.float32,
        capacity: int | None = None,
    ) -> None:
        """Lay out the edges.

        Args:
            edges: The edges.
            n_atoms: Number of atoms.
            geometry: Geometry of the edges.
            shape: Sizes.
            cutoff: Å.
            dtype: Type of the rows.
            capacity: Number of edges to make room for; None for as many as there are.
        """
        order, n_edges = edge_steps.edge_order(edges.edge_index, n_atoms), edges.edge_index.shape[1]
        self._tables = edge_tables(order, geometry, shape, n_edges if capacity is None else capacity)
        super().__init__(order, _with_room(geometry, self._tables.capacity), shape, dtype)
        self._cutoff, self._n_atoms = cutoff, n_atoms
        self._n_coefficients = (shape.lmax + 1) ** 2
        self._n_slices = min(MOST_SLICES, max(1, PROGRAMS_WANTED // max(1, n_atoms)))
        n_tasks = shape.lmax + 1
        # What both ends of gather_rotate and its counterpart own: a place for each task, so that nothing is added twice.
        self._of_ends = self._zeros(2 * n_tasks, self._tables.capacity, 3)
        self._of_sums = self._zeros(n_tasks, self._tables.capacity, 3)

    def begin(self) -> None:
        """See `StepEdges`."""
        self._of_ends.zero_()
        self._of_sums.zero_()

    def hidden(self, numbers: Tensor, weights: StepWeights) -> list[Hidden]:
        """See `StepEdges`."""
        stack = _stack(weights)
        parts, n_networks = 2 if self.dtype == torch.float16 else 1, len(weights.radial_networks)
        values, slopes = (
            self._rows(parts * stack.n_hidden, n_networks).unflatten(0, (n_networks, self._tables.capacity))
            for _ in range(2)
        )
        distance = self.geometry.distance.float()
        # Rounded operands of slopes alone would cost more accuracy than all rows of edges together.
        radial_hidden(distance, numbers.int(), self._tables, self._cutoff, stack, values, slopes, exact_slopes=True)
        return list(zip(values, slopes, strict=True))

    def gather_rotate(self, nodes: Tensor, radial: Tensor) -> Tensor:
        """See `StepEdges`."""
        out = self._rows(n_edge_coefficients(self.shape.lmax, self.shape.mmax) * 2 * self.shape.channels)
        return gather_rotate(nodes, self._tables, radial, self.shape, out)

    def gather_rotate_adjoint(self, gradient: Tensor, nodes: Tensor, radial: Tensor, radial_slope: Tensor) -> Tensor:
        """See `StepEdges`."""
        rows = self._rows(self._n_coefficients * self.shape.channels).unflatten(1, (self._n_coefficients, -1))
        parts = self._slices(nodes.shape[0])
        gather_rotate_adjoint(
            gradient, nodes, self._tables, radial, radial_slope, self.shape, rows, parts, self._of_ends
        )
        return segment_sum(rows, parts, self._tables, torch.empty_like(nodes))

    def gate(self, before: Tensor, bias: Tensor) -> Tensor:
        """See `StepEdges`."""
        out = self._rows(n_edge_coefficients(self.shape.lmax, self.shape.mmax) * self.shape.hidden)
        return gate(before, bias, self._tables, self.shape, out)

    def gate_adjoint(self, gradient: Tensor, before: Tensor, bias: Tensor) -> Tensor:
        """See `StepEdges`."""
        return gate_adjoint(gradient, before, bias, self._tables, self.shape, torch.empty_like(before))

    def rotate_sum(self, features: Tensor, bias: Tensor) -> Tensor:
        """See `StepEdges`."""
        nodes = self._slices(self._n_atoms)
        return rotate_sum(features, bias, self._tables, self.shape, nodes).sum(0)

    def rotate_sum_adjoint(self, gradient: Tensor, features: Tensor, bias: Tensor) -> Tensor:
        """See `StepEdges`. The gradients carry a power of two for each target until `gather_rotate_adjoint`."""
        if self.dtype == torch.float16:
            self._tables = replace(self._tables, scales=_powers_of_two(gradient))
        out = torch.empty_like(features)
        rotate_sum_adjoint(gradient.contiguous(), features, bias, self._tables, self.shape, out, self._of_sums)
        return out

    def embed(self, features: Tensor) -> Tensor:
        """See `StepEdges`."""
        nodes = self._slices(self._n_atoms)
        return rotate_sum(features, self._no_bias(), self._tables, self.shape, nodes, embedding=True).sum(0)

    def embed_adjoint(self, gradient: Tensor, features: Tensor, features_slope: Tensor) -> None:
        """See `StepEdges`."""
        rotate_sum_adjoint(
            gradient.contiguous(),
            features,
            self._no_bias(),
            self._tables,
            self.shape,
            features,
            self._of_sums,
            features_slope=features_slope,
        )

    def edge_gradient(self) -> Tensor:
        """See `StepEdges`; [capacity, 3], where rows that hold no edge have no meaning."""
        tangents = self._of_ends.sum(0) + self._of_sums.sum(0)
        return edge_steps.edge_gradient(self.geometry, tangents.to(self.geometry.frames.dtype))

    def copy_(self, other: KernelEdges) -> None:
        """Take the place of other edges of the same capacity: a captured step reads the tensors that are here."""
        self.geometry.distance.copy_(other.geometry.distance)
        self.geometry.frames.copy_(other.geometry.frames)
        for name in _TABLES_OF_EDGES:
            getattr(self._tables, name).copy_(getattr(other._tables, name))

    def _rows(self, width: int, times: int = 1) -> Tensor:
        return torch.empty(times * self._tables.capacity, width, dtype=self.dtype, device=self._tables.ends.device)

    def _slices(self, n_atoms: int) -> Tensor:
        shape = self._n_slices, n_atoms, self._n_coefficients, self.shape.channels
        return torch.empty(shape, dtype=torch.float32, device=self._tables.ends.device)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float32, device=self._tables.ends.device)

    def _no_bias(self) -> Tensor:
        return self._zeros((self.shape.lmax + 1) * self.shape.channels)


def _with_room(geometry: EdgeGeometry, capacity: int) -> EdgeGeometry:
    """Make room in what is read of an edge's geometry apart from the tables; distances are 1 where there is no edge."""
    room = capacity - geometry.distance.shape[0]
    return replace(
        geometry,
        distance=functional.pad(geometry.distance, (0, room), value=1.0),
        frames=functional.pad(geometry.frames, (0, 0, 0, 0, 0, room)),
    )


def _stack(weights: StepWeights) -> RadialStack:
    """Return the radial networks of a mixture as their kernel reads them; kept as long as the weights."""
    if weights not in _STACKS:
        networks = weights.radial_networks
        _STACKS[weights] = radial_stack(
            [item.basis for item in networks],
            [item.source_table for item in networks],
            [item.target_table for item in networks],
            [item.hidden for item in networks],
        )
    return _STACKS[weights]


def _powers_of_two(gradient: Tensor) -> Tensor:
    """Return the power of two of each atom that brings its largest gradient just below 2^LARGEST_EXPONENT."""
    largest = gradient.abs().amax((1, 2)).float()
    _, exponent = torch.frexp(largest)
    # Where there is no gradient any scale will do; for the smallest numbers of float32 the power would overflow.
    exponent = torch.where(largest > 0, exponent, 0).clamp_min(-80)
    return torch.ldexp(torch.ones_like(largest), LARGEST_EXPONENT - exponent)
