"""Node -> edge in CUDA C++: gather both ends of each edge, rotate them into its frame and scale them, and the adjoint.

The functions take what those of `edgewise.ops.fused.gather_rotate` take, for rows of float16, of float32 and of
float32 with operands in two parts or rounded to TF32, and any multiple of 4 channels. A warp does one end of an edge, four channels a lane, with the rotation in its registers; the targets' shares are
summed by a block for each atom, whose warps take its edges in turn.
"""

from __future__ import annotations

from torch import Tensor

from edgewise.ops.fused.cuda._kernels import check_types, format_of_results, launch
from edgewise.ops.fused.cuda._source import WARPS, form
from edgewise.ops.fused.layout import n_edge_coefficients
from edgewise.ops.fused.row_format import RowFormat, format_of
from edgewise.ops.fused.shapes import EdgeTables, check_rows
from edgewise.ops.reference.edges import MessageShape

FILE = "gather_rotate.cu"


def gather_rotate(
    nodes: Tensor,
    edges: EdgeTables,
    radial: Tensor,
    shape: MessageShape,
    out: Tensor,
    *,
    row_format: RowFormat | None = None,
) -> Tensor:
    """Gather both ends of each edge, rotate them into its frame and scale them.

    Args:
        nodes: [n_atoms, n_coefficients, channels] float32.
        edges: Ends, geometry and number of the edges.
        radial: [capacity, sum of n_m * 2 * channels].
        shape: Sizes.
        out: [capacity, n_edge_coefficients * 2 * channels], in the parts of the format, written up to the last edge there is.
        row_format: How `out` is written; see `format_of`.

    Raises:
        ValueError: Tensors that do not fit together, or that there are no kernels for.
        ModeUnavailableError: The kernels cannot be compiled or launched.
    """
    channels = shape.channels
    n_values = n_edge_coefficients(shape.lmax, shape.mmax) * 2 * channels
    given = form(shape, format_of(out, n_values, row_format))
    check_rows("radial", radial, edges.capacity, sum(shape.sizes) * 2 * channels)
    check_rows("out", out, edges.capacity, given.row_format.parts * n_values)
    check_rows("nodes", nodes.flatten(1), nodes.shape[0], (shape.lmax + 1) ** 2 * channels)
    others = {"nodes": nodes, "geometry": edges.geometry}
    check_types(shape, given.row_format, {"radial": radial}, others, {"out": out})
    if edges.capacity:
        grid = -(-2 * edges.capacity // WARPS), given.n_groups, 1
        arguments = (nodes, edges.ends, edges.geometry, radial, out, edges.n_live, edges.capacity)
        launch(FILE, "gather_rotate", given, grid, arguments)
    return out


def gather_rotate_adjoint(
    gradient: Tensor,
    nodes: Tensor,
    edges: EdgeTables,
    radial: Tensor,
    radial_slope: Tensor,
    shape: MessageShape,
    rows: Tensor,
    to_nodes: Tensor,
    tangents: Tensor,
) -> None:
    """Adjoint of `gather_rotate`.

    Args:
        gradient: [capacity, n_edge_coefficients * 2 * channels], of what `gather_rotate` made, times the target's scale.
        nodes: As before.
        edges: As before.
        radial: As before.
        radial_slope: Derivatives of the factors with respect to the distance, 1/Å.
        shape: As before.
        rows: [capacity, n_coefficients, channels], receives each source's share times the target's scale, for
            `segment_sum`.
        to_nodes: [n_slices, n_atoms, n_coefficients, channels] float32, receives the targets' shares; one slice keeps a
            GPU busy from some 500 atoms on.
        tangents: [2 * (lmax + 1), capacity, 3] float32, added to: (T_x, T_z, dE/dd) by end and degree; the first degree
            of a group stands for all of it.

    Raises:
        ValueError: Tensors that do not fit together, or that there are no kernels for.
        ModeUnavailableError: The kernels cannot be compiled or launched.
    """
    channels, n_atoms, given = shape.channels, nodes.shape[0], form(shape, format_of_results(gradient))
    n_coefficients = (shape.lmax + 1) ** 2
    for name, tensor in (("radial", radial), ("radial_slope", radial_slope)):
        check_rows(name, tensor, edges.capacity, sum(shape.sizes) * 2 * channels)
    check_rows("gradient", gradient, edges.capacity, n_edge_coefficients(shape.lmax, shape.mmax) * 2 * channels)
    check_rows("nodes", nodes.flatten(1), n_atoms, n_coefficients * channels)
    check_rows("rows", rows.flatten(1), edges.capacity, n_coefficients * channels)
    check_rows("to_nodes", to_nodes.flatten(2).flatten(0, 1), to_nodes.shape[0] * n_atoms, n_coefficients * channels)
    check_rows("tangents", tangents.flatten(0, 1), 2 * (shape.lmax + 1) * edges.capacity, 3)
    check_types(
        shape,
        given.row_format,
        {"gradient": gradient, "radial": radial, "radial_slope": radial_slope, "rows": rows},
        {"nodes": nodes, "geometry": edges.geometry, "to_nodes": to_nodes, "tangents": tangents},
    )
    inputs = edges.geometry, radial, radial_slope, gradient
    if edges.capacity:
        grid = -(-edges.capacity // WARPS), given.n_groups, 1
        arguments = (nodes, edges.ends, edges.scales, *inputs, rows, tangents, edges.n_live, edges.capacity)
        launch(FILE, "gather_rotate_to_source", given, grid, arguments)
    if n_atoms:
        grid = n_atoms, given.n_groups, to_nodes.shape[0]
        arguments = (nodes, edges.target_starts, edges.scales, *inputs, to_nodes, tangents, edges.capacity, n_atoms)
        launch(FILE, "gather_rotate_to_target", given, grid, arguments)
