"""Edge -> node in CUDA C++, and the adjoint: the launches that `edgewise.ops.fused.rotate_sum` makes where it is asked to.

Arguments are what the functions there take and have checked; here stand the checks that these kernels alone need. A block sums the
edges into an atom, each of its warps those whose turn it is; the adjoint has a warp for each edge.
"""

from __future__ import annotations

from torch import Tensor

from edgewise.ops.fused.cuda._kernels import check_types, format_of_results, launch
from edgewise.ops.fused.cuda._source import WARPS, form
from edgewise.ops.fused.row_format import RowFormat
from edgewise.ops.fused.shapes import EdgeTables
from edgewise.ops.reference.edges import MessageShape

FILE = "rotate_sum.cu"


def rotate_sum(
    features: Tensor, bias: Tensor, edges: EdgeTables, shape: MessageShape, nodes: Tensor, *, embedding: bool
) -> None:
    """Launch the forward kernel; one slice keeps a GPU busy from some 500 atoms on.

    Raises:
        ValueError: A shape, format or place that there are no kernels for.
        ModeUnavailableError: The kernel cannot be compiled or launched.
    """
    given, (n_slices, n_atoms) = form(shape, format_of_results(features), embedding=embedding), nodes.shape[:2]
    others = {"nodes": nodes, "bias": bias, "geometry": edges.geometry}
    check_types(shape, given.row_format, {"features": features}, others)
    if n_atoms:
        arguments = (features, bias, edges.target_starts, edges.geometry, nodes, n_atoms)
        launch(FILE, "rotate_sum", given, (n_atoms, given.n_groups, n_slices), arguments)


def rotate_sum_adjoint(
    gradient: Tensor,
    features: Tensor,
    bias: Tensor,
    edges: EdgeTables,
    shape: MessageShape,
    out: Tensor,
    tangents: Tensor,
    slope: Tensor,
    row_format: RowFormat,
    *,
    embedding: bool,
) -> None:
    """Launch the adjoint's kernel.

    Raises:
        ValueError: A shape, format or place that there are no kernels for.
        ModeUnavailableError: The kernel cannot be compiled or launched.
    """
    given = form(shape, row_format, embedding=embedding)
    others = {"gradient": gradient, "tangents": tangents, "bias": bias, "geometry": edges.geometry}
    check_types(shape, row_format, {"features": features, "features_slope": slope}, others, {"out": out})
    if edges.capacity:
        grid = -(-edges.capacity // WARPS), given.n_groups, 1
        arguments = (
            gradient, edges.ends, edges.scales, edges.geometry, features, bias, slope, out, tangents, edges.n_live,
            edges.capacity,
        )  # fmt: skip
        launch(FILE, "rotate_sum_to_edges", given, grid, arguments)
