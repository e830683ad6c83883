"""Every operation on edges in plain PyTorch: any shape, any derivative, any device. The definition and the oracle.

Edge features travel as m-blocks (MODEL.md section 4.3), one matrix per order m:

* block 0 is [n_edges, n_0 * channels], degrees l = 0..lmax slow, channels fast;
* block m >= 1 is [n_edges, 2 * n_m * channels], first all (l, +m), then all (l, -m), l = m..lmax,

with n_m = lmax - m + 1. They are the operands of the matrix products, so nothing is joined or split between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from edgewise.so3 import block_sizes, edge_rotations


@dataclass(frozen=True)
class EdgeGeometry:
    """What the network reads of each edge's geometry.

    Attributes:
        gaussians: [n_edges, n_basis] radial basis.
        rotations: [n_edges, n_edge_coefficients, n_coefficients] into the edge frame, rows in m-major order; operations
            that take packed ones have [n_edges, number of packed entries].
        envelope_rotations: The same multiplied by the envelope of the edge, for the way back to the nodes.
    """

    gaussians: Tensor
    rotations: Tensor
    envelope_rotations: Tensor

    def chunk(self, start: int, stop: int) -> EdgeGeometry:
        """Return the geometry of edges start..stop - 1."""
        return EdgeGeometry(self.gaussians[start:stop], self.rotations[start:stop], self.envelope_rotations[start:stop])


@dataclass(frozen=True)
class SO2Weights:
    """Weights of one SO(2) linear map: for m >= 1 the real block matrix [[W1, -W2], [W2, W1]] (MODEL.md section 8).

    Attributes:
        blocks: One [n_out, n_in] matrix per order m.
        bias: [n_out of m = 0].
    """

    blocks: tuple[Tensor, ...]
    bias: Tensor


@dataclass(frozen=True)
class MessageWeights:
    """Weights of the edge part of one block.

    Attributes:
        conv_1: First SO(2) map.
        conv_2: Second SO(2) map.
        radial: [sum of n_m * 2 * channels, edge_channels], last layer of the radial network.
        radial_bias: Its bias.
    """

    conv_1: SO2Weights
    conv_2: SO2Weights
    radial: Tensor
    radial_bias: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        """Return every tensor."""
        convolutions = (self.conv_1, self.conv_2)
        return (
            *(tensor for item in convolutions for tensor in (*item.blocks, item.bias)),
            self.radial,
            self.radial_bias,
        )


@dataclass(frozen=True)
class MessageShape:
    """Sizes of a block's edge part.

    Attributes:
        lmax: Largest degree.
        mmax: Largest order on edges.
        channels: Width of each node coefficient.
        hidden: Width of each coefficient between the two SO(2) maps.
    """

    lmax: int
    mmax: int
    channels: int
    hidden: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of degrees of each order m = 0..mmax."""
        return block_sizes(self.lmax, self.mmax)


@dataclass(frozen=True)
class EdgeSegment:
    """A run of edges start..stop - 1 whose systems share the weights with number `weights`."""

    start: int
    stop: int
    weights: int


def edge_geometry(
    edge_vec: Tensor,
    cutoff: float,
    centres: Tensor,
    lmax: int,
    mmax: int,
    dtype: torch.dtype,
    *,
    make_rotations: Callable[[Tensor, int, int], Tensor] = edge_rotations,
) -> EdgeGeometry:
    """Compute radial basis, envelope and rotations of each edge (MODEL.md sections 4 and 5).

    Args:
        edge_vec: [n_edges, 3], Å, from target to source; float64, so that the geometry is exact in every precision.
        cutoff: Å.
        centres: [n_basis] centres of the Gaussians, Å, float64.
        lmax: Largest degree.
        mmax: Largest order on edges.
        dtype: Type of the results.
        make_rotations: Makes rotations from directions [n_edges, 3], lmax and mmax.

    Returns:
        The geometry; gradients flow to `edge_vec`.
    """
    distance = torch.linalg.vector_norm(edge_vec, dim=-1)
    directions = edge_vec / distance[:, None]
    u = distance / cutoff
    # Exponent 5: value, first and second derivative vanish at the cutoff.
    envelope = torch.where(u < 1, 1 - 21 * u**5 + 35 * u**6 - 15 * u**7, torch.zeros_like(u))
    width = 2 * (centres[1] - centres[0])
    gaussians = torch.exp(-0.5 * ((distance[:, None] - centres) / width) ** 2)
    rotations = make_rotations(directions, lmax, mmax)
    scales = envelope.reshape(-1, *[1] * (rotations.dim() - 1))
    return EdgeGeometry(
        gaussians=gaussians.to(dtype),
        rotations=rotations.to(dtype),
        envelope_rotations=(rotations * scales).to(dtype),
    )


def gather_rotate(nodes: Tensor, edge_index: Tensor, rotations: Tensor, radial: Tensor, lmax: int) -> list[Tensor]:
    """Gather both ends of each edge, rotate them into its frame and scale them by the radial network.

    Args:
        nodes: [n_atoms, n_coefficients, channels].
        edge_index: [2, n_edges], row 0 source, row 1 target.
        rotations: [n_edges, n_edge_coefficients, n_coefficients].
        radial: [n_edges, sum of n_m * 2 * channels], slabs m = 0..mmax, l slow; +m and -m share a slab.
        lmax: Largest degree.

    Returns:
        m-blocks with 2 * channels per coefficient, source channels first.
    """
    n_edges, channels = rotations.shape[0], 2 * nodes.shape[2]
    sizes = block_sizes(lmax, _mmax_of(rotations.shape[1], lmax))
    # index_select, since the derivative of indexing by brackets is many times slower.
    ends = torch.cat([nodes.index_select(0, end) for end in edge_index], dim=-1)
    rotated = torch.split(rotations @ ends, [size * (1 if m == 0 else 2) for m, size in enumerate(sizes)], dim=1)
    slabs = torch.split(radial, [size * channels for size in sizes], dim=1)
    blocks: list[Tensor] = []
    for m, (part, slab) in enumerate(zip(rotated, slabs, strict=True)):
        signs = 1 if m == 0 else 2
        scaled = part.reshape(n_edges, signs, sizes[m] * channels) * slab[:, None, :]
        blocks.append(scaled.flatten(1))
    return blocks


def so2_linear(
    blocks: Sequence[Tensor], weights: Sequence[SO2Weights], segments: Sequence[EdgeSegment]
) -> list[Tensor]:
    """Apply an SO(2) linear map: one matrix product per order m, with the weights of each edge's system.

    Args:
        blocks: m-blocks [n_edges, n_in of m].
        weights: One set of weights per distinct mixture of experts.
        segments: Runs of edges that cover 0..n_edges in order.

    Returns:
        m-blocks [n_edges, n_out of m].
    """
    outputs: list[Tensor] = []
    for m, block in enumerate(blocks):
        parts = [
            functional.linear(
                block[segment.start : segment.stop] if len(segments) > 1 else block,
                weights[segment.weights].blocks[m],
                weights[segment.weights].bias if m == 0 else None,
            )
            for segment in segments
        ]
        outputs.append(parts[0] if len(parts) == 1 else torch.cat(parts))
    return outputs


def gate(blocks: Sequence[Tensor], lmax: int, channels: int) -> list[Tensor]:
    """Apply the gate activation to m-blocks whose block 0 begins with the gate scalars (MODEL.md section 8, step 4).

    Args:
        blocks: m-blocks; block 0 is [n_edges, (lmax + lmax + 1) * channels].
        lmax: Largest degree.
        channels: Width of each coefficient.

    Returns:
        m-blocks without the gate scalars: SiLU for l = 0, value times sigmoid(gate of l) for every other coefficient.
    """
    scalars, values = torch.split(blocks[0], [lmax * channels, (lmax + 1) * channels], dim=1)
    gates = torch.sigmoid(scalars)
    first, rest = torch.split(values, [channels, lmax * channels], dim=1)
    outputs = [torch.cat([functional.silu(first), rest * gates], dim=1)]
    for m, block in enumerate(blocks[1:], start=1):
        # Order m holds the degrees from m on, so it takes the gates of these.
        factors = gates[:, (m - 1) * channels :]
        gated = block.unflatten(1, (2, factors.shape[1])) * factors[:, None, :]
        outputs.append(gated.flatten(1))
    return outputs


def grid_activation(blocks: Sequence[Tensor], to_grid: Tensor, from_grid: Tensor, channels: int) -> list[Tensor]:
    """Apply the "s2" activation: SiLU on a grid of the sphere (MODEL.md section 8, step 4).

    Args:
        blocks: m-blocks; block 0 begins with `channels` extra scalars.
        to_grid: [n_points, n_edge_coefficients].
        from_grid: [n_points, n_edge_coefficients].
        channels: Width of each coefficient.

    Returns:
        m-blocks without the extra scalars.
    """
    scalars, values = blocks[0][:, :channels], blocks[0][:, channels:]
    sizes = [values.shape[1], *(block.shape[1] for block in blocks[1:])]
    coefficients = torch.cat([values, *blocks[1:]], dim=1).unflatten(1, (to_grid.shape[1], channels))
    activated = from_grid.T @ functional.silu(to_grid @ coefficients)
    outputs = list(torch.split(activated.flatten(1), sizes, dim=1))
    outputs[0] = torch.cat([functional.silu(scalars), outputs[0][:, channels:]], dim=1)
    return outputs


def rotate_scatter(
    blocks: Sequence[Tensor], edge_index: Tensor, envelope_rotations: Tensor, n_atoms: int, channels: int
) -> Tensor:
    """Rotate edge features back, scale them by the envelope and sum them at each edge's target.

    Args:
        blocks: m-blocks; fewer orders than `envelope_rotations` has rows for are taken as zero above.
        edge_index: [2, n_edges].
        envelope_rotations: [n_edges, n_edge_coefficients, n_coefficients].
        n_atoms: Number of nodes.
        channels: Width of each coefficient.

    Returns:
        [n_atoms, n_coefficients, channels].
    """
    n_coefficients = envelope_rotations.shape[2]
    joined = blocks[0] if len(blocks) == 1 else torch.cat(list(blocks), dim=1)
    features = joined.unflatten(1, (joined.shape[1] // channels, channels))
    back = envelope_rotations[:, : features.shape[1]].mT
    messages = back @ features
    nodes = messages.new_zeros(n_atoms, n_coefficients, channels)
    return nodes.index_add(0, edge_index[1], messages)


def radial_factors(hidden: Tensor, weights: Sequence[MessageWeights], segments: Sequence[EdgeSegment]) -> Tensor:
    """Apply the last layer of the radial network.

    Args:
        hidden: [n_edges, edge_channels].
        weights: One set per distinct mixture.
        segments: Runs of edges that share weights.

    Returns:
        [n_edges, sum of n_m * 2 * channels].
    """
    if len(segments) == 1:
        only = weights[segments[0].weights]
        return functional.linear(hidden, only.radial, only.radial_bias)
    parts = [
        functional.linear(
            hidden[item.start : item.stop], weights[item.weights].radial, weights[item.weights].radial_bias
        )
        for item in segments
    ]
    return torch.cat(parts)


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
    """Compute the summed messages of a block with gate activation (MODEL.md section 8, steps 2 to 6).

    Args:
        nodes: [n_atoms, n_coefficients, channels].
        edge_index: [2, n_edges], row 0 source, row 1 target.
        rotations: [n_edges, n_edge_coefficients, n_coefficients].
        envelope_rotations: The same times the envelope.
        radial_hidden: [n_edges, edge_channels], input of the radial network's last layer.
        weights: One set per distinct mixture of experts.
        segments: Runs of edges that share weights; they cover 0..n_edges in order.
        shape: Sizes.

    Returns:
        [n_atoms, n_coefficients, channels].
    """
    radial = radial_factors(radial_hidden, weights, segments)
    blocks = gather_rotate(nodes, edge_index, rotations, radial, shape.lmax)
    blocks = so2_linear(blocks, [item.conv_1 for item in weights], segments)
    blocks = gate(blocks, shape.lmax, shape.hidden)
    blocks = so2_linear(blocks, [item.conv_2 for item in weights], segments)
    return rotate_scatter(blocks, edge_index, envelope_rotations, nodes.shape[0], shape.channels)


def _mmax_of(n_edge_coefficients: int, lmax: int) -> int:
    """Return the largest order that edge features with this many coefficients hold."""
    total, m = lmax + 1, 0
    while total < n_edge_coefficients:
        m += 1
        total += 2 * (lmax - m + 1)
    return m
