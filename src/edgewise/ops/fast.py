"""The operations of mode `umas_fast_gpu`: six optimizations, each of which a benchmark can switch off by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import torch
from torch import Tensor

from edgewise.ops import REFERENCE, Ops, gate, gather_rotate, reference, rotate_scatter
from edgewise.ops.launch import MAX_PROGRAMS
from edgewise.ops.reference import EdgeGeometry, EdgeSegment, MessageShape, MessageWeights
from edgewise.so3 import block_sizes, packed_edge_rotations

FIXED_PROGRAMS = 16_384
"""Programs of a launch whose number does not follow the edges."""


@dataclass(frozen=True)
class Optimizations:
    """Which of the six are on; with all of them off the operations are what they are measured against.

    Attributes:
        blocks_kept: The m-blocks go through the gate to the second SO(2) map as they are, without being joined to
            [n_edges, n_edge_coefficients, channels] and split again.
        gate_kernel: Sigmoid, SiLU, multiply and split in one kernel.
        programs_follow_edges: One program for each edge, up to 131,072, in place of a fixed number.
        gradients_to_atoms: The kernel adds input gradients to the atoms, without [n_edges, 9, 2 channels].
        sum_in_kernel: Rotating back and summing at the target in one kernel, without [n_edges, 9, channels].
        packed_rotations: 35 values a rotation in place of 81.
    """

    blocks_kept: bool = True
    gate_kernel: bool = True
    programs_follow_edges: bool = True
    gradients_to_atoms: bool = True
    sum_in_kernel: bool = True
    packed_rotations: bool = True

    @classmethod
    def none(cls) -> Optimizations:
        """Return all six switched off."""
        return cls(**{item.name: False for item in fields(cls)})


def packed_geometry(
    edge_vec: Tensor, cutoff: float, centres: Tensor, lmax: int, mmax: int, dtype: torch.dtype
) -> EdgeGeometry:
    """Compute the geometry of edges, as `reference.edge_geometry`, with packed rotations [n_edges, 35]."""
    return reference.edge_geometry(edge_vec, cutoff, centres, lmax, mmax, dtype, make_rotations=packed_edge_rotations)


def fast_ops(chosen: Optimizations | None = None) -> Ops:
    """Return the operations of mode `umas_fast_gpu`.

    Args:
        chosen: Which optimizations are on; None takes all six.
    """
    on = Optimizations() if chosen is None else chosen
    limit = MAX_PROGRAMS if on.programs_follow_edges else FIXED_PROGRAMS
    ops = replace(
        REFERENCE,
        edge_geometry=packed_geometry if on.packed_rotations else reference.edge_geometry,
        gather_rotate=partial(gather_rotate.gather_rotate, to_atoms=on.gradients_to_atoms, max_programs=limit),
        gate=partial(gate.gate, max_programs=limit) if on.gate_kernel else reference.gate,
        rotate_scatter=partial(rotate_scatter.rotate_scatter, accumulate=on.sum_in_kernel, max_programs=limit),
    )
    return replace(ops, edge_message=partial(edge_message, ops, blocks_kept=on.blocks_kept))


def edge_message(
    ops: Ops,
    nodes: Tensor,
    edge_index: Tensor,
    rotations: Tensor,
    envelope_rotations: Tensor,
    radial_hidden: Tensor,
    weights: Sequence[MessageWeights],
    segments: Sequence[EdgeSegment],
    shape: MessageShape,
    *,
    blocks_kept: bool = True,
) -> Tensor:
    """Compute the summed messages of a block, as `reference.edge_message`, from the operations of a record.

    Args:
        ops: The operations.
        nodes: [n_atoms, n_coefficients, channels].
        edge_index: [2, n_edges].
        rotations: Into the edge frame, packed or dense.
        envelope_rotations: The same times the envelope.
        radial_hidden: [n_edges, edge_channels].
        weights: One set per distinct mixture of experts.
        segments: Runs of edges that share weights.
        shape: Sizes.
        blocks_kept: False joins the blocks after each SO(2) map and splits them again.

    Returns:
        [n_atoms, n_coefficients, channels].
    """
    radial = ops.radial_factors(radial_hidden, weights, segments)
    blocks = ops.gather_rotate(nodes, edge_index, rotations, radial, shape.lmax)
    blocks = ops.so2_linear(blocks, [item.conv_1 for item in weights], segments)
    if not blocks_kept:
        blocks = _joined_and_split(blocks, shape, shape.hidden, extra=shape.lmax * shape.hidden)
    blocks = ops.gate(blocks, shape.lmax, shape.hidden)
    if not blocks_kept:
        blocks = _joined_and_split(blocks, shape, shape.hidden)
    blocks = ops.so2_linear(blocks, [item.conv_2 for item in weights], segments)
    if not blocks_kept:
        blocks = _joined_and_split(blocks, shape, shape.channels)
    return ops.rotate_scatter(blocks, edge_index, envelope_rotations, nodes.shape[0], shape.channels)


@torch.library.custom_op("edgewise::join_blocks", mutates_args=())
def _join(blocks: list[Tensor]) -> Tensor:
    return torch.cat(blocks, dim=1)


@_join.register_fake
def _(blocks: list[Tensor]) -> Tensor:
    return blocks[0].new_empty(blocks[0].shape[0], sum(block.shape[1] for block in blocks))


def _keep_widths(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[list[Tensor]], output: Tensor) -> None:  # noqa: ARG001
    ctx.widths = [block.shape[1] for block in inputs[0]]  # pyright: ignore[reportAttributeAccessIssue]


def _split_gradient(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> list[Tensor]:
    widths = ctx.widths  # pyright: ignore[reportAttributeAccessIssue]
    return list(torch.split(gradient, widths, dim=1))


_join.register_autograd(_split_gradient, setup_context=_keep_widths)


def _joined_and_split(blocks: Sequence[Tensor], shape: MessageShape, channels: int, *, extra: int = 0) -> list[Tensor]:
    """Write the blocks into one tensor and return views of it.

    Joining is an op of its own, so that a compiler which knows that a joined and split tensor is the tensor itself does
    not take away what is measured.
    """
    sizes = block_sizes(shape.lmax, shape.mmax)
    widths = [(size if m == 0 else 2 * size) * channels for m, size in enumerate(sizes)]
    widths[0] += extra
    return list(torch.split(_join(list(blocks)), widths, dim=1))
