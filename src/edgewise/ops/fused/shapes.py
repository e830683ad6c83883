"""The edges as the kernels of mode fused read them, and the checks of what they are given."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.ops.fused.layout import envelope_slope, geometry_width, n_edge_coefficients
from edgewise.ops.launch import check_tensor, warps, width
from edgewise.ops.reference.edge_steps import EdgeGeometry, EdgeOrder
from edgewise.ops.reference.edges import MessageShape
from edgewise.so3 import packed_entries


@dataclass(frozen=True)
class EdgeTables:
    """Edges, with room for more: rows from `n_live` on are neither read nor written by kernels.

    Attributes:
        ends: [2, capacity] int32, source and target; sorted by target.
        geometry: [capacity, width] float32, in the order of `layout`.
        n_live: [1] int32 on the device, the number of edges.
        target_starts: [n_atoms + 1] int32.
        by_source: [capacity] int32, the edges in the order of their sources.
        source_starts: [n_atoms + 1] int32.
        scales: [n_atoms] float32, powers of two that the gradients of the edges into an atom carry.
    """

    ends: Tensor
    geometry: Tensor
    n_live: Tensor
    target_starts: Tensor
    by_source: Tensor
    source_starts: Tensor
    scales: Tensor

    @property
    def capacity(self) -> int:
        """Number of edges that there is room for."""
        return self.ends.shape[1]


def edge_tables(order: EdgeOrder, geometry: EdgeGeometry, shape: MessageShape, capacity: int) -> EdgeTables:
    """Lay out edges for the kernels.

    Args:
        order: The edges of each atom.
        geometry: Rotations of all orders, envelope and its slope.
        shape: Sizes.
        capacity: Number of edges to make room for.
    """
    n_edges, device = order.source.shape[0], order.source.device
    table = torch.zeros(capacity, geometry_width(shape.lmax, shape.mmax), dtype=torch.float32, device=device)
    # The torque couples neighbouring orders, so one more is kept than the features have. The envelope takes the place of
    # the rotation of scalars, which is 1.
    entries, slope = packed_entries(shape.lmax, min(shape.lmax, shape.mmax + 1)), envelope_slope(shape.lmax, shape.mmax)
    table[:n_edges, :slope] = geometry.rotations.flatten(1)[:, list(entries)].to(torch.float32)
    table[:n_edges, 0] = geometry.envelope.to(torch.float32)
    table[:n_edges, slope] = geometry.envelope_slope.to(torch.float32)
    ends = torch.zeros(2, capacity, dtype=torch.int32, device=device)
    ends[:, :n_edges] = torch.stack([order.source, order.target])
    by_source = torch.zeros(capacity, dtype=torch.int32, device=device)
    by_source[:n_edges] = order.by_source
    return EdgeTables(
        ends=ends,
        geometry=table,
        n_live=torch.tensor([n_edges], dtype=torch.int32, device=device),
        target_starts=order.target_starts.to(torch.int32),
        by_source=by_source,
        source_starts=order.source_starts.to(torch.int32),
        scales=torch.ones(order.target_starts.shape[0] - 1, dtype=torch.float32, device=device),
    )


def tile_constants(shape: MessageShape, *, orders: int | None = None) -> dict[str, int]:
    """Return the constants that kernels on channels of edges share; `orders` for features with fewer orders than mmax."""
    return {
        "LMAX": shape.lmax,
        "MMAX": shape.mmax,
        "CHANNELS": shape.channels,
        "BLOCK": width(shape.channels),
        "COEFFICIENTS": n_edge_coefficients(shape.lmax, shape.mmax if orders is None else orders),
        "GEOMETRY": geometry_width(shape.lmax, shape.mmax),
        "num_warps": warps(shape.channels),
    }


def check_rows(name: str, tensor: Tensor, *shape: int) -> None:
    """Make sure that a kernel reads inside a tensor of rows, or of nodes, with a shape.

    Raises:
        ValueError: Another shape, or rows that do not stand one after the other.
    """
    check_tensor(name, tensor, shape, tensor.dtype)
    if not tensor.is_contiguous():
        message = f"the rows of {name} do not stand one after the other; give a contiguous tensor"
        raise ValueError(message)
