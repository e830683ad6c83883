"""Messages of one block with the backward pass written out: the edge part of mode `general` on the CPU.

The formula is `reference.edge_message` (MODEL.md section 8, steps 2 to 6, gate activation): last layer of the radial
network, gather both ends, rotate, scale, SO(2) map, gate, SO(2) map, rotate back, scale by the envelope, sum at the
targets.

Edges are worked through in runs, into the same scratch memory. Kept for the backward pass are the radial factors, the
values before the gate and those after the second map; everything else is computed again from the nodes. Gradients go to
the nodes, the rotations and the input of the radial layer. A derivative of the backward pass is taken through the
reference.

Cost per edge (lmax = mmax = 2, 128 channels): 3.6 MFLOP in matrix products each way, as the reference; kept values
16 kB in float32 where the reference keeps 47 kB.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from edgewise.ops import reference
from edgewise.ops.reference import EdgeSegment, MessageShape, MessageWeights
from edgewise.ops.workspace import empty, scratch

EDGES_AT_ONCE = 2560
"""Edges of one run: long enough for matrix products at full rate."""

EDGES_IN_CACHE = 256
"""Edges that are gathered and rotated at once, so that both ends of them stay in the second-level cache."""


def edge_message(
    nodes: Tensor,
    edge_index: Tensor,
    rotations: Tensor,
    envelope_rotations: Tensor,
    radial_hidden: Tensor,
    weights: Sequence[MessageWeights],
    segments: Sequence[EdgeSegment],
    shape: MessageShape,
) -> Tensor:
    """Compute the summed messages of a block; arguments and result are those of `reference.edge_message`.

    Weights that need gradients, as in training, take the reference.
    """
    trained = any(tensor.requires_grad for item in weights for tensor in item.tensors())
    if torch.is_grad_enabled() and trained:
        return reference.edge_message(
            nodes, edge_index, rotations, envelope_rotations, radial_hidden, weights, segments, shape
        )
    return _EdgeMessage.apply(
        nodes.contiguous(), rotations, envelope_rotations, radial_hidden, edge_index, weights, segments, shape
    )


@dataclass(frozen=True)
class _Layout:
    """Where each order m stands in a row of edge features: slices of coefficients and of values."""

    shape: MessageShape

    def coefficients(self, m: int) -> slice:
        """Return the rows of order m in m-major order."""
        sizes = self.shape.sizes
        start = sizes[0] + 2 * sum(sizes[1:m]) if m else 0
        return slice(start, start + (sizes[m] if m == 0 else 2 * sizes[m]))

    def values(self, m: int, width: int, extra: int = 0) -> slice:
        """Return the columns of order m for `width` values per coefficient, after `extra` columns."""
        rows = self.coefficients(m)
        return slice(extra * (m > 0) + rows.start * width, extra + rows.stop * width)

    @property
    def n_coefficients(self) -> int:
        """Number of edge coefficients."""
        return self.coefficients(self.shape.mmax).stop

    @property
    def n_gates(self) -> int:
        """Number of gate scalars."""
        return self.shape.lmax * self.shape.hidden


def _runs(segments: Sequence[EdgeSegment]) -> Iterator[tuple[int, int, int]]:
    """Cut segments into equal runs (start, stop, number of the weights) of at most EDGES_AT_ONCE edges."""
    for segment in segments:
        n_edges = segment.stop - segment.start
        n_runs = math.ceil(n_edges / EDGES_AT_ONCE)
        bounds = [segment.start + n_edges * run // n_runs for run in range(n_runs + 1)] if n_runs else []
        for start, stop in pairwise(bounds):
            yield start, stop, segment.weights


def _pieces(n: int) -> Iterator[slice]:
    """Cut a run of n edges into pieces of at most EDGES_IN_CACHE."""
    for start in range(0, n, EDGES_IN_CACHE):
        yield slice(start, min(start + EDGES_IN_CACHE, n))


def _ends(nodes: Tensor, rows: Tensor) -> Tensor:
    """Return both ends of edges side by side, [n, coefficients, 2 channels]."""
    n, n_rows, channels = rows.shape[0], nodes.shape[1], nodes.shape[2]
    ends = scratch("ends", n, n_rows * 2 * channels, nodes)
    # Gathering single rows (node, coefficient) lays both ends side by side without joining anything.
    torch.index_select(nodes.view(-1, channels), 0, rows.reshape(-1), out=ends.view(-1, channels))
    return ends.view(n, n_rows, 2 * channels)


def _rotate_in(nodes: Tensor, rotations: Tensor, rows: Tensor, radial: Tensor, out: Tensor, layout: _Layout) -> None:
    """Write the rotated and scaled ends of a run of edges to `out`, [n, coefficients, 2 channels]."""
    for piece in _pieces(out.shape[0]):
        torch.bmm(rotations[piece], _ends(nodes, rows[piece]), out=out[piece])
        _scale(out[piece], radial[piece], layout)


def _rotate_in_backward(
    nodes: Tensor,
    rotations: Tensor,
    rows: Tensor,
    radial: Tensor,
    to_scaled: Tensor,
    to_nodes: Tensor,
    to_rotations: Tensor,
    to_radial: Tensor,
    layout: _Layout,
) -> None:
    """Add to `to_nodes`, and write the gradients of rotations and radial factors; `to_scaled` is used up."""
    channels = nodes.shape[2]
    for piece in _pieces(to_scaled.shape[0]):
        ends, gradient = _ends(nodes, rows[piece]), to_scaled[piece]
        turned = scratch("turned", gradient.shape[0], gradient.shape[1] * gradient.shape[2], nodes).view_as(gradient)
        torch.bmm(rotations[piece], ends, out=turned)
        _radial_backward(gradient, turned, to_radial[piece], layout)
        _scale(gradient, radial[piece], layout)
        torch.bmm(gradient, ends.mT, out=to_rotations[piece])
        # The ends are read for the last time above, so their memory takes their gradient.
        torch.bmm(rotations[piece].mT, gradient, out=ends)
        to_nodes.view(-1, channels).index_add_(0, rows[piece].reshape(-1), ends.view(-1, channels))


def _row_index(edge_index: Tensor, n_rows: int) -> Tensor:
    """Return the row (node, coefficient) of both ends of each edge, [n_edges, n_rows, 2]."""
    offsets = torch.arange(n_rows, device=edge_index.device)
    return edge_index.T[:, None, :] * n_rows + offsets[None, :, None]


class _EdgeMessage(Function):
    @staticmethod
    def forward(
        ctx: Any,
        nodes: Tensor,
        rotations: Tensor,
        envelope_rotations: Tensor,
        radial_hidden: Tensor,
        edge_index: Tensor,
        weights: Sequence[MessageWeights],
        segments: Sequence[EdgeSegment],
        shape: MessageShape,
    ) -> Tensor:
        layout, hidden, channels = _Layout(shape), shape.hidden, shape.channels
        n_edges, n_rows, n_gates = edge_index.shape[1], nodes.shape[1], layout.n_gates
        radial = empty(n_edges, 2 * channels * sum(shape.sizes), nodes)
        before_gate = empty(n_edges, n_gates + layout.n_coefficients * hidden, nodes)
        convolved = empty(n_edges, layout.n_coefficients * channels, nodes)
        messages = torch.zeros_like(nodes)
        rows = _row_index(edge_index, n_rows)
        for start, stop, number in _runs(segments):
            run, n, weight = slice(start, stop), stop - start, weights[number]
            _linear(radial_hidden[run], weight.radial, weight.radial_bias, radial[run])
            flat = scratch("scaled", n, layout.n_coefficients * 2 * channels, nodes)
            _rotate_in(nodes, rotations[run], rows[run], radial[run], flat.view(n, -1, 2 * channels), layout)
            for m, block in enumerate(weight.conv_1.blocks):
                out = before_gate[run, layout.values(m, hidden, n_gates)]
                _linear(flat[:, layout.values(m, 2 * channels)], block, weight.conv_1.bias if m == 0 else None, out)
            gated = scratch("gated", n, layout.n_coefficients * hidden, nodes)
            _gate(before_gate[run], gated, layout)
            for m, block in enumerate(weight.conv_2.blocks):
                out = convolved[run, layout.values(m, channels)]
                _linear(gated[:, layout.values(m, hidden)], block, weight.conv_2.bias if m == 0 else None, out)
            back = scratch("back", n, n_rows * channels, nodes).view(n, -1, channels)
            torch.bmm(envelope_rotations[run].mT, convolved[run].view(n, -1, channels), out=back)
            messages.index_add_(0, edge_index[1, run], back)
        ctx.save_for_backward(
            nodes, rotations, envelope_rotations, radial_hidden, edge_index, radial, before_gate, convolved
        )
        ctx.weights, ctx.segments, ctx.shape = weights, segments, shape
        return messages

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = grad_outputs
        nodes, rotations, envelope_rotations, radial_hidden, edge_index, *kept = ctx.saved_tensors
        if torch.is_grad_enabled():
            inputs = (nodes, rotations, envelope_rotations, radial_hidden)
            return (*_differentiable_backward(ctx, inputs, edge_index, gradient), None, None, None, None)
        radial, before_gate, convolved = kept
        layout, hidden, channels = _Layout(ctx.shape), ctx.shape.hidden, ctx.shape.channels
        n_rows, n_gates = nodes.shape[1], layout.n_gates
        gradient = gradient.contiguous()
        to_nodes, to_hidden = torch.zeros_like(nodes), torch.empty_like(radial_hidden)
        to_rotations, to_envelope = torch.empty_like(rotations), torch.empty_like(envelope_rotations)
        rows = _row_index(edge_index, n_rows)
        for start, stop, number in _runs(ctx.segments):
            run, n, weight = slice(start, stop), stop - start, ctx.weights[number]
            at_target = scratch("back", n, n_rows * channels, nodes)
            torch.index_select(gradient.flatten(1), 0, edge_index[1, run], out=at_target)
            at_target = at_target.view(n, -1, channels)
            to_convolved = scratch("to_convolved", n, layout.n_coefficients * channels, nodes)
            torch.bmm(envelope_rotations[run], at_target, out=to_convolved.view(n, -1, channels))
            torch.bmm(convolved[run].view(n, -1, channels), at_target.mT, out=to_envelope[run])
            to_gated = scratch("gated", n, layout.n_coefficients * hidden, nodes)
            for m, block in enumerate(weight.conv_2.blocks):
                out = to_gated[:, layout.values(m, hidden)]
                torch.mm(to_convolved[:, layout.values(m, channels)], block, out=out)
            to_gate = scratch("to_gate", n, before_gate.shape[1], nodes)
            _gate_backward(before_gate[run], to_gated, to_gate, layout)
            to_scaled = scratch("scaled", n, layout.n_coefficients * 2 * channels, nodes)
            for m, block in enumerate(weight.conv_1.blocks):
                out = to_scaled[:, layout.values(m, 2 * channels)]
                torch.mm(to_gate[:, layout.values(m, hidden, n_gates)], block, out=out)
            to_radial = scratch("to_radial", n, radial.shape[1], nodes)
            _rotate_in_backward(
                nodes,
                rotations[run],
                rows[run],
                radial[run],
                to_scaled.view(n, -1, 2 * channels),
                to_nodes,
                to_rotations[run],
                to_radial,
                layout,
            )
            torch.mm(to_radial, weight.radial, out=to_hidden[run])
        return to_nodes, to_rotations, to_envelope, to_hidden, None, None, None, None


def _differentiable_backward(
    ctx: Any, inputs: tuple[Tensor, ...], edge_index: Tensor, gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the inputs as a graph that can be differentiated again, through the reference."""
    # Views cut the inputs off from each other: nodes depend on the rotations too, through earlier blocks, and only the
    # direct part belongs to this operation.
    inputs = tuple(tensor.view_as(tensor) for tensor in inputs)
    nodes, rotations, envelope_rotations, hidden = inputs
    messages = reference.edge_message(
        nodes, edge_index, rotations, envelope_rotations, hidden, ctx.weights, ctx.segments, ctx.shape
    )
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    found = iter(torch.autograd.grad(messages, wanted, gradient, create_graph=True))
    return tuple(next(found) if tensor.requires_grad else None for tensor in inputs)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    if bias is None:
        torch.mm(x, weight.T, out=out)
    else:
        torch.addmm(bias, x, weight.T, out=out)


def _scale(turned: Tensor, radial: Tensor, layout: _Layout) -> None:
    """Multiply [n, coefficients, 2 channels] by the radial factors in place; +m and -m share a slab."""
    width, start = turned.shape[2], 0
    for m, size in enumerate(layout.shape.sizes):
        slab = radial[:, start : start + size * width].view(-1, 1, size, width)
        part = turned[:, layout.coefficients(m)]
        part.unflatten(1, (1 if m == 0 else 2, size)).mul_(slab)
        start += size * width


def _radial_backward(to_scaled: Tensor, turned: Tensor, to_radial: Tensor, layout: _Layout) -> None:
    """Write the gradient of the radial factors: sums over +m and -m of gradient times rotated value."""
    width, start = turned.shape[2], 0
    for m, size in enumerate(layout.shape.sizes):
        rows = layout.coefficients(m)
        out = to_radial[:, start : start + size * width].view(-1, size, width)
        torch.mul(to_scaled[:, rows.start : rows.start + size], turned[:, rows.start : rows.start + size], out=out)
        if m:
            imaginary = slice(rows.start + size, rows.stop)
            out.addcmul_(to_scaled[:, imaginary], turned[:, imaginary])
        start += size * width


def _gate(before: Tensor, gated: Tensor, layout: _Layout) -> None:
    """Write the gate activation of `before` [n, gates + coefficients * hidden] to `gated`."""
    hidden, n_gates, n = layout.shape.hidden, layout.n_gates, before.shape[0]
    gates = scratch("gates", n, n_gates + hidden, before)
    # One sigmoid serves the gates and the SiLU of the scalars, which stand side by side.
    torch.sigmoid(before[:, : n_gates + hidden], out=gates)
    scalars = before[:, n_gates : n_gates + hidden]
    torch.mul(scalars, gates[:, n_gates:], out=gated[:, :hidden])
    for part, out, factors in _gated_parts(before, gated, gates, layout):
        torch.mul(part, factors, out=out)


def _gate_backward(before: Tensor, to_gated: Tensor, to_before: Tensor, layout: _Layout) -> None:
    """Write the gradient of `before` for the gradient of the gated values."""
    hidden, n_gates, n = layout.shape.hidden, layout.n_gates, before.shape[0]
    gates = scratch("gates", n, n_gates + hidden, before)
    torch.sigmoid(before[:, : n_gates + hidden], out=gates)
    scalars, sigmoid = before[:, n_gates : n_gates + hidden], gates[:, n_gates:]
    # SiLU'(v) = s (1 + v (1 - s))
    slope = torch.addcmul(torch.ones_like(sigmoid), scalars, 1 - sigmoid).mul_(sigmoid)
    torch.mul(to_gated[:, :hidden], slope, out=to_before[:, n_gates : n_gates + hidden])
    to_gates = to_before[:, :n_gates].view(n, layout.shape.lmax, hidden)
    to_gates.zero_()
    parts = _gated_parts(before, to_gated, gates, layout)
    outs = _gated_parts(before, to_before[:, n_gates:], gates, layout)
    for m, ((value, to_part, factors), (_, out, _)) in enumerate(zip(parts, outs, strict=True)):
        torch.mul(to_part, factors, out=out)
        degrees = to_gates[:, max(m, 1) - 1 :]
        for sign in range(value.shape[1]):
            degrees.addcmul_(to_part[:, sign], value[:, sign])
    open_gates = gates[:, :n_gates].view_as(to_gates)
    to_gates.mul_(open_gates).mul_(1 - open_gates)


def _gated_parts(
    before: Tensor, values: Tensor, gates: Tensor, layout: _Layout
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield for each order the values before the gate, the columns of `values`, and the gates, [n, signs, n_m, hidden].

    Order 0 leaves out l = 0, which has no gate.
    """
    shape, n = layout.shape, before.shape[0]
    hidden = shape.hidden
    open_gates = gates[:, : layout.n_gates].view(n, 1, shape.lmax, hidden)
    for m, size in enumerate(shape.sizes):
        columns = layout.values(m, hidden)
        start, signs, n_degrees = columns.start, 2, size
        if m == 0:
            start, signs, n_degrees = start + hidden, 1, size - 1
        source = before[:, layout.n_gates + start : layout.n_gates + columns.stop]
        target = values[:, start : columns.stop]
        split = (signs, n_degrees, hidden)
        yield source.unflatten(1, split), target.unflatten(1, split), open_gates[:, :, max(m, 1) - 1 :]
