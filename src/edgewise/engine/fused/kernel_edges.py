"""The work of a step on edges by kernels. Importing this module needs Triton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional

from edgewise.engine.fused.edges import Hidden, StepEdges, hidden_of_run, plain_hidden
from edgewise.engine.fused.scratch import Piece, Scratch
from edgewise.engine.fused.weights import RadialWeights, StepWeights
from edgewise.neighbors import EdgeList
from edgewise.ops import EdgeSegment, MessageShape
from edgewise.ops.fused import cuda
from edgewise.ops.fused.cuda import gated_products
from edgewise.ops.fused.cuda import radial_hidden as radial_in_cuda
from edgewise.ops.fused.edge_geometry import edge_geometry, edge_gradient
from edgewise.ops.fused.edge_order import edge_order
from edgewise.ops.fused.gate import gate, gate_adjoint
from edgewise.ops.fused.gather_rotate import gather_rotate, gather_rotate_adjoint
from edgewise.ops.fused.gradient_scales import gradient_scales
from edgewise.ops.fused.layout import geometry_width, n_edge_coefficients
from edgewise.ops.fused.neighbor_list import FoundEdges
from edgewise.ops.fused.radial_hidden import RadialStack, radial_hidden, radial_stack
from edgewise.ops.fused.radial_hidden import serves as radial_serves
from edgewise.ops.fused.rotate_sum import rotate_sum, rotate_sum_adjoint
from edgewise.ops.fused.row_format import FLOAT32, RowFormat
from edgewise.ops.fused.segment_sum import sum_of_slices
from edgewise.ops.fused.shapes import EdgeTables, edge_tables
from edgewise.ops.fused.so2_linear import SO2Map
from edgewise.ops.fused.streams import Branch
from edgewise.ops.reference import edge_steps
from edgewise.ops.reference.edge_steps import EdgeGeometry, EdgeOrder

PROGRAMS_WANTED, BLOCKS_WANTED = 4000, 500
"""Programs of Triton for each degree, and blocks of CUDA C++, that keep a large GPU busy; the edges of an atom are cut into
slices to have about as many."""

MOST_SLICES = 8

_STACKS: WeakKeyDictionary[StepWeights, RadialStack] = WeakKeyDictionary()

_IMAGES: WeakKeyDictionary[SO2Map, Tensor] = WeakKeyDictionary()


class KernelEdges(StepEdges):
    """Kernels on rows of any format but float64; sums, geometry and features of nodes stay float32.

    Attributes:
        tables: The edges as kernels read them.
    """

    def __init__(
        self,
        tables: EdgeTables,
        distance: Tensor,
        edge_vec: Tensor,
        shape: MessageShape,
        cutoff: float,
        row_format: RowFormat,
        plain: tuple[EdgeOrder, EdgeGeometry] | None = None,
    ) -> None:
        """Take edges that are laid out.

        Args:
            tables: The edges as kernels read them.
            distance: [capacity] float32, Å.
            edge_vec: [capacity, 3] float64, Å.
            shape: Sizes.
            cutoff: Å.
            row_format: How rows are stored.
            plain: The same edges for plain PyTorch, which runs of edges with radial networks of their own need.
        """
        super().__init__(shape, row_format)
        self.tables, self._distance, self._edge_vec, self._cutoff, self._plain = (
            tables,
            distance,
            edge_vec,
            cutoff,
            plain,
        )
        self._n_atoms, self._n_coefficients = tables.scales.shape[0], (shape.lmax + 1) ** 2
        self._in_cuda = cuda.missing(shape, row_format, tables.ends.device) is None
        self._gates_in_products = gated_products.missing(shape, row_format, tables.ends.device) is None
        wanted = BLOCKS_WANTED if self._in_cuda else PROGRAMS_WANTED
        self._n_slices = min(MOST_SLICES, max(1, wanted // max(1, self._n_atoms)))
        self._scratch = Scratch(_bytes_of_rows(shape, row_format, tables.capacity), tables.ends.device)
        n_tasks = shape.lmax + 1
        # What both ends of gather_rotate and its counterpart own: a place for each task, so that nothing is added twice. `begin`
        # sets them to zero.
        self._of_ends = distance.new_empty(2 * n_tasks, tables.capacity, 3)
        self._of_sums = distance.new_empty(n_tasks, tables.capacity, 3)

    @classmethod
    def listed(
        cls,
        edges: EdgeList,
        n_atoms: int,
        geometry: EdgeGeometry,
        shape: MessageShape,
        cutoff: float,
        row_format: RowFormat = FLOAT32,
        capacity: int | None = None,
    ) -> KernelEdges:
        """Lay out the edges of a list.

        Args:
            edges: The edges.
            n_atoms: Number of atoms.
            geometry: Geometry of the edges.
            shape: Sizes.
            cutoff: Å.
            row_format: How rows are stored.
            capacity: Number of edges to make room for; None for as many as there are.
        """
        order, n_edges = edge_steps.edge_order(edges.edge_index, n_atoms), edges.edge_index.shape[1]
        tables = edge_tables(order, geometry, shape, n_edges if capacity is None else capacity)
        room = tables.capacity - n_edges
        distance = functional.pad(geometry.distance.float(), (0, room))
        edge_vec = functional.pad(edges.edge_vec, (0, 0, 0, room))
        return cls(tables, distance, edge_vec, shape, cutoff, row_format, (order, geometry))

    @classmethod
    def found(
        cls,
        list_of_edges: FoundEdges,
        shape: MessageShape,
        cutoff: float,
        row_format: RowFormat,
        branch: Branch,
    ) -> KernelEdges:
        """Lay out the edges that a search on the device has found, without asking it how many there are.

        Args:
            list_of_edges: The edges; their number is the capacity.
            shape: Sizes.
            cutoff: Å.
            row_format: How rows are stored.
            branch: On which the edges are sorted by source; it has to be joined before `gather_rotate_adjoint`.
        """
        capacity, n_atoms = list_of_edges.edge_vec.shape[0], list_of_edges.target_starts.shape[0] - 1
        device = list_of_edges.edge_vec.device
        # Of use in the adjoint alone.
        by_source, source_starts = branch.begin(partial(edge_order, list_of_edges.ends, list_of_edges.n_live, n_atoms))
        geometry = torch.empty(capacity, geometry_width(shape.lmax, shape.mmax), device=device)
        distance = torch.empty(capacity, device=device)
        edge_geometry(list_of_edges.edge_vec, list_of_edges.n_live, cutoff, shape, geometry, distance)
        tables = EdgeTables(
            ends=list_of_edges.ends,
            geometry=geometry,
            n_live=list_of_edges.n_live,
            target_starts=list_of_edges.target_starts,
            by_source=by_source,
            source_starts=source_starts,
            scales=torch.ones(n_atoms, device=device),
        )
        return cls(tables, distance, list_of_edges.edge_vec, shape, cutoff, row_format)

    def begin(self) -> None:
        """See `StepEdges`."""
        self._of_ends.zero_()
        self._of_sums.zero_()

    def room(self, piece: Piece, n_columns: int, row_format: RowFormat) -> Tensor:
        """See `StepEdges`."""
        return self._scratch.rows(piece, (self.tables.capacity, n_columns), row_format.results)

    def hidden(self, numbers: Tensor, weights: StepWeights, number: int) -> Hidden:
        """See `StepEdges`; in plain PyTorch where the kernels do not serve the sizes."""
        width, n_basis = weights.degree.basis.shape
        if not radial_serves(width, n_basis):
            # Beyond the last edge ends and distances are any numbers.
            source, target = self.tables.ends.clamp(0, self._n_atoms - 1)
            centres = torch.linspace(0, self._cutoff, n_basis, device=self._distance.device)
            gaussians = edge_steps.gaussians_with_slopes(self._distance, centres)
            return plain_hidden((source, target), gaussians, numbers, weights.radial_networks[number])
        stack, row_format = _stack(weights), weights.radial_networks[number].row_format
        device = self._distance.device
        values, slopes = (
            torch.empty(
                (1, self.tables.capacity, row_format.hidden_columns(stack.n_hidden, constant=constant)),
                dtype=row_format.operands,
                device=device,
            )
            for constant in (True, False)
        )
        radial_hidden(
            self._distance,
            numbers.int(),
            self.tables,
            self._cutoff,
            stack,
            values,
            slopes,
            first=number,
            row_format=row_format,
            in_cuda=radial_in_cuda.missing(stack.n_hidden, stack.n_basis, row_format, device) is None,
        )
        return values[0], slopes[0]

    def hidden_of_run(self, numbers: Tensor, weights: RadialWeights, rows: slice) -> Hidden:
        """See `StepEdges`; in plain PyTorch, for edges whose number the host knows."""
        assert self._plain is not None
        return hidden_of_run(*self._plain, numbers, weights, rows)

    def gather_rotate(self, nodes: Tensor, radial: Tensor) -> Tensor:
        """See `StepEdges`."""
        n_values = n_edge_coefficients(self.shape.lmax, self.shape.mmax) * 2 * self.shape.channels
        out = self._operands(Piece.ROWS, n_values)
        return gather_rotate(
            nodes, self.tables, radial, self.shape, out, row_format=self.row_format, in_cuda=self._in_cuda
        )

    def gather_rotate_adjoint(self, gradient: Tensor, nodes: Tensor, radial: Tensor, radial_slope: Tensor) -> Tensor:
        """See `StepEdges`."""
        inputs = gradient, nodes, self.tables, radial, radial_slope, self.shape
        return gather_rotate_adjoint(*inputs, self._slices(nodes.shape[0]), self._of_ends, in_cuda=self._in_cuda)

    def gate(self, before: Tensor, bias: Tensor) -> Tensor:
        """See `StepEdges`."""
        out = self._operands(Piece.OPERANDS, n_edge_coefficients(self.shape.lmax, self.shape.mmax) * self.shape.hidden)
        return gate(before, bias, self.tables, self.shape, out, row_format=self.row_format)

    def gates_in_products(self, segments: Sequence[EdgeSegment]) -> bool:
        """Tell whether one kernel does all of `gate_and_multiply`."""
        return self._gates_in_products and len(segments) <= 1

    def gate_and_multiply(
        self,
        before: Tensor,
        bias: Tensor,
        maps: Sequence[SO2Map],
        segments: Sequence[EdgeSegment],
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """See `StepEdges`; one kernel where all edges share weights and the GPU has what it takes."""
        if not self.gates_in_products(segments):
            return super().gate_and_multiply(before, bias, maps, segments, out=out)
        images = _images(maps[segments[0].weights if segments else 0])
        if out is None:
            out = self._rows(n_edge_coefficients(self.shape.lmax, self.shape.mmax) * self.shape.hidden)
        return gated_products.gated_products(before, bias, images, self.tables, out)

    def gate_adjoint(self, gradient: Tensor, before: Tensor, bias: Tensor) -> Tensor:
        """See `StepEdges`."""
        out = self._operands(Piece.OPERANDS, before.shape[1])
        return gate_adjoint(gradient, before, bias, self.tables, self.shape, out, row_format=self.row_format)

    def rotate_sum(self, features: Tensor, bias: Tensor) -> Tensor:
        """See `StepEdges`."""
        nodes = self._slices(self._n_atoms)
        return sum_of_slices(rotate_sum(features, bias, self.tables, self.shape, nodes, in_cuda=self._in_cuda))

    def rotate_sum_adjoint(self, gradient: Tensor, features: Tensor, bias: Tensor) -> Tensor:
        """See `StepEdges`. The gradients carry a power of two for each target until `gather_rotate_adjoint`."""
        if self.row_format.operands == torch.float16:
            self.tables = replace(self.tables, scales=gradient_scales(gradient.contiguous()))
        out = self._operands(Piece.OPERANDS, features.shape[1])
        rotate_sum_adjoint(
            gradient.contiguous(),
            features,
            bias,
            self.tables,
            self.shape,
            out,
            self._of_sums,
            row_format=self.row_format,
            in_cuda=self._in_cuda,
        )
        return out

    def embed(self, features: Tensor) -> Tensor:
        """See `StepEdges`."""
        nodes = self._slices(self._n_atoms)
        inputs = features, self._no_bias(), self.tables, self.shape, nodes
        return sum_of_slices(rotate_sum(*inputs, embedding=True, in_cuda=self._in_cuda))

    def embed_adjoint(self, gradient: Tensor, features: Tensor, features_slope: Tensor) -> None:
        """See `StepEdges`."""
        rotate_sum_adjoint(
            gradient.contiguous(),
            features,
            self._no_bias(),
            self.tables,
            self.shape,
            features,
            self._of_sums,
            features_slope=features_slope,
            in_cuda=self._in_cuda,
        )

    def edge_gradient(self) -> Tensor:
        """See `StepEdges`; [capacity, 3] float64, where rows that hold no edge have no meaning."""
        out = torch.empty_like(self._edge_vec)
        return edge_gradient(self._edge_vec, self.tables.n_live, self._of_ends, self._of_sums, out)

    def _rows(self, width: int) -> Tensor:
        shape, dtype = (self.tables.capacity, width), self.row_format.results
        return torch.empty(shape, dtype=dtype, device=self.tables.ends.device)

    def _operands(self, piece: Piece, n_values: int) -> Tensor:
        shape = self.tables.capacity, self.row_format.parts * n_values
        return self._scratch.rows(piece, shape, self.row_format.operands)

    def _slices(self, n_atoms: int) -> Tensor:
        shape = self._n_slices, n_atoms, self._n_coefficients, self.shape.channels
        return torch.empty(shape, dtype=torch.float32, device=self.tables.ends.device)

    def _no_bias(self) -> Tensor:
        return self._distance.new_zeros((self.shape.lmax + 1) * self.shape.channels)


def _bytes_of_rows(shape: MessageShape, row_format: RowFormat, capacity: int) -> dict[Piece, int]:
    """Return how large the largest rows in each piece of memory are."""
    n_coefficients, n_degrees = n_edge_coefficients(shape.lmax, shape.mmax), shape.lmax + 1
    operand, result = row_format.parts * row_format.operands.itemsize, row_format.results.itemsize
    in_embedding = row_format.of_embedding.results.itemsize
    factors = max(result * 2 * shape.channels * sum(shape.sizes), in_embedding * n_degrees * shape.channels)
    of_maps = max(n_coefficients * shape.channels, (shape.lmax + n_coefficients) * shape.hidden)
    products = max(2 * n_coefficients * shape.channels, n_coefficients * shape.hidden)
    return {
        Piece.FACTORS: capacity * factors,
        Piece.ROWS: capacity * max(operand, result) * products,
        Piece.OPERANDS: capacity * max(factors, operand * of_maps),
    }


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


def _images(matrices: SO2Map) -> Tensor:
    """Return the matrices of a map as `gated_products` reads them; kept as long as the map."""
    if matrices not in _IMAGES:
        _IMAGES[matrices] = gated_products.matrix_images(matrices)
    return _IMAGES[matrices]
