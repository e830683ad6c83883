"""The edge steps of mode fused in plain PyTorch: any shape, any device. The definition and the oracle of its kernels.

Forward and adjoint of each operation stand side by side. An adjoint takes the gradient of the operation's output and returns
the gradients of what carries them further. What an edge's geometry receives is three numbers (MODEL.md section 10.1):

* the torque (T_x, T_z) about the edge frame's axes: turning the frame is all that a direction can do to rotated features;
* the slope dE/dd at fixed direction, through the envelope and the radial networks.

`edge_gradient` makes dE/d(edge_vec) of their sums over all layers, so no gradient of a rotation matrix exists. Edges are
sorted by target; every sum over the edges of an atom runs in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.ops.reference.edges import EdgeSegment, MessageShape, SO2Weights
from edgewise.ops.reference.feed_forward import silu_slope
from edgewise.so3 import edge_frames, generators, rotation_rows


@dataclass(frozen=True)
class EdgeOrder:
    """The edges of each atom, as a target and as a source.

    Attributes:
        source: [n_edges].
        target: [n_edges], ascending.
        target_starts: [n_atoms + 1], where the edges into each atom begin.
        by_source: [n_edges], the edges in the order of their sources.
        source_starts: [n_atoms + 1], where the edges out of each atom begin in `by_source`.
    """

    source: Tensor
    target: Tensor
    target_starts: Tensor
    by_source: Tensor
    source_starts: Tensor


@dataclass(frozen=True)
class EdgeGeometry:
    """What the network reads of each edge's geometry, with derivatives with respect to the distance.

    Attributes:
        distance: [n_edges], Å.
        frames: [n_edges, 3, 3], rotations that take each edge's direction to +y.
        rotations: [n_edges, n_coefficients, n_coefficients], of node coefficients into the frames; rows in m-major order
            of all orders up to lmax, so that the first rows are those that the network keeps.
        envelope: [n_edges].
        envelope_slope: [n_edges], 1/Å.
        gaussians: [n_edges, n_basis].
        gaussian_slopes: [n_edges, n_basis], 1/Å.
    """

    distance: Tensor
    frames: Tensor
    rotations: Tensor
    envelope: Tensor
    envelope_slope: Tensor
    gaussians: Tensor
    gaussian_slopes: Tensor


def edge_order(edge_index: Tensor, n_atoms: int) -> EdgeOrder:
    """Return the edges of each atom.

    Args:
        edge_index: [2, n_edges], row 0 source, row 1 target; sorted by target.
        n_atoms: Number of atoms.
    """
    source, target = edge_index.contiguous()
    # A stable sort keeps the order of targets, so that the sums over sources have a fixed order too.
    by_source = torch.argsort(source, stable=True)
    return EdgeOrder(source, target, _starts(target, n_atoms), by_source, _starts(source[by_source], n_atoms))


def _starts(ascending: Tensor, n: int) -> Tensor:
    return torch.searchsorted(ascending, torch.arange(n + 1, device=ascending.device))


def gaussians_with_slopes(distance: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return the radial basis, [n_edges, n_basis], and its derivative with respect to the distance, 1/Å.

    Args:
        distance: [n_edges], Å.
        centres: [n_basis] centres of the Gaussians, Å.
    """
    width = 2 * (centres[1] - centres[0])
    offsets = (distance[:, None] - centres) / width
    gaussians = torch.exp(-0.5 * offsets**2)
    return gaussians, gaussians * (-offsets / width)


def edge_geometry(edge_vec: Tensor, cutoff: float, centres: Tensor, lmax: int, dtype: torch.dtype) -> EdgeGeometry:
    """Compute distances, frames, envelope and radial basis (MODEL.md sections 4 and 5).

    Args:
        edge_vec: [n_edges, 3], Å, from target to source; float64.
        cutoff: Å.
        centres: [n_basis] centres of the Gaussians, Å, float64.
        lmax: Largest degree.
        dtype: Type of the results.
    """
    distance = torch.linalg.vector_norm(edge_vec, dim=-1)
    frames = edge_frames(edge_vec / distance[:, None])
    u = distance / cutoff
    inside = u < 1
    envelope = torch.where(inside, 1 - 21 * u**5 + 35 * u**6 - 15 * u**7, 0.0)
    envelope_slope = torch.where(inside, -105 * u**4 * (1 - u) ** 2, 0.0) / cutoff
    gaussians, slopes = gaussians_with_slopes(distance, centres)
    return EdgeGeometry(
        distance=distance.to(dtype),
        frames=frames.to(dtype),
        rotations=rotation_rows(frames, lmax, lmax).to(dtype),
        envelope=envelope.to(dtype),
        envelope_slope=envelope_slope.to(dtype),
        gaussians=gaussians.to(dtype),
        gaussian_slopes=slopes.to(dtype),
    )


def edge_gradient(geometry: EdgeGeometry, tangents: Tensor) -> Tensor:
    """Return dE/d(edge_vec), [n_edges, 3].

    Args:
        geometry: Distances and frames.
        tangents: [n_edges, 3], the sums of (T_x, T_z, dE/dd).
    """
    torque_x, torque_z, slope = tangents.unbind(-1)
    # In the frame the direction is y, and moving its end by dv turns it by (y x dv) / d.
    in_frame = torch.stack([torque_z / geometry.distance, slope, -torque_x / geometry.distance], dim=-1)
    return (geometry.frames.mT @ in_frame[:, :, None])[:, :, 0]


def gather_rotate(
    nodes: Tensor, order: EdgeOrder, geometry: EdgeGeometry, radial: Tensor, shape: MessageShape
) -> list[Tensor]:
    """Gather both ends of each edge, rotate them into its frame and scale them by the radial factors.

    Args:
        nodes: [n_atoms, n_coefficients, channels].
        order: Ends of the edges.
        geometry: Rotations.
        radial: [n_edges, sum of n_m * 2 * channels].
        shape: Sizes.

    Returns:
        m-blocks with 2 * channels per coefficient, source channels first.
    """
    rotated = geometry.rotations[:, : _n_kept(shape)] @ _ends(nodes, order)
    return [part.flatten(1) for part in _scaled(rotated, radial, shape)]


def gather_rotate_adjoint(
    gradients: Sequence[Tensor],
    nodes: Tensor,
    order: EdgeOrder,
    geometry: EdgeGeometry,
    radial: Tensor,
    radial_slope: Tensor,
    shape: MessageShape,
) -> tuple[Tensor, Tensor]:
    """Adjoint of `gather_rotate`.

    With y = D x the rotated ends, r their factors and g the gradient of r y: the nodes get D^T (g r), the torque is
    <g r, L_k y>, and dE/dd is <g y, dr/dd>.

    Args:
        gradients: Gradients of the m-blocks.
        nodes: As before.
        order: As before.
        geometry: As before.
        radial: As before.
        radial_slope: Derivatives of the factors with respect to the distance, 1/Å.
        shape: As before.

    Returns:
        The gradient of the nodes, and the tangents [n_edges, 3].
    """
    full = geometry.rotations @ _ends(nodes, order)
    n_kept = _n_kept(shape)
    gradient = torch.cat([block.unflatten(1, (-1, 2 * shape.channels)) for block in gradients], dim=1)
    slope = torch.cat(_scaled(full[:, :n_kept], radial_slope, shape), dim=1).mul_(gradient).sum((1, 2))
    scaled = torch.cat(_scaled(gradient, radial, shape), dim=1)
    tangents = torch.stack([*_torque(scaled, full, shape), slope], dim=-1)
    to_ends = geometry.rotations[:, :n_kept].mT @ scaled
    to_source, to_target = to_ends.split(shape.channels, dim=2)
    to_nodes = segment_sum(to_target, order.target_starts)
    return to_nodes + segment_sum(to_source[order.by_source], order.source_starts), tangents


def so2_linear_adjoint(
    gradients: Sequence[Tensor], weights: Sequence[SO2Weights], segments: Sequence[EdgeSegment]
) -> list[Tensor]:
    """Adjoint of `so2_linear`: the gradients of its input blocks for those of its output blocks."""
    outputs: list[Tensor] = []
    for m, gradient in enumerate(gradients):
        if len(segments) == 1:
            outputs.append(gradient @ weights[segments[0].weights].blocks[m])
            continue
        parts = [gradient[item.start : item.stop] @ weights[item.weights].blocks[m] for item in segments]
        outputs.append(torch.cat(parts))
    return outputs


def gate_adjoint(gradients: Sequence[Tensor], blocks: Sequence[Tensor], shape: MessageShape) -> list[Tensor]:
    """Adjoint of `gate`.

    Args:
        gradients: Gradients of the gated m-blocks.
        blocks: What was gated; block 0 begins with the gate scalars.
        shape: Sizes.

    Returns:
        Gradients of `blocks`.
    """
    hidden, lmax = shape.hidden, shape.lmax
    scalars, first, rest = torch.split(blocks[0], [lmax * hidden, hidden, lmax * hidden], dim=1)
    to_first, to_rest = torch.split(gradients[0], [hidden, lmax * hidden], dim=1)
    gates = torch.sigmoid(scalars)
    to_gates = (to_rest * rest).unflatten(1, (lmax, hidden))
    outputs: list[Tensor] = []
    for m, (block, gradient) in enumerate(zip(blocks[1:], gradients[1:], strict=True), start=1):
        # Order m holds the degrees from m on.
        size = shape.sizes[m]
        factors = gates[:, (m - 1) * hidden :].unflatten(1, (1, size, hidden))
        to_gated = gradient.unflatten(1, (2, size, hidden))
        outputs.append((to_gated * factors).flatten(1))
        of_degrees = (to_gated * block.unflatten(1, (2, size, hidden))).sum(1)
        to_gates = torch.cat([to_gates[:, : m - 1], to_gates[:, m - 1 :] + of_degrees], dim=1)
    to_scalars = to_gates.flatten(1) * gates * (1 - gates)
    return [torch.cat([to_scalars, to_first * silu_slope(first), to_rest * gates], dim=1), *outputs]


def rotate_sum(blocks: Sequence[Tensor], order: EdgeOrder, geometry: EdgeGeometry, channels: int) -> Tensor:
    """Rotate edge features back, scale them by the envelope and sum them at each edge's target.

    Args:
        blocks: m-blocks, from m = 0 on; higher orders are zero.
        order: Targets.
        geometry: Rotations and envelope.
        channels: Width of each coefficient.

    Returns:
        [n_atoms, n_coefficients, channels].
    """
    features = torch.cat(list(blocks), dim=1).unflatten(1, (-1, channels))
    back = geometry.rotations[:, : features.shape[1]].mT @ features
    return segment_sum(back * geometry.envelope[:, None, None], order.target_starts)


def rotate_sum_adjoint(
    gradient: Tensor, blocks: Sequence[Tensor], order: EdgeOrder, geometry: EdgeGeometry, shape: MessageShape
) -> tuple[list[Tensor], Tensor]:
    """Adjoint of `rotate_sum`.

    With G = D g the rotated gradient at the target and z the blocks: they get env G, the torque is env <L_k G, z>, and
    dE/dd is env' <G, z>.

    Args:
        gradient: [n_atoms, n_coefficients, channels], of the sums.
        blocks: The blocks that were rotated back.
        order: Targets.
        geometry: Rotations, envelope and its slope.
        shape: Sizes.

    Returns:
        The gradients of the blocks, and the tangents [n_edges, 3].
    """
    features = torch.cat(list(blocks), dim=1).unflatten(1, (-1, shape.channels))
    n_rows = features.shape[1]
    full = geometry.rotations @ gradient[order.target]
    slope = geometry.envelope_slope * (full[:, :n_rows] * features).sum((1, 2))
    # The generators are antisymmetric: -<G, L z> = <L G, z>.
    torque = [geometry.envelope * part for part in _torque(features, full, shape)]
    scaled = full[:, :n_rows] * geometry.envelope[:, None, None]
    sizes = [block.shape[1] for block in blocks]
    return list(scaled.flatten(1).split(sizes, dim=1)), torch.stack([*torque, slope], dim=-1)


def segment_sum(values: Tensor, starts: Tensor) -> Tensor:
    """Sum runs of rows in their order.

    Args:
        values: [n, ...].
        starts: [n_runs + 1], ascending.

    Returns:
        [n_runs, ...].
    """
    if values.shape[0] == 0:
        return values.new_zeros(starts.shape[0] - 1, *values.shape[1:])
    flat = torch.segment_reduce(values.flatten(1), "sum", offsets=starts, axis=0, unsafe=True)
    return flat.unflatten(1, values.shape[1:])


def _n_kept(shape: MessageShape) -> int:
    """Return the number of edge coefficients."""
    return shape.sizes[0] + 2 * sum(shape.sizes[1:])


def _ends(nodes: Tensor, order: EdgeOrder) -> Tensor:
    return torch.cat([nodes[order.source], nodes[order.target]], dim=2)


def _scaled(rotated: Tensor, radial: Tensor, shape: MessageShape) -> list[Tensor]:
    """Multiply [n_edges, edge coefficients, 2 channels] by radial factors; +m and -m share theirs. One tensor an order."""
    width, parts = rotated.shape[2], []
    row = start = 0
    for m, size in enumerate(shape.sizes):
        signs = 1 if m == 0 else 2
        slab = radial[:, start : start + size * width].unflatten(1, (1, size, width))
        part = rotated[:, row : row + signs * size].unflatten(1, (signs, size))
        parts.append((part * slab).flatten(1, 2))
        row, start = row + signs * size, start + size * width
    return parts


def _torque(gradient: Tensor, full: Tensor, shape: MessageShape) -> list[Tensor]:
    """Return <gradient, L_k y> for the axes x and z, where the gradient has the first rows of y = `full` only."""
    n_rows = gradient.shape[1]
    turned = generators(shape.lmax).to(full)[:, :n_rows]
    return [((axis @ full) * gradient).sum((1, 2)) for axis in turned]
