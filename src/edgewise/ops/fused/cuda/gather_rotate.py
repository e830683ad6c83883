"""Node -> edge in CUDA C++, and the adjoint: the launches that `edgewise.ops.fused.gather_rotate` makes where it is asked to.

Arguments are what the functions there take and have checked; here stand the checks that these kernels alone need. A warp does one
end of an edge, four channels a lane, with the rotation in its registers. In the adjoint the shares of either end are summed by a
block for each atom, whose warps take its edges in turn, so that no share is ever stored; those of sources are float32 to the end.
"""

from __future__ import annotations

from torch import Tensor

from edgewise.ops.fused.cuda._kernels import check_types, format_of_results, launch
from edgewise.ops.fused.cuda._source import WARPS, form
from edgewise.ops.fused.row_format import RowFormat
from edgewise.ops.fused.shapes import EdgeTables
from edgewise.ops.reference.edges import MessageShape

FILE = "gather_rotate.cu"


def gather_rotate(
    nodes: Tensor, edges: EdgeTables, radial: Tensor, shape: MessageShape, out: Tensor, row_format: RowFormat
) -> None:
    """Launch the forward kernel.

    Raises:
        ValueError: A shape, format or place that there are no kernels for.
        ModeUnavailableError: The kernel cannot be compiled or launched.
    """
    given, others = form(shape, row_format), {"nodes": nodes, "geometry": edges.geometry}
    check_types(shape, row_format, {"radial": radial}, others, {"out": out})
    if edges.capacity:
        grid = -(-2 * edges.capacity // WARPS), given.n_groups, 1
        arguments = (nodes, edges.ends, edges.geometry, radial, out, edges.n_live, edges.capacity)
        launch(FILE, "gather_rotate", given, grid, arguments)


def gather_rotate_adjoint(
    gradient: Tensor,
    nodes: Tensor,
    edges: EdgeTables,
    radial: Tensor,
    radial_slope: Tensor,
    shape: MessageShape,
    to_nodes: Tensor,
    tangents: Tensor,
) -> None:
    """Launch the kernels of both ends; one slice of an atom's edges keeps a GPU busy from some 500 atoms on.

    Raises:
        ValueError: A shape, format or place that there are no kernels for.
        ModeUnavailableError: A kernel cannot be compiled or launched.
    """
    given, n_atoms = form(shape, format_of_results(gradient)), nodes.shape[0]
    check_types(
        shape,
        given.row_format,
        {"gradient": gradient, "radial": radial, "radial_slope": radial_slope},
        {"nodes": nodes, "geometry": edges.geometry, "to_nodes": to_nodes, "tangents": tangents},
    )
    if n_atoms:
        rows = edges.geometry, radial, radial_slope, gradient
        inputs = edges.scales, *rows, to_nodes, tangents, edges.capacity, n_atoms
        of_sources = edges.ends, edges.by_source, edges.source_starts
        grid = n_atoms, given.n_groups, to_nodes.shape[0]
        launch(FILE, "gather_rotate_to_source", given, grid, (nodes, *of_sources, *inputs))
        launch(FILE, "gather_rotate_to_target", given, grid, (nodes, edges.target_starts, *inputs))
