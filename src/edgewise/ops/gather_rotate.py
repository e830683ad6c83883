"""Node -> edge: gather both ends, rotate them into the edge's frame, scale them and pack the m-blocks (lmax = 2).

The formula is `reference.gather_rotate`; with y = D x the rotated end and r its radial factor, a block entry is r y. The
gradients for a block gradient g are

* dE/dr = sum over +m and -m of g y,
* dE/dD[m, j] = sum over both ends and all channels of (g r)[m] x[j],
* dE/dx = D^T (g r), added to the atoms by the kernel itself, or kept as [n_edges, 9, 2 channels] and summed by
  `index_add` (the path for deterministic algorithms).
"""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

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
from edgewise.so3 import block_sizes

N_COEFFICIENTS = 9


@triton.jit
def dot3(w, x0, x1, x2):
    """Return one row of a rotation of degree 1 times three coefficients."""
    return tl.load(w) * x0 + tl.load(w + 1) * x1 + tl.load(w + 2) * x2


@triton.jit
def dot5(w, x0, x1, x2, x3, x4):
    """Return one row of a rotation of degree 2 times five coefficients."""
    return tl.load(w) * x0 + tl.load(w + 1) * x1 + tl.load(w + 2) * x2 + tl.load(w + 3) * x3 + tl.load(w + 4) * x4


@triton.jit
def load3(pointer, stride, inside):
    """Load three rows."""
    return (
        tl.load(pointer, mask=inside, other=0.0),
        tl.load(pointer + stride, mask=inside, other=0.0),
        tl.load(pointer + 2 * stride, mask=inside, other=0.0),
    )


@triton.jit
def load5(pointer, stride, inside):
    """Load five rows."""
    return (
        tl.load(pointer, mask=inside, other=0.0),
        tl.load(pointer + stride, mask=inside, other=0.0),
        tl.load(pointer + 2 * stride, mask=inside, other=0.0),
        tl.load(pointer + 3 * stride, mask=inside, other=0.0),
        tl.load(pointer + 4 * stride, mask=inside, other=0.0),
    )


@triton.jit
def _gather_rotate_forward(
    nodes,
    edge_index,
    rotations,
    radial,
    block_0,
    block_1,
    block_2,
    n_edges,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    MMAX: tl.constexpr,
):
    """Make the m-blocks. A task is one end of an edge for l <= 1 or for l = 2: small tasks need few registers."""
    column = tl.arange(0, BLOCK)
    inside = column < CHANNELS
    end = tl.program_id(1) % 2
    row = 2 * CHANNELS  # values of one coefficient: source channels, target channels
    for edge in range(tl.program_id(0).to(tl.int64), n_edges, tl.num_programs(0)):
        x = nodes + tl.load(edge_index + end * n_edges + edge) * (9 * CHANNELS) + column
        here = end * CHANNELS + column
        out_0 = block_0 + edge * (3 * row) + here
        out_1 = block_1 + edge * (4 * row) + here
        out_2 = block_2 + edge * (2 * row) + here
        if MMAX == 2:
            w, r = rotations + edge * 35, radial + edge * (6 * row) + here
        else:
            w, r = rotations + edge * 25, radial + edge * (5 * row) + here
        if tl.program_id(1) < 2:
            factor = tl.load(r, mask=inside)
            tl.store(out_0, tl.load(w) * tl.load(x, mask=inside) * factor, mask=inside)
            x1, x2, x3 = load3(x + CHANNELS, CHANNELS, inside)
            factor = tl.load(r + row, mask=inside)
            tl.store(out_0 + row, dot3(w + 4, x1, x2, x3) * factor, mask=inside)
            factor = tl.load(r + 3 * row, mask=inside)
            tl.store(out_1, dot3(w + 7, x1, x2, x3) * factor, mask=inside)
            tl.store(out_1 + 2 * row, dot3(w + 1, x1, x2, x3) * factor, mask=inside)
        else:
            x4, x5, x6, x7, x8 = load5(x + 4 * CHANNELS, CHANNELS, inside)
            # The row m = 0 of degree 2; rows of neighbouring m stand 5 values apart.
            w_0 = w + 10 + 5 * MMAX
            factor = tl.load(r + 2 * row, mask=inside)
            tl.store(out_0 + 2 * row, dot5(w_0, x4, x5, x6, x7, x8) * factor, mask=inside)
            factor = tl.load(r + 4 * row, mask=inside)
            tl.store(out_1 + row, dot5(w_0 + 5, x4, x5, x6, x7, x8) * factor, mask=inside)
            tl.store(out_1 + 3 * row, dot5(w_0 - 5, x4, x5, x6, x7, x8) * factor, mask=inside)
            if MMAX == 2:
                factor = tl.load(r + 5 * row, mask=inside)
                tl.store(out_2, dot5(w_0 + 10, x4, x5, x6, x7, x8) * factor, mask=inside)
                tl.store(out_2 + row, dot5(w_0 - 10, x4, x5, x6, x7, x8) * factor, mask=inside)


@triton.jit
def add_or_store(pointer, value, inside, ADD: tl.constexpr):
    """Add to what an atom has, or write the edge's share of it."""
    if ADD:
        tl.atomic_add(pointer, value, mask=inside, sem="relaxed")
    else:
        tl.store(pointer, value, mask=inside)


@triton.jit
def _degree_1(x, w, r, g_0, g_1, to_r, to_x, step, row, inside, CHANNELS: tl.constexpr, TO_ATOMS: tl.constexpr):
    """Do the backward pass of one end for l = 1; return the coefficients and their scaled gradients (m = -1, 0, 1)."""
    x1, x2, x3 = load3(x + CHANNELS, CHANNELS, inside)
    middle = tl.load(g_0 + row, mask=inside, other=0.0)
    plus = tl.load(g_1, mask=inside, other=0.0)
    minus = tl.load(g_1 + 2 * row, mask=inside, other=0.0)
    tl.store(to_r + row, middle * dot3(w + 4, x1, x2, x3), mask=inside)
    tl.store(to_r + 3 * row, plus * dot3(w + 7, x1, x2, x3) + minus * dot3(w + 1, x1, x2, x3), mask=inside)
    middle *= tl.load(r + row, mask=inside, other=0.0)
    factor = tl.load(r + 3 * row, mask=inside, other=0.0)
    plus *= factor
    minus *= factor
    for j in tl.static_range(3):
        value = tl.load(w + 1 + j) * minus + tl.load(w + 4 + j) * middle + tl.load(w + 7 + j) * plus
        add_or_store(to_x + (1 + j) * step, value, inside, TO_ATOMS)
    return x1, x2, x3, minus, middle, plus


@triton.jit
def _degree_2(
    x, w_0, r, g_0, g_1, g_2, to_r, to_x, step, row, inside, CHANNELS: tl.constexpr, MMAX: tl.constexpr,
    TO_ATOMS: tl.constexpr,
):  # fmt: skip
    """Do the backward pass of one end for l = 2; return the coefficients and their scaled gradients (m = -2 .. 2)."""
    x4, x5, x6, x7, x8 = load5(x + 4 * CHANNELS, CHANNELS, inside)
    middle = tl.load(g_0 + 2 * row, mask=inside, other=0.0)
    plus = tl.load(g_1 + row, mask=inside, other=0.0)
    minus = tl.load(g_1 + 3 * row, mask=inside, other=0.0)
    tl.store(to_r + 2 * row, middle * dot5(w_0, x4, x5, x6, x7, x8), mask=inside)
    value = plus * dot5(w_0 + 5, x4, x5, x6, x7, x8) + minus * dot5(w_0 - 5, x4, x5, x6, x7, x8)
    tl.store(to_r + 4 * row, value, mask=inside)
    middle *= tl.load(r + 2 * row, mask=inside, other=0.0)
    factor = tl.load(r + 4 * row, mask=inside, other=0.0)
    plus *= factor
    minus *= factor
    if MMAX == 2:
        plus_2 = tl.load(g_2, mask=inside, other=0.0)
        minus_2 = tl.load(g_2 + row, mask=inside, other=0.0)
        value = plus_2 * dot5(w_0 + 10, x4, x5, x6, x7, x8) + minus_2 * dot5(w_0 - 10, x4, x5, x6, x7, x8)
        tl.store(to_r + 5 * row, value, mask=inside)
        factor = tl.load(r + 5 * row, mask=inside, other=0.0)
        plus_2 *= factor
        minus_2 *= factor
    else:
        plus_2, minus_2 = middle, middle  # not read
    for j in tl.static_range(5):
        value = tl.load(w_0 - 5 + j) * minus + tl.load(w_0 + j) * middle + tl.load(w_0 + 5 + j) * plus
        if MMAX == 2:
            value += tl.load(w_0 - 10 + j) * minus_2 + tl.load(w_0 + 10 + j) * plus_2
        add_or_store(to_x + (4 + j) * step, value, inside, TO_ATOMS)
    return x4, x5, x6, x7, x8, minus_2, minus, middle, plus, plus_2


@triton.jit
def _row_gradient_1(to_w, t, x1, x2, x3, t_, x1_, x2_, x3_):
    """Write the gradient of one row of a rotation of degree 1: sums over channels of both ends."""
    tl.store(to_w, tl.sum(t * x1 + t_ * x1_, axis=0))
    tl.store(to_w + 1, tl.sum(t * x2 + t_ * x2_, axis=0))
    tl.store(to_w + 2, tl.sum(t * x3 + t_ * x3_, axis=0))


@triton.jit
def _row_gradient_2(to_w, t, x4, x5, x6, x7, x8, t_, x4_, x5_, x6_, x7_, x8_):
    """Write the gradient of one row of a rotation of degree 2: sums over channels of both ends."""
    tl.store(to_w, tl.sum(t * x4 + t_ * x4_, axis=0))
    tl.store(to_w + 1, tl.sum(t * x5 + t_ * x5_, axis=0))
    tl.store(to_w + 2, tl.sum(t * x6 + t_ * x6_, axis=0))
    tl.store(to_w + 3, tl.sum(t * x7 + t_ * x7_, axis=0))
    tl.store(to_w + 4, tl.sum(t * x8 + t_ * x8_, axis=0))


@triton.jit
def _gather_rotate_backward(
    block_0,
    block_1,
    block_2,
    nodes,
    edge_index,
    rotations,
    radial,
    to_nodes,
    to_rotations,
    to_radial,
    n_edges,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    MMAX: tl.constexpr,
    TO_ATOMS: tl.constexpr,
):
    """Make all gradients. A task is an edge, both ends, for l <= 1 or for l = 2."""
    column = tl.arange(0, BLOCK)
    inside = column < CHANNELS
    row = 2 * CHANNELS
    for edge in range(tl.program_id(0).to(tl.int64), n_edges, tl.num_programs(0)):
        source, target = tl.load(edge_index + edge), tl.load(edge_index + n_edges + edge)
        x = nodes + source * (9 * CHANNELS) + column
        x_ = nodes + target * (9 * CHANNELS) + column
        g_0 = block_0 + edge * (3 * row) + column
        g_1 = block_1 + edge * (4 * row) + column
        g_2 = block_2 + edge * (2 * row) + column
        if MMAX == 2:
            w, to_w = rotations + edge * 35, to_rotations + edge * 35
            r, to_r = radial + edge * (6 * row) + column, to_radial + edge * (6 * row) + column
        else:
            w, to_w = rotations + edge * 25, to_rotations + edge * 25
            r, to_r = radial + edge * (5 * row) + column, to_radial + edge * (5 * row) + column
        if TO_ATOMS:
            step = CHANNELS
            to_x = to_nodes + source * (9 * CHANNELS) + column
            to_x_ = to_nodes + target * (9 * CHANNELS) + column
        else:
            step = row
            to_x = to_nodes + edge * (9 * row) + column
            to_x_ = to_x + CHANNELS
        C = CHANNELS
        if tl.program_id(1) == 0:
            scale = tl.load(w)
            value, value_ = tl.load(x, mask=inside, other=0.0), tl.load(x_, mask=inside, other=0.0)
            g, g_ = tl.load(g_0, mask=inside, other=0.0), tl.load(g_0 + C, mask=inside, other=0.0)
            tl.store(to_r, g * (scale * value), mask=inside)
            tl.store(to_r + C, g_ * (scale * value_), mask=inside)
            t, t_ = g * tl.load(r, mask=inside, other=0.0), g_ * tl.load(r + C, mask=inside, other=0.0)
            add_or_store(to_x, scale * t, inside, TO_ATOMS)
            add_or_store(to_x_, scale * t_, inside, TO_ATOMS)
            tl.store(to_w, tl.sum(t * value + t_ * value_, axis=0))
            x1, x2, x3, tm, t0, tp = _degree_1(x, w, r, g_0, g_1, to_r, to_x, step, row, inside, CHANNELS, TO_ATOMS)
            x1_, x2_, x3_, tm_, t0_, tp_ = _degree_1(
                x_, w, r + C, g_0 + C, g_1 + C, to_r + C, to_x_, step, row, inside, CHANNELS, TO_ATOMS
            )
            _row_gradient_1(to_w + 1, tm, x1, x2, x3, tm_, x1_, x2_, x3_)
            _row_gradient_1(to_w + 4, t0, x1, x2, x3, t0_, x1_, x2_, x3_)
            _row_gradient_1(to_w + 7, tp, x1, x2, x3, tp_, x1_, x2_, x3_)
        else:
            w_0, to_w0 = w + 10 + 5 * MMAX, to_w + 10 + 5 * MMAX
            x4, x5, x6, x7, x8, tm2, tm, t0, tp, tp2 = _degree_2(
                x, w_0, r, g_0, g_1, g_2, to_r, to_x, step, row, inside, CHANNELS, MMAX, TO_ATOMS
            )
            x4_, x5_, x6_, x7_, x8_, tm2_, tm_, t0_, tp_, tp2_ = _degree_2(
                x_, w_0, r + C, g_0 + C, g_1 + C, g_2 + C, to_r + C, to_x_, step, row, inside, CHANNELS, MMAX, TO_ATOMS
            )
            _row_gradient_2(to_w0 - 5, tm, x4, x5, x6, x7, x8, tm_, x4_, x5_, x6_, x7_, x8_)
            _row_gradient_2(to_w0, t0, x4, x5, x6, x7, x8, t0_, x4_, x5_, x6_, x7_, x8_)
            _row_gradient_2(to_w0 + 5, tp, x4, x5, x6, x7, x8, tp_, x4_, x5_, x6_, x7_, x8_)
            if MMAX == 2:
                _row_gradient_2(to_w0 - 10, tm2, x4, x5, x6, x7, x8, tm2_, x4_, x5_, x6_, x7_, x8_)
                _row_gradient_2(to_w0 + 10, tp2, x4, x5, x6, x7, x8, tp2_, x4_, x5_, x6_, x7_, x8_)


def gather_rotate(
    nodes: Tensor,
    edge_index: Tensor,
    rotations: Tensor,
    radial: Tensor,
    lmax: int,
    *,
    to_atoms: bool = True,
    max_programs: int = MAX_PROGRAMS,
) -> list[Tensor]:
    """Gather, rotate, scale and pack, as `reference.gather_rotate`.

    Args:
        nodes: [n_atoms, 9, channels].
        edge_index: [2, n_edges], row 0 source, row 1 target.
        rotations: Packed [n_edges, 35] (25 for mmax = 1), or dense [n_edges, n_edge_coefficients, 9].
        radial: [n_edges, sum of n_m * 2 * channels].
        lmax: Largest degree; 2.
        to_atoms: Add gradients to the atoms inside the kernel; False keeps them per edge first.
        max_programs: Largest number of programs of a launch.

    Returns:
        m-blocks with 2 * channels per coefficient, source channels first.

    Raises:
        ValueError: Degrees other than 0 to 2, or arguments that do not fit together.
    """
    if lmax != 2:
        message = f"gather_rotate has kernels for lmax = 2, not {lmax}; use execution_mode='general'"
        raise ValueError(message)
    rotations = as_packed(rotations)
    mmax, n_edges, channels = mmax_of_packed(rotations), rotations.shape[0], nodes.shape[-1]
    check_tensor("nodes", nodes, (None, N_COEFFICIENTS, None), rotations.dtype)
    check_tensor("edge_index", edge_index, (2, n_edges), torch.int64)
    check_tensor("radial", radial, (n_edges, 2 * channels * sum(block_sizes(lmax, mmax))), rotations.dtype)
    blocks = _gather_rotate(nodes, edge_index, rotations, radial, to_atoms, max_programs)
    return list(blocks[: mmax + 1])


def _columns(channels: int, mmax: int) -> tuple[int, int, int]:
    return 6 * channels, 8 * channels, 4 * channels if mmax == 2 else 0


@kernel_op("edgewise::gather_rotate")
def _gather_rotate(
    nodes: Tensor, edge_index: Tensor, rotations: Tensor, radial: Tensor, to_atoms: bool, max_programs: int
) -> tuple[Tensor, Tensor, Tensor]:
    blocks = _empty_blocks(nodes, edge_index, rotations)
    n_edges, channels = edge_index.shape[1], nodes.shape[2]
    if n_edges:
        wrap_triton(_gather_rotate_forward)[(programs(n_edges, max_programs), 4)](
            nodes.contiguous(),
            edge_index.contiguous(),
            rotations.contiguous(),
            radial.contiguous(),
            *blocks,
            n_edges,
            CHANNELS=channels,
            BLOCK=width(channels),
            MMAX=mmax_of_packed(rotations),
            num_warps=warps(channels),
        )
    return blocks


def _empty_blocks(nodes: Tensor, edge_index: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n_edges, channels = edge_index.shape[1], nodes.shape[2]
    first, second, third = (empty(nodes, n_edges, columns) for columns in _columns(channels, mmax_of_packed(rotations)))
    return first, second, third


@_gather_rotate.register_fake
def _(
    nodes: Tensor, edge_index: Tensor, rotations: Tensor, radial: Tensor, to_atoms: bool, max_programs: int
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_blocks(nodes, edge_index, rotations)


@kernel_op("edgewise::gather_rotate_backward")
def gather_rotate_backward(
    block_0: Tensor,
    block_1: Tensor,
    block_2: Tensor,
    nodes: Tensor,
    edge_index: Tensor,
    rotations: Tensor,
    radial: Tensor,
    to_atoms: bool,
    max_programs: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of nodes, packed rotations and radial factors for gradients of the three m-blocks."""
    n_edges, channels = edge_index.shape[1], nodes.shape[2]
    to_atoms = to_atoms and not torch.are_deterministic_algorithms_enabled()
    to_rotations, to_radial = empty(rotations, *rotations.shape), empty(radial, *radial.shape)
    to_nodes = zeros(nodes, *nodes.shape)
    per_edge = to_nodes if to_atoms else empty(nodes, n_edges, N_COEFFICIENTS, 2 * channels)
    if n_edges:
        wrap_triton(_gather_rotate_backward)[(programs(n_edges, max_programs), 2)](
            block_0.contiguous(),
            block_1.contiguous(),
            block_2.contiguous(),
            nodes.contiguous(),
            edge_index.contiguous(),
            rotations.contiguous(),
            radial.contiguous(),
            per_edge,
            to_rotations,
            to_radial,
            n_edges,
            CHANNELS=channels,
            BLOCK=width(channels),
            MMAX=mmax_of_packed(rotations),
            TO_ATOMS=to_atoms,
            num_warps=warps(channels),
        )
    if not to_atoms:
        to_nodes.index_add_(0, edge_index[0], per_edge[..., :channels])
        to_nodes.index_add_(0, edge_index[1], per_edge[..., channels:])
    return to_nodes, to_rotations, to_radial


@gather_rotate_backward.register_fake
def _(
    block_0: Tensor,
    block_1: Tensor,
    block_2: Tensor,
    nodes: Tensor,
    edge_index: Tensor,
    rotations: Tensor,
    radial: Tensor,
    to_atoms: bool,
    max_programs: int,
) -> tuple[Tensor, Tensor, Tensor]:
    return empty(nodes, *nodes.shape), empty(rotations, *rotations.shape), empty(radial, *radial.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.to_atoms, ctx.max_programs = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, *blocks: Tensor) -> tuple[Tensor | None, ...]:
    nodes, edge_index, rotations, radial = ctx.saved_tensors
    to_nodes, to_rotations, to_radial = gather_rotate_backward(
        *blocks, nodes, edge_index, rotations, radial, ctx.to_atoms, ctx.max_programs
    )
    return to_nodes, None, to_rotations, to_radial, None, None


_gather_rotate.register_autograd(_gradients, setup_context=_keep)
once_differentiable(gather_rotate_backward, "gather_rotate")
