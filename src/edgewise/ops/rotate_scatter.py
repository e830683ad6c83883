"""Edge -> node: rotate m-blocks back, scale by the envelope and sum at each edge's target (lmax = 2).

The formula is `reference.rotate_scatter`; with the rotation times envelope D, blocks z and the gradient G of an edge's
target, the gradients are dE/dz = D G and dE/dD[m, j] = sum over channels of z[m] G[j]. Both directions run in one kernel
each, without [n_edges, 9, channels] in memory; the path for deterministic algorithms keeps that tensor and sums with
`index_add`.
"""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from edgewise.ops.gather_rotate import N_COEFFICIENTS, add_or_store, dot3, dot5, load3, load5
from edgewise.ops.launch import (
    MAX_PROGRAMS,
    check_tensor,
    empty,
    kernel_op,
    once_differentiable,
    programs,
    warps,
    width,
    zeros,
)
from edgewise.ops.packed_rotation import as_packed, mmax_of_packed


@triton.jit
def _rotate_scatter_forward(
    block_0,
    block_1,
    block_2,
    stride_0,
    stride_1,
    stride_2,
    edge_index,
    rotations,
    out,
    n_edges,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    MMAX: tl.constexpr,
    ORDERS: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):
    """Rotate back. A task is an edge for l <= 1 or for l = 2; orders above ORDERS are zero."""
    column = tl.arange(0, BLOCK)
    inside = column < CHANNELS
    for edge in range(tl.program_id(0).to(tl.int64), n_edges, tl.num_programs(0)):
        z_0 = block_0 + edge * stride_0 + column
        z_1 = block_1 + edge * stride_1 + column
        z_2 = block_2 + edge * stride_2 + column
        if MMAX == 2:
            w = rotations + edge * 35
        else:
            w = rotations + edge * 25
        if ACCUMULATE:
            to = out + tl.load(edge_index + n_edges + edge) * (9 * CHANNELS) + column
        else:
            to = out + edge * (9 * CHANNELS) + column
        if tl.program_id(1) == 0:
            value = tl.load(w) * tl.load(z_0, mask=inside, other=0.0)
            add_or_store(to, value, inside, ACCUMULATE)
            middle = tl.load(z_0 + CHANNELS, mask=inside, other=0.0)
            if ORDERS > 0:
                plus = tl.load(z_1, mask=inside, other=0.0)
                minus = tl.load(z_1 + 2 * CHANNELS, mask=inside, other=0.0)
            for j in tl.static_range(3):
                value = tl.load(w + 4 + j) * middle
                if ORDERS > 0:
                    value += tl.load(w + 1 + j) * minus + tl.load(w + 7 + j) * plus
                add_or_store(to + (1 + j) * CHANNELS, value, inside, ACCUMULATE)
        else:
            w_0 = w + 10 + 5 * MMAX
            middle = tl.load(z_0 + 2 * CHANNELS, mask=inside, other=0.0)
            if ORDERS > 0:
                plus = tl.load(z_1 + CHANNELS, mask=inside, other=0.0)
                minus = tl.load(z_1 + 3 * CHANNELS, mask=inside, other=0.0)
            if ORDERS > 1:
                plus_2 = tl.load(z_2, mask=inside, other=0.0)
                minus_2 = tl.load(z_2 + CHANNELS, mask=inside, other=0.0)
            for j in tl.static_range(5):
                value = tl.load(w_0 + j) * middle
                if ORDERS > 0:
                    value += tl.load(w_0 - 5 + j) * minus + tl.load(w_0 + 5 + j) * plus
                if ORDERS > 1:
                    value += tl.load(w_0 - 10 + j) * minus_2 + tl.load(w_0 + 10 + j) * plus_2
                add_or_store(to + (4 + j) * CHANNELS, value, inside, ACCUMULATE)


@triton.jit
def _row_1(z, to_z, w, to_w, g1, g2, g3, inside):
    """Do the backward pass of one row of degree 1."""
    value = tl.load(z, mask=inside, other=0.0)
    tl.store(to_z, dot3(w, g1, g2, g3), mask=inside)
    tl.store(to_w, tl.sum(value * g1, axis=0))
    tl.store(to_w + 1, tl.sum(value * g2, axis=0))
    tl.store(to_w + 2, tl.sum(value * g3, axis=0))


@triton.jit
def _row_2(z, to_z, w, to_w, g4, g5, g6, g7, g8, inside):
    """Do the backward pass of one row of degree 2."""
    value = tl.load(z, mask=inside, other=0.0)
    tl.store(to_z, dot5(w, g4, g5, g6, g7, g8), mask=inside)
    tl.store(to_w, tl.sum(value * g4, axis=0))
    tl.store(to_w + 1, tl.sum(value * g5, axis=0))
    tl.store(to_w + 2, tl.sum(value * g6, axis=0))
    tl.store(to_w + 3, tl.sum(value * g7, axis=0))
    tl.store(to_w + 4, tl.sum(value * g8, axis=0))


@triton.jit
def _rotate_scatter_backward(
    gradient,
    block_0,
    block_1,
    block_2,
    stride_0,
    stride_1,
    stride_2,
    edge_index,
    rotations,
    to_0,
    to_1,
    to_2,
    to_rotations,
    n_edges,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    MMAX: tl.constexpr,
    ORDERS: tl.constexpr,
    GATHER: tl.constexpr,
):
    """Make both gradients; rows of the rotation that no block belongs to are left to the caller, who zeroes them."""
    column = tl.arange(0, BLOCK)
    inside = column < CHANNELS
    C = CHANNELS
    for edge in range(tl.program_id(0).to(tl.int64), n_edges, tl.num_programs(0)):
        z_0 = block_0 + edge * stride_0 + column
        z_1 = block_1 + edge * stride_1 + column
        z_2 = block_2 + edge * stride_2 + column
        out_0 = to_0 + edge * (3 * C) + column
        out_1 = to_1 + edge * (4 * C) + column
        out_2 = to_2 + edge * (2 * C) + column
        if MMAX == 2:
            w, to_w = rotations + edge * 35, to_rotations + edge * 35
        else:
            w, to_w = rotations + edge * 25, to_rotations + edge * 25
        if GATHER:
            g = gradient + tl.load(edge_index + n_edges + edge) * (9 * C) + column
        else:
            g = gradient + edge * (9 * C) + column
        if tl.program_id(1) == 0:
            g0 = tl.load(g, mask=inside, other=0.0)
            tl.store(out_0, tl.load(w) * g0, mask=inside)
            tl.store(to_w, tl.sum(tl.load(z_0, mask=inside, other=0.0) * g0, axis=0))
            g1, g2, g3 = load3(g + C, C, inside)
            _row_1(z_0 + C, out_0 + C, w + 4, to_w + 4, g1, g2, g3, inside)
            if ORDERS > 0:
                _row_1(z_1, out_1, w + 7, to_w + 7, g1, g2, g3, inside)
                _row_1(z_1 + 2 * C, out_1 + 2 * C, w + 1, to_w + 1, g1, g2, g3, inside)
        else:
            w_0, to_w0 = w + 10 + 5 * MMAX, to_w + 10 + 5 * MMAX
            g4, g5, g6, g7, g8 = load5(g + 4 * C, C, inside)
            _row_2(z_0 + 2 * C, out_0 + 2 * C, w_0, to_w0, g4, g5, g6, g7, g8, inside)
            if ORDERS > 0:
                _row_2(z_1 + C, out_1 + C, w_0 + 5, to_w0 + 5, g4, g5, g6, g7, g8, inside)
                _row_2(z_1 + 3 * C, out_1 + 3 * C, w_0 - 5, to_w0 - 5, g4, g5, g6, g7, g8, inside)
            if ORDERS > 1:
                _row_2(z_2, out_2, w_0 + 10, to_w0 + 10, g4, g5, g6, g7, g8, inside)
                _row_2(z_2 + C, out_2 + C, w_0 - 10, to_w0 - 10, g4, g5, g6, g7, g8, inside)


def rotate_scatter(
    blocks: Sequence[Tensor],
    edge_index: Tensor,
    envelope_rotations: Tensor,
    n_atoms: int,
    channels: int,
    *,
    accumulate: bool = True,
    max_programs: int = MAX_PROGRAMS,
) -> Tensor:
    """Rotate back, scale and sum at the targets, as `reference.rotate_scatter`.

    Args:
        blocks: m-blocks, rows of values that stand together; fewer orders than the rotation has are zero above.
        edge_index: [2, n_edges].
        envelope_rotations: Packed [n_edges, 35] (25 for mmax = 1), or dense [n_edges, n_edge_coefficients, 9].
        n_atoms: Number of nodes.
        channels: Width of each coefficient.
        accumulate: Sum inside the kernels; False keeps [n_edges, 9, channels] in both directions.
        max_programs: Largest number of programs of a launch.

    Returns:
        [n_atoms, 9, channels].

    Raises:
        ValueError: Arguments that do not fit together.
    """
    rotations = as_packed(envelope_rotations)
    n_edges, mmax = rotations.shape[0], mmax_of_packed(rotations)
    if not 1 <= len(blocks) <= mmax + 1:
        message = f"{len(blocks)} blocks are given; allowed are 1 to {mmax + 1}, for m = 0..{mmax}"
        raise ValueError(message)
    check_tensor("edge_index", edge_index, (2, n_edges), torch.int64)
    for m, (block, coefficients) in enumerate(zip(blocks, (3, 4, 2), strict=False)):
        check_tensor(f"block {m}", block, (n_edges, coefficients * channels), rotations.dtype)
    absent = [empty(blocks[0], blocks[0].shape[0], 0)] * (3 - len(blocks))
    return _rotate_scatter(*blocks, *absent, edge_index, rotations, n_atoms, accumulate, max_programs)


def _arguments(blocks: Sequence[Tensor], rotations: Tensor) -> tuple[list[Tensor], dict[str, int]]:
    """Return blocks whose rows stand together, and the constants that both kernels take."""
    channels = blocks[0].shape[1] // 3
    ready = [block if block.stride(1) == 1 else block.contiguous() for block in blocks]
    constants = {
        "CHANNELS": channels,
        "BLOCK": width(channels),
        "MMAX": mmax_of_packed(rotations),
        "ORDERS": len([block for block in blocks if block.shape[1]]) - 1,
        "num_warps": warps(channels),
    }
    return ready, constants


@kernel_op("edgewise::rotate_scatter")
def _rotate_scatter(
    block_0: Tensor,
    block_1: Tensor,
    block_2: Tensor,
    edge_index: Tensor,
    rotations: Tensor,
    n_atoms: int,
    accumulate: bool,
    max_programs: int,
) -> Tensor:
    accumulate = accumulate and not torch.are_deterministic_algorithms_enabled()
    blocks, constants = _arguments((block_0, block_1, block_2), rotations)
    n_edges, channels = edge_index.shape[1], constants["CHANNELS"]
    nodes = zeros(block_0, n_atoms, N_COEFFICIENTS, channels)
    per_edge = nodes if accumulate else empty(block_0, n_edges, N_COEFFICIENTS, channels)
    if n_edges:
        wrap_triton(_rotate_scatter_forward)[(programs(n_edges, max_programs), 2)](
            *blocks,
            *(block.stride(0) for block in blocks),
            edge_index.contiguous(),
            rotations.contiguous(),
            per_edge,
            n_edges,
            ACCUMULATE=accumulate,
            **constants,
        )
    return nodes if accumulate else nodes.index_add_(0, edge_index[1], per_edge)


@_rotate_scatter.register_fake
def _(
    block_0: Tensor,
    block_1: Tensor,
    block_2: Tensor,
    edge_index: Tensor,
    rotations: Tensor,
    n_atoms: int,
    accumulate: bool,
    max_programs: int,
) -> Tensor:
    return empty(block_0, n_atoms, N_COEFFICIENTS, block_0.shape[1] // 3)


@kernel_op("edgewise::rotate_scatter_backward")
def rotate_scatter_backward(
    gradient: Tensor,
    block_0: Tensor,
    block_1: Tensor,
    block_2: Tensor,
    edge_index: Tensor,
    rotations: Tensor,
    accumulate: bool,
    max_programs: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of the three m-blocks and of the packed rotations for a gradient [n_atoms, 9, channels]."""
    blocks, constants = _arguments((block_0, block_1, block_2), rotations)
    n_edges = edge_index.shape[1]
    gradient = gradient.contiguous() if accumulate else gradient.index_select(0, edge_index[1])
    to_blocks = [empty(block, *block.shape) for block in blocks]
    # Rows of orders that the blocks do not hold have no gradient.
    whole = constants["ORDERS"] == constants["MMAX"]
    to_rotations = empty(rotations, *rotations.shape) if whole else zeros(rotations, *rotations.shape)
    if n_edges:
        wrap_triton(_rotate_scatter_backward)[(programs(n_edges, max_programs), 2)](
            gradient,
            *blocks,
            *(block.stride(0) for block in blocks),
            edge_index.contiguous(),
            rotations.contiguous(),
            *to_blocks,
            to_rotations,
            n_edges,
            GATHER=accumulate,
            **constants,
        )
    return to_blocks[0], to_blocks[1], to_blocks[2], to_rotations


@rotate_scatter_backward.register_fake
def _(
    gradient: Tensor,
    block_0: Tensor,
    block_1: Tensor,
    block_2: Tensor,
    edge_index: Tensor,
    rotations: Tensor,
    accumulate: bool,
    max_programs: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    first, second, third = (empty(block, *block.shape) for block in (block_0, block_1, block_2))
    return first, second, third, empty(rotations, *rotations.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, _, ctx.accumulate, ctx.max_programs = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    *blocks, edge_index, rotations = ctx.saved_tensors
    *to_blocks, to_rotations = rotate_scatter_backward(
        gradient, *blocks, edge_index, rotations, ctx.accumulate, ctx.max_programs
    )
    return (*to_blocks, None, to_rotations, None, None, None)


_rotate_scatter.register_autograd(_gradients, setup_context=_keep)
once_differentiable(rotate_scatter_backward, "rotate_scatter")
