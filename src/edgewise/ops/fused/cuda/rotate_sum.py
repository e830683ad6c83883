"""Edge -> node in CUDA C++: rotate edge features back, scale them by the envelope and sum them, and the adjoint.

The functions take what those of `edgewise.ops.fused.rotate_sum` take, for rows of float16, of float32 and of
float32 with operands in two parts or rounded to TF32, and any multiple of 4 channels. A block sums the edges into an atom, each of its warps those whose turn it is; the adjoint has a warp for each edge.
"""

from __future__ import annotations

from torch import Tensor

from edgewise.ops.fused.cuda._kernels import check_types, format_of_results, launch
from edgewise.ops.fused.cuda._source import WARPS, form
from edgewise.ops.fused.layout import n_edge_coefficients
from edgewise.ops.fused.row_format import RowFormat, format_of
from edgewise.ops.fused.shapes import EdgeTables, check_rows
from edgewise.ops.reference.edges import MessageShape

FILE = "rotate_sum.cu"


def rotate_sum(
    features: Tensor, bias: Tensor, edges: EdgeTables, shape: MessageShape, nodes: Tensor, *, embedding: bool = False
) -> Tensor:
    """Rotate edge features back, scale them by the envelope and sum them at each edge's target.

    Args:
        features: [capacity, coefficients * channels], in m-major order.
        bias: [(lmax + 1) * channels] float32, of m = 0.
        edges: Targets and geometry.
        shape: Sizes.
        nodes: [n_slices, n_atoms, n_coefficients, channels] float32, receives the sums; one slice keeps a GPU busy from
            some 500 atoms on.
        embedding: The features have m = 0 alone.

    Raises:
        ValueError: Tensors that do not fit together, or that there are no kernels for.
        ModeUnavailableError: The kernels cannot be compiled or launched.
    """
    given = form(shape, format_of_results(features), embedding=embedding)
    n_slices, n_atoms = nodes.shape[:2]
    check_rows("features", features, edges.capacity, n_edge_coefficients(shape.lmax, given.orders) * shape.channels)
    check_rows("nodes", nodes.flatten(2).flatten(0, 1), n_slices * n_atoms, (shape.lmax + 1) ** 2 * shape.channels)
    check_rows("bias", bias[None], 1, (shape.lmax + 1) * shape.channels)
    others = {"nodes": nodes, "bias": bias, "geometry": edges.geometry}
    check_types(shape, given.row_format, {"features": features}, others)
    if n_atoms:
        arguments = (features, bias, edges.target_starts, edges.geometry, nodes, n_atoms)
        launch(FILE, "rotate_sum", given, (n_atoms, given.n_groups, n_slices), arguments)
    return nodes


def rotate_sum_adjoint(
    gradient: Tensor,
    features: Tensor,
    bias: Tensor,
    edges: EdgeTables,
    shape: MessageShape,
    out: Tensor,
    tangents: Tensor,
    *,
    features_slope: Tensor | None = None,
    row_format: RowFormat | None = None,
) -> None:
    """Adjoint of `rotate_sum`.

    Args:
        gradient: [n_atoms, n_coefficients, channels] float32, of the sums.
        features: As before.
        bias: As before.
        edges: As before.
        shape: As before.
        out: Like the features, in the parts of the format, receives their gradients times the target's scale; not written
            for the embedding, and no part of the features otherwise.
        tangents: [lmax + 1, capacity, 3] float32, added to: (T_x, T_z, dE/dd) by degree; the first degree of a group
            stands for all of it.
        features_slope: Of the embedding: derivatives of the features with respect to the distance, 1/Å.
        row_format: How `out` is written; see `format_of`.

    Raises:
        ValueError: Tensors that do not fit together, or that there are no kernels for.
        ModeUnavailableError: The kernels cannot be compiled or launched.
    """
    embedding = features_slope is not None
    slope = features if features_slope is None else features_slope
    n_columns = n_edge_coefficients(shape.lmax, 0 if embedding else shape.mmax) * shape.channels
    written = format_of_results(out) if embedding else format_of(out, n_columns, row_format)
    given, rows = form(shape, written, embedding=embedding), {"features": features, "features_slope": slope}
    check_rows("out", out, edges.capacity, written.parts * n_columns)
    for name, tensor in rows.items():
        check_rows(name, tensor, edges.capacity, n_columns)
    check_rows("gradient", gradient.flatten(1), gradient.shape[0], (shape.lmax + 1) ** 2 * shape.channels)
    check_rows("tangents", tangents.flatten(0, 1), (shape.lmax + 1) * edges.capacity, 3)
    check_rows("bias", bias[None], 1, (shape.lmax + 1) * shape.channels)
    others = {"gradient": gradient, "tangents": tangents, "bias": bias, "geometry": edges.geometry}
    check_types(shape, written, rows, others, {"out": out})
    if edges.capacity:
        grid = -(-edges.capacity // WARPS), given.n_groups, 1
        arguments = (
            gradient, edges.ends, edges.scales, edges.geometry, features, bias, slope, out, tangents, edges.n_live,
            edges.capacity,
        )  # fmt: skip
        launch(FILE, "rotate_sum_to_edges", given, grid, arguments)
