"""What each part of a step of mode fused has to do, counted from the tensors that it is given and makes: bytes and operations.

Bytes are those that have to go through the memory of the device: what a kernel reads and writes, once each, with the rows that
pad a step. What nodes have is small enough for caches, so that gathering it for edges counts as reading it once. Operations are
those of matrix products and of rotations, a multiplication and an addition each as one; sums, norms and activations wait for
memory and have none. There is one function for each part; it takes the arguments of the function that does the part, and its
result behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from edgewise.engine.fused.edges import Hidden
from edgewise.engine.fused.kernel_edges import KernelEdges
from edgewise.engine.fused.weights import RadialWeights, StepWeights
from edgewise.ops import EdgeSegment, MessageShape
from edgewise.ops.fused.neighbor_list import Candidates, FoundEdges, SearchInputs
from edgewise.ops.fused.so2_linear import SO2Map
from edgewise.ops.reference.feed_forward import FeedForwardWeights, SpectralWeights

KEY = 8
"""Bytes of a candidate for an edge."""

NUMBER = 4
"""Bytes of float32 and int32."""

PARTS = 3
"""Products of float16 that are one product of the accuracy of float32 (`row_format`)."""


@dataclass(frozen=True)
class Count:
    """What a part has to do.

    Attributes:
        bytes: Through the memory of the device.
        flops: Multiplications and additions.
        float16: All of the flops are products of float16, which matrix units do at the ceiling.
    """

    bytes: int
    flops: int = 0
    float16: bool = True

    def __add__(self, other: Count) -> Count:
        """Return the count of both."""
        return Count(self.bytes + other.bytes, self.flops + other.flops, self.float16 and other.float16)


def size(*tensors: Tensor | None) -> int:
    """Return the bytes of tensors."""
    return sum(item.numel() * item.element_size() for item in tensors if item is not None)


def count_edges(inputs: SearchInputs, *_: object, result: Candidates) -> Count:
    """Positions read; numbers of neighbours, cells' turns and starts written. Candidates count in `fill_edges`."""
    return Count(size(inputs.positions, inputs.system_idx, result.turns, result.found, result.target_starts))


def fill_edges(inputs: SearchInputs, candidates: Candidates, capacity: int, *, result: FoundEdges) -> Count:
    """8 bytes an edge written by the search and read again; positions, turns and starts read; ends and vectors written."""
    read = size(inputs.positions, candidates.turns, candidates.found, candidates.target_starts)
    return Count(2 * KEY * capacity + read + size(result.ends, result.edge_vec, result.target_starts))


def found(edges: FoundEdges, *_: object, result: KernelEdges) -> Count:
    """Vectors read; rotations, envelopes and distances written; sources read, their order and its starts written."""
    tables = result.tables
    made = size(tables.geometry, tables.by_source, tables.source_starts) + NUMBER * tables.capacity
    return Count(size(edges.edge_vec, edges.ends[0]) + made)


def hidden(edges: KernelEdges, numbers: Tensor, weights: StepWeights, number: int, *, result: Hidden) -> Count:
    """Distances, ends and tables read; values and slopes written.

    For values and for slopes, an edge and a network of width h on n gaussians take h (n + h) products of each part.
    """
    capacity, network = edges.tables.capacity, weights.radial_networks[number]
    read = size(network.source_table, network.target_table, network.basis, network.hidden.linear)
    read += NUMBER * capacity + size(edges.tables.ends, numbers)
    each = network.basis.numel() + network.hidden.linear.numel()
    return Count(read + size(*result), 2 * 2 * PARTS * capacity * each)


def last_layer(
    _: object, x: Tensor, weights: Sequence[RadialWeights], *__: object, bias: bool, result: Tensor
) -> Count:
    """Rows and matrices read, rows written; products of all columns that x has, all parts of a value among them."""
    del bias
    float16 = x.element_size() == 2
    return Count(
        size(x, result, *(item.last for item in weights)), 2 * x.shape[0] * x.shape[1] * result.shape[1], float16
    )


def gather_rotate(edges: KernelEdges, nodes: Tensor, radial: Tensor, *, result: Tensor) -> Count:
    """Nodes, factors, geometry and ends read, rows written; both ends are rotated."""
    moved = size(nodes, radial, edges.tables.geometry, edges.tables.ends, result)
    return Count(moved, 2 * _rotations(edges, edges.shape.mmax), float16=False)


def gather_rotate_adjoint(
    edges: KernelEdges, gradient: Tensor, nodes: Tensor, radial: Tensor, slope: Tensor, *, result: Tensor
) -> Count:
    """Of two kernels in CUDA C++.

    Gradients, factors and slopes read, of which each kernel needs the half of its end; geometry and nodes read by both;
    tangents of both ends read and written; nodes written, read and written again. Both ends are rotated, with one order more for
    the torque, and back. In Triton rows of sources are written and read beside, which is not counted.
    """
    tables, shape = edges.tables, edges.shape
    moved = size(gradient, radial, slope, tables.ends, tables.by_source) + 2 * size(tables.geometry, nodes)
    moved += 3 * size(result) + 2 * _tangents(edges)
    return Count(moved, 2 * (_rotations(edges, shape.mmax + 1) + _rotations(edges, shape.mmax)), float16=False)


def products(
    rows: Tensor,
    maps: Sequence[SO2Map],
    segments: Sequence[EdgeSegment],
    *,
    result: Tensor,
    out: Tensor | None = None,
) -> Count:
    """Rows and matrices read, rows written; for each order n_in n_out products an edge, in "split" three of each."""
    del segments, out
    row_format = maps[0].row_format
    times = PARTS if row_format.name == "split" else 1
    each = sum(block.numel() // row_format.parts for block in maps[0].blocks)
    moved = size(rows, result, *(block for item in maps for block in item.blocks))
    return Count(moved, 2 * times * rows.shape[0] * each, row_format.operands.itemsize == 2)


def gate(_: object, before: Tensor, __: Tensor, *, result: Tensor) -> Count:
    """Rows before the gate read, rows behind it written."""
    return Count(size(before, result))


def gate_and_multiply(
    edges: KernelEdges,
    before: Tensor,
    _: Tensor,
    maps: Sequence[SO2Map],
    segments: Sequence[EdgeSegment],
    *,
    result: Tensor,
    out: Tensor | None = None,
) -> Count:
    """Rows before the gate and matrices read, rows behind the products written; nothing where these are two steps."""
    del out
    if not edges.gates_in_products(segments):
        return Count(0)
    return products(before, maps, segments, result=result)


def gate_adjoint(_: object, gradient: Tensor, before: Tensor, __: Tensor, *, result: Tensor) -> Count:
    """Gradients and rows before the gate read, gradients written."""
    return Count(size(gradient, before, result))


def rotate_sum(edges: KernelEdges, features: Tensor, _: Tensor, *, result: Tensor) -> Count:
    """Rows and geometry read, nodes written; rows are rotated back."""
    return Count(size(features, edges.tables.geometry, result), _rotations(edges, edges.shape.mmax), float16=False)


def embed_edges(edges: KernelEdges, features: Tensor, *, result: Tensor) -> Count:
    """As `rotate_sum`, of rows that have m = 0 alone."""
    return Count(size(features, edges.tables.geometry, result), _rotations(edges, 0), float16=False)


def rotate_sum_adjoint(edges: KernelEdges, gradient: Tensor, features: Tensor, _: Tensor, *, result: Tensor) -> Count:
    """Nodes, rows, geometry and targets read, rows written, tangents read and written; with one order more for the torque."""
    moved = size(gradient, features, edges.tables.geometry, edges.tables.ends[1], result) + _tangents(edges)
    return Count(moved, _rotations(edges, edges.shape.mmax + 1), float16=False)


def embed_edges_adjoint(
    edges: KernelEdges, gradient: Tensor, features: Tensor, slope: Tensor, *, result: None
) -> Count:
    """Nodes, rows, slopes, geometry and targets read, tangents read and written; m = 0, and m = 1 for the torque."""
    del result
    moved = size(gradient, features, slope, edges.tables.geometry, edges.tables.ends[1]) + _tangents(edges)
    return Count(moved, _rotations(edges, 1), float16=False)


def begin(edges: KernelEdges, *, result: None) -> Count:
    """Tangents written: those of each task of both ends and of the sums."""
    del result
    return Count(_all_tangents(edges))


def edge_gradient(edges: KernelEdges, *, result: Tensor) -> Count:
    """Tangents of all tasks and vectors read, gradients written."""
    return Count(_all_tangents(edges) + 2 * size(result))


def forces_and_virial(
    gradient: Tensor, edge_vec: Tensor, edges: Any, _: Tensor, *, result: tuple[Tensor, Tensor]
) -> Count:
    """Gradients, vectors and the order of the edges read, forces and virials written."""
    return Count(size(gradient, edge_vec, edges.by_source, *result))


def sum_of_systems(values: Tensor, _: Tensor, *, result: Tensor) -> Count:
    """Values of atoms read, sums written."""
    return Count(size(values, result))


def embed(_: object, x: Tensor, numbers: Tensor, __: Tensor, at_atoms: Tensor, *, result: Tensor) -> Count:
    """Scalars read and written, and what is added to them read: of the table of elements a row for each atom."""
    del result
    return Count(2 * size(x[:, 0]) + 2 * size(at_atoms) + size(numbers))


def norm(_: object, x: Tensor, __: object, added: Tensor | None = None, *, result: Tensor) -> Count:
    """Features and what is added read, features written."""
    return Count(size(x, added, result))


def norm_of_sum(_: object, x: Tensor, update: Tensor, __: object, *, result: tuple[Tensor, Tensor]) -> Count:
    """Two features read, their sum and the normalised sum written."""
    return Count(size(x, update, *result))


def norm_adjoint(
    _: object, x: Tensor, __: object, gradient: Tensor, base: Tensor | None = None, *, result: Tensor
) -> Count:
    """Features, gradients and what is added read, gradients written."""
    return Count(size(x, gradient, base, result))


def feed_forward(
    _: object,
    h: Tensor,
    weights: Sequence[FeedForwardWeights],
    __: object,
    base: Tensor,
    *,
    result: tuple[Tensor, Any],
) -> Count:
    """Features and what is added read, features and what is kept written; two maps of each coefficient, and the gates."""
    out, kept = result
    of_gate = () if kept is None else (kept.hidden, kept.before_gate)
    return Count(size(h, base, out, *of_gate), _network(h, weights))


def feed_forward_adjoint(
    _: object,
    h: Tensor,
    weights: Sequence[FeedForwardWeights],
    __: object,
    gradient: Tensor,
    kept: Any,
    *,
    result: Tensor,
) -> Count:
    """Gradients and what was kept read, gradients written; as many products."""
    of_gate = (h,) if kept is None else (kept.hidden, kept.before_gate)
    return Count(size(gradient, result, *of_gate), _network(h, weights))


def balance(_: object, x: Tensor, config: Any, *__: object, result: Tensor) -> Count:
    """Balanced channels of the scalars read and written."""
    del result
    n_channels = len(config.charge_balanced_channels) + len(config.spin_balanced_channels)
    return Count(2 * x.shape[0] * n_channels * x.element_size())


def energy(
    _: object, features: Tensor, weights: Any, __: object, *, with_gradient: bool, result: tuple[Tensor, Tensor | None]
) -> Count:
    """Scalars read, energies and gradients written; both wide layers, for gradients once more."""
    each = sum(layer[0].numel() for layer in weights.layers[:-1])
    times = 2 if with_gradient else 1
    return Count(size(features[:, 0], *result), 2 * PARTS * times * features.shape[0] * each)


def _tangents(edges: KernelEdges) -> int:
    """Three numbers of each edge read, and written."""
    return 2 * 3 * NUMBER * edges.tables.capacity


def _all_tangents(edges: KernelEdges) -> int:
    """Three numbers of each edge for every degree of both ends and of the sums."""
    return 3 * (edges.shape.lmax + 1) * 3 * NUMBER * edges.tables.capacity


def _rotations(edges: KernelEdges, highest: int) -> int:
    """Rotating one end of each edge, up to an order, and scaling it: 2 (2 l + 1) + 1 for each value of degree l."""
    shape: MessageShape = edges.shape
    each = sum(
        (2 * min(degree, highest) + 1) * (2 * (2 * degree + 1) + 1) if degree else 1 for degree in range(shape.lmax + 1)
    )
    return edges.tables.capacity * shape.channels * each


def _network(h: Tensor, weights: Sequence[FeedForwardWeights]) -> int:
    """Products of a feed-forward network "spectral", in three parts: 2 c h a coefficient, and lmax gates of c h each."""
    first = weights[0]
    if not isinstance(first, SpectralWeights):
        return 0
    n_coefficients, hidden, channels = first.first.shape
    gates = first.gate.shape[0] // hidden
    return 2 * PARTS * h.shape[0] * (2 * n_coefficients + gates) * hidden * channels
