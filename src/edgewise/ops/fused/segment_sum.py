"""Sums over the edges out of each atom, in a fixed order: the rows of sources, and the slices of targets."""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from edgewise.ops.fused.shapes import EdgeTables, check_rows
from edgewise.ops.launch import warps, width

EDGES = 8
"""Edges that a program adds at once."""


@triton.jit
def _segment_sum(
    rows, ends, scales, by_source, starts, parts, out, n_edges, n_atoms,
    COEFFICIENTS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, SLICES: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Do one coefficient of one atom."""
    atom = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    within = column < CHANNELS
    here = tl.program_id(1) * CHANNELS + column
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for part in tl.static_range(0, SLICES):
        total += tl.load(parts + (part * n_atoms + atom) * (COEFFICIENTS * CHANNELS) + here, mask=within, other=0.0)
    end = tl.load(starts + atom + 1)
    for first in range(tl.load(starts + atom), end, AT_ONCE):
        # Several at once, so that their loads are under way together.
        place = first + tl.arange(0, AT_ONCE)
        live = place < end
        edge = tl.load(by_source + place, mask=live, other=0).to(tl.int64)
        target = tl.load(ends + n_edges + edge, mask=live, other=0)
        unscaled = tl.where(live, 1 / tl.load(scales + target, mask=live, other=1.0), 0.0)
        inside = live[:, None] & within[None, :]
        row = tl.load(rows + edge[:, None] * (COEFFICIENTS * CHANNELS) + here[None, :], mask=inside, other=0.0)
        total += tl.sum(unscaled[:, None] * row.to(tl.float32), axis=0)
    tl.store(out + atom * (COEFFICIENTS * CHANNELS) + here, total, mask=within)


def segment_sum(rows: Tensor, parts: Tensor, edges: EdgeTables, out: Tensor) -> Tensor:
    """Add the rows of the edges out of each atom to the slices of the edges into it.

    Args:
        rows: [capacity, n_coefficients, channels], each times the scale of its target.
        parts: [n_slices, n_atoms, n_coefficients, channels] float32.
        edges: Sources and scales.
        out: [n_atoms, n_coefficients, channels] float32.

    Raises:
        ValueError: Tensors that do not fit together.
    """
    n_slices, n_atoms, n_coefficients, channels = parts.shape
    check_rows("rows", rows.flatten(1), edges.capacity, n_coefficients * channels)
    check_rows("parts", parts.flatten(2).flatten(0, 1), n_slices * n_atoms, n_coefficients * channels)
    check_rows("out", out.flatten(1), n_atoms, n_coefficients * channels)
    if n_atoms:
        _segment_sum[(n_atoms, n_coefficients)](
            rows, edges.ends, edges.scales, edges.by_source, edges.source_starts, parts, out, edges.capacity, n_atoms,
            COEFFICIENTS=n_coefficients, CHANNELS=channels, BLOCK=width(channels), SLICES=n_slices, AT_ONCE=EDGES,
            num_warps=warps(channels),
        )  # fmt: skip
    return out


def sum_of_slices(parts: Tensor) -> Tensor:
    """Return the sum of the slices [n_slices, n_atoms, n_coefficients, channels] of each atom's edges."""
    return parts[0] if parts.shape[0] == 1 else parts.sum(0)
