"""Compiles the kernels of mode fused ahead of time for a GPU that need not be there, and prints registers and spills.

    python -m tests.ops.fused.compile_kernels 80 90 100

A process of its own, since a kernel that was defined for the interpreter cannot be compiled.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from edgewise.ops.fused import (
    balance,
    edge_geometry,
    edge_order,
    embedding,
    energy_head,
    feed_forward,
    gate,
    gather_rotate,
    gradient_scales,
    grid_feed_forward,
    neighbor_list,
    neighbor_list_kernels,
    norm,
    radial_hidden,
    rotate_sum,
    segment_sum,
)
from edgewise.ops.fused.layout import geometry_width, n_edge_coefficients
from edgewise.ops.fused.row_format import CONSTANTS, FORMATS
from edgewise.ops.reference.norm import EPSILON as NORM_EPSILON
from edgewise.ops.reference.radial_network import EPSILON
from edgewise.so3 import block_sizes
from tests.ops.compile_kernels import CHANNELS, compile_for, resources

SHAPES = [(2, 2), (2, 1), (4, 2)]
"""lmax and mmax of published models."""

INTEGERS = ("ends", "n_live", "starts", "by_source", "numbers")
ROWS = ("radial", "radial_slope", "rows", "before", "features", "features_slope", "value_out", "slope_out")
TYPES = {
    **dict.fromkeys(INTEGERS, "*i32"),
    **dict.fromkeys((*ROWS, "gradient", "out", "basis", "linear"), "*fp16"),
    **dict.fromkeys(("n_edges", "n_atoms", "first"), "i32"),
    "step": "fp32",
}
"""Rows of edges in float16; everything else that is not named is a float32 tensor."""

FORMAT = {"FORMAT": "float16"}

WIDE = {**TYPES, **dict.fromkeys((*ROWS, "gradient"), "*fp32")}
"""Rows of results in float32."""

WIDE_FORMATS = {"split": {**WIDE, "out": "*fp16"}, "tf32": {**WIDE, "out": "*fp32"}}
"""Types of the kernels that write operands, for the formats with results in float32."""


def kernels(lmax: int, mmax: int) -> Iterator[tuple[str, Any, dict[str, Any], dict[str, str], int]]:
    """Yield name, function, constants, types and warps of each kernel that acts on edges of a shape."""
    tile = {"LMAX": lmax, "MMAX": mmax, "CHANNELS": CHANNELS, "BLOCK": CHANNELS}
    width = {"COEFFICIENTS": n_edge_coefficients(lmax, mmax), "GEOMETRY": geometry_width(lmax, mmax)}
    ends = {**tile, **width, "FACTORS": sum(block_sizes(lmax, mmax))}
    yield "gather_rotate", gather_rotate._gather_rotate, {**ends, **FORMAT}, TYPES, 1
    yield "gather_rotate to source", gather_rotate._gather_rotate_to_source, ends, TYPES, 1
    yield "gather_rotate to target", gather_rotate._gather_rotate_to_target, {**ends, "SLICES": 4}, TYPES, 1
    nodes = {**TYPES, "gradient": "*fp32"}
    for orders in (mmax, 0):
        own = {**tile, **width, "ORDERS": orders, "COEFFICIENTS": n_edge_coefficients(lmax, orders)}
        yield "rotate_sum", rotate_sum._rotate_sum, {**own, "SLICES": 4}, TYPES, 1
        constants = {**own, **FORMAT, "EMBEDDING": orders == 0}
        yield "rotate_sum to edges", rotate_sum._rotate_sum_to_edges, constants, nodes, 1
    hidden = {"LMAX": lmax, "MMAX": mmax, "HIDDEN": CHANNELS, "BLOCK": CHANNELS, "ROWS": gate.EDGES}
    hidden["COEFFICIENTS"] = width["COEFFICIENTS"]
    yield "gate", gate._gate, {**hidden, **FORMAT}, TYPES, 4
    yield "gate adjoint", gate._gate_adjoint, {**hidden, **FORMAT}, TYPES, 4
    messages = {**tile, **width, "ORDERS": mmax, "EMBEDDING": False}
    for name, types in WIDE_FORMATS.items():
        own = {"FORMAT": name}
        yield "gather_rotate", gather_rotate._gather_rotate, {**ends, **own}, types, 1
        yield "rotate_sum to edges", rotate_sum._rotate_sum_to_edges, {**messages, **own}, types, 1
        yield "gate", gate._gate, {**hidden, **own}, types, 4
        yield "gate adjoint", gate._gate_adjoint, {**hidden, **own}, types, 4
    summed = {
        "COEFFICIENTS": (lmax + 1) ** 2,
        "CHANNELS": CHANNELS,
        "BLOCK": CHANNELS,
        "SLICES": 4,
        "AT_ONCE": segment_sum.EDGES,
    }
    yield "segment_sum", segment_sum._segment_sum, summed, {**TYPES, "out": "*fp32"}, 1


def radial_kernels() -> Iterator[tuple[str, Any, dict[str, Any], dict[str, str], int]]:
    """Yield the radial networks in each format, with slopes as good as float32 unless rows are float16."""
    sizes = {"ELEMENTS": 100, "WIDTH": CHANNELS, "COLUMNS": CHANNELS, "BASIS": 32, "BASIS_ROWS": 32}
    for name in ("float16", "split", "tf32", "float32"):
        row_format = FORMATS[name]
        of_value, of_slope = (row_format.hidden_columns(CHANNELS, constant=item) for item in (True, False))
        written = {"FORMAT": name, "WRITTEN": of_value, "OF_SLOPE": of_slope, "CONSTANTS": CONSTANTS}
        exact = {"ROWS": radial_hidden.EDGES, "EPSILON": EPSILON}
        operands = "*fp16" if row_format.operands.itemsize == 2 else "*fp32"
        types = {**TYPES, "value_out": operands, "slope_out": operands}
        yield "radial_hidden", radial_hidden._radial_hidden, {**sizes, **exact, **written}, types, 8


def node_kernels() -> Iterator[tuple[str, Any, dict[str, Any], dict[str, str], int]]:
    """Yield what acts on nodes for lmax = 2 and 4, as `KernelNodes` launches it."""
    integers = {**dict.fromkeys(("groups", "starts"), "*i32"), **dict.fromkeys(("numbers", "charge", "spin"), "*i64")}
    types = {**TYPES, **integers, "gradient": "*fp32", "out": "*fp32"}
    for n_coefficients, rows in ((9, 16), (25, 32)):
        sizes = {"COEFFICIENTS": n_coefficients, "ROWS": rows, "CHANNELS": CHANNELS, "BLOCK": CHANNELS}
        constants = {**sizes, "GROUPS": 1, "EPSILON": NORM_EPSILON}
        yield "norm", norm._norm, {**constants, "ADDED": True, "UPDATE": False}, types, 4
        yield "norm of sum", norm._norm, {**constants, "ADDED": False, "UPDATE": True}, types, 4
        for scalars in (True, False):
            own = {**constants, "BASE": not scalars, "SCALARS": scalars}
            yield "norm adjoint", norm._norm_adjoint, own, types, 4
        width = {"STRIDE": n_coefficients * CHANNELS}
        tile = {"CHANNELS": CHANNELS, "BLOCK": CHANNELS, "ROWS": embedding.ATOMS}
        yield (
            "gradient_scales",
            gradient_scales._gradient_scales,
            {
                "COLUMNS": n_coefficients * CHANNELS,
                "BLOCK": gradient_scales.VALUES,
                "LARGEST": gradient_scales.LARGEST_EXPONENT,
                "SMALLEST": gradient_scales.SMALLEST_EXPONENT,
            },
            types,
            4,
        )
        yield "embed", embedding._embed, {**width, **tile}, types, 4
        channels = {"CHARGE_START": 0, "CHARGE_STOP": 3, "SPIN_START": 0, "SPIN_STOP": 0}
        for adjoint in (True, False):
            own = {**channels, "FIRST": 0, "BLOCK": 4, "ROWS": balance.VALUES // 4, "ADJOINT": adjoint}
            yield "balance", balance._balance, {**width, **own}, types, 8


def geometry_kernels() -> Iterator[tuple[str, Any, dict[str, Any], dict[str, str], int]]:
    """Yield the geometry of edges for each shape, and the sums of their gradients."""
    vectors = ("vectors", "gradient", "to_positions", "virials", "parts")
    integers = ("target_starts", "source_starts", "atom_starts")
    types = {**TYPES, **dict.fromkeys(vectors, "*fp64"), **dict.fromkeys(integers, "*i32")}
    rows, few = edge_geometry.EDGES, edge_geometry.EDGES // 32
    for lmax, mmax in SHAPES:
        constants = {"LMAX": lmax, "MMAX": mmax, "GEOMETRY": geometry_width(lmax, mmax), "ROWS": rows, "CUTOFF": 6.0}
        yield "edge_geometry", edge_geometry._edge_geometry, constants, types, few
    yield "edge_gradient", edge_geometry._edge_gradient, {"ENDS": 6, "SUMS": 3, "ROWS": rows}, types, few
    yield "sums at atoms", edge_geometry._sums_at_atoms, {"ROWS": 32}, types, 1
    yield "sums at systems", edge_geometry._sums_at_systems, {"SLICES": 1, "ROWS": 64}, types, 4


def feed_forward_kernels() -> Iterator[tuple[str, Any, dict[str, Any], dict[str, str], int]]:
    """Yield the feed-forward networks for lmax = 2 and 4, and the energy head."""
    types = {**TYPES, **dict.fromkeys(("gate", "first", "second"), "*fp16"), "gradient": "*fp32", "out": "*fp32"}
    for lmax in (2, 4):
        sizes = {"CHANNELS": CHANNELS, "HIDDEN": CHANNELS, "COLUMNS": CHANNELS, "WIDE": CHANNELS}
        constants = {"LMAX": lmax, **sizes, "ROWS": feed_forward.ATOMS}
        yield "feed_forward", feed_forward._feed_forward, constants, types, feed_forward.WARPS
        yield "feed_forward adjoint", feed_forward._feed_forward_adjoint, constants, types, feed_forward.WARPS
        constants = {**constants, "ROWS": feed_forward.GATE_ATOMS}
        yield "gates adjoint", feed_forward._gates_adjoint, constants, types, feed_forward.GATE_WARPS
    types = {**types, **dict.fromkeys(("to_grid", "from_grid", "third"), "*fp16"), "tiles": "*i32"}
    for n_coefficients, rows, n_tiles in ((9, 16, 3), (25, 32, 7)):
        sizes = {"COEFFICIENTS": n_coefficients, "CHANNELS": CHANNELS, "TILES": n_tiles, "ROWS": rows}
        constants = {**sizes, "POINTS": grid_feed_forward.POINTS, "COLUMNS": CHANNELS, "WIDE": CHANNELS}
        forward, adjoint = grid_feed_forward._grid_feed_forward, grid_feed_forward._grid_feed_forward_adjoint
        yield "grid_feed_forward", forward, constants, types, grid_feed_forward.WARPS
        yield "grid_feed_forward adjoint", adjoint, constants, types, grid_feed_forward.ADJOINT_WARPS
    widths = {"STRIDE": 9 * CHANNELS, "CHANNELS": CHANNELS, "COLUMNS": CHANNELS, "WIDE": CHANNELS}
    for gradient in (True, False):
        constants = {**widths, "ROWS": energy_head.ATOMS, "GRADIENT": gradient}
        yield "energy_head", energy_head._energy_head, constants, types, energy_head.WARPS


def neighbor_kernels() -> Iterator[tuple[str, Any, dict[str, Any], dict[str, str], int]]:
    """Yield the steps of the neighbour list and of the order by source."""
    doubles = dict.fromkeys(("positions", "cells", "vectors", "nearest", "summary"), "*fp64")
    integers = (
        "system_idx",
        "plan",
        "turns",
        "places",
        "bins",
        "flags",
        "found",
        "kept",
        "target_starts",
        "starts",
        "shifts",
    )
    types = {**TYPES, **doubles, **dict.fromkeys(integers, "*i32"), "keys": "*i64", "order": "*i64", "capacity": "i32"}
    cutoff, room, rows = {"CUTOFF": 6.0}, {"ROOM": 128}, {"ROWS": neighbor_list.NEIGHBOURS}
    tile = {"VISITS": neighbor_list.VISITS, "CANDIDATES": neighbor_list.CANDIDATES}
    yield "sort keys", edge_order._sort_keys, {"ROWS": edge_order.EDGES}, {**types, "keys": "*i32"}, 4
    yield "put into bins", neighbor_list_kernels.put_into_bins, {**cutoff, "ROWS": neighbor_list.ATOMS}, types, 4
    yield "look around", neighbor_list_kernels.look_around, {**cutoff, **room, **tile}, types, 4
    yield "apply cap", neighbor_list_kernels.apply_cap, {**room, **rows, "CAP": 30, "MARGIN": 0.01}, types, 4
    yield "add up", neighbor_list_kernels.add_up, {**room, "ROWS": neighbor_list.COUNTED_AT_ONCE}, types, 8
    yield "write edges", neighbor_list_kernels.write_edges, {**room, **rows, "SHIFTS": True}, types, 4


def main() -> None:
    """Print one row for each kernel and GPU."""
    for capability in map(int, sys.argv[1:]):
        listed = [item for shape in SHAPES for item in kernels(*shape)]
        listed += [
            *radial_kernels(),
            *node_kernels(),
            *geometry_kernels(),
            *feed_forward_kernels(),
            *neighbor_kernels(),
        ]
        for name, function, constants, types, num_warps in listed:
            compiled = compile_for(function, constants, capability, types, num_warps)
            row = {"kernel": name, **constants, "capability": capability}
            print(json.dumps({**row, **resources(compiled, capability)}), flush=True)


if __name__ == "__main__":
    main()
