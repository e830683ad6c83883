"""The gate activation and the second SO(2) map in one kernel, for GPUs of the Hopper generation (sm_90a).

The formulas are those of `gate` and `so2_linear`: rows are activated, rounded to float16 and multiplied, and sums are rounded to
float16 once. The gated rows are never stored. Bytes of memory for each edge of UMA-S: 2816 read and 2304 written, where the
kernel of the gate and three products move 5120 and 4608. Operations: as many as the products have.

A block owns a share of the matrices and keeps it in shared memory, as `gated_products.cu` describes; `matrix_images` lays the
shares out as they stand there. There are kernels for the shape of UMA-S alone, in float16.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from edgewise.ops.fused import layout
from edgewise.ops.fused.cuda._kernels import check_types, compiler_missing, launch_text
from edgewise.ops.fused.cuda._source import LANES, constant_lines, read_source
from edgewise.ops.fused.row_format import FLOAT16, RowFormat
from edgewise.ops.fused.shapes import EdgeTables, check_rows
from edgewise.ops.fused.so2_linear import SO2Map
from edgewise.ops.launch import check_tensor
from edgewise.ops.reference.edges import MessageShape

FILE = "gated_products.cu"

SHAPE = MessageShape(lmax=2, mmax=2, channels=128, hidden=128)
"""The one shape that there are kernels for."""

CAPABILITY = (9, 0)
"""Of the GPUs that have the instructions; later ones do not."""

ARCHITECTURE = "90a"

WARPS = 16
"""Of a block: four that multiply and four that gate, twice."""

PART = 64
"""Channels that are multiplied at once: rows of 128 bytes, which the units for products read without conflicts."""

PAIR_COLUMNS = 128
"""Outputs of +m, and of -m, that a block computes."""

COPIED_BYTES = 16_384
"""Of each copy of matrices into shared memory."""

MATRICES_AND_SLOTS = 229_376
"""Bytes of shared memory for matrices and for the rows that wait to be multiplied; as many are used for order 0 as for order 1."""

BARRIER_BYTES = 256
"""Bytes of shared memory for barriers: more than there are."""

SHARED_BYTES = MATRICES_AND_SLOTS + 4 * (2 * SHAPE.lmax + 1) * SHAPE.hidden + BARRIER_BYTES
"""Bytes of shared memory of a block: behind matrices and rows stand the bias and the barriers."""

WORK = (31, 28, 14)
"""Blocks out of 132 for each share of order 0, of order 1, of each of which there are two, and of order 2."""


def missing(shape: MessageShape, row_format: RowFormat, device: torch.device) -> str | None:
    """Return why the kernel cannot serve, or None where it can.

    Args:
        shape: Sizes.
        row_format: Of the rows of edges.
        device: Where the tensors are.
    """
    if row_format is not FLOAT16:
        return f"rows are in {row_format.name}; gate and products are one kernel in float16 alone"
    if shape != SHAPE:
        return f"gate and products are one kernel for {SHAPE} alone, and the model has {shape}"
    if device.type != "cuda" or torch.version.hip or torch.cuda.get_device_capability(device) != CAPABILITY:
        return "gate and products are one kernel on GPUs of compute capability 9.0 alone"
    return compiler_missing()


@functools.cache
def source(device_part: str | None = None, hopper_part: str | None = None) -> str:
    """Return the text of the kernel with all that it needs; the parts stand in for `device.cuh` and what only Hopper has."""
    sizes = [_n_values(m) for m in range(3)]
    first = [SHAPE.lmax + layout.coefficient(m, m, SHAPE.lmax) for m in range(3)]
    n_coefficients = layout.n_edge_coefficients(SHAPE.lmax, SHAPE.mmax)
    constants = {
        "LMAX": SHAPE.lmax,
        "HIDDEN": SHAPE.hidden,
        "WARPS": WARPS,
        "LANES": LANES,
        "BEFORE": (SHAPE.lmax + n_coefficients) * SHAPE.hidden,
        "AFTER": n_coefficients * SHAPE.hidden,
        "PAIR_COLUMNS": PAIR_COLUMNS,
        "VALUES_OF_1": first[1] * SHAPE.hidden,
        "VALUES_OF_2": first[2] * SHAPE.hidden,
        "OUTPUTS_OF_0": sizes[0],
        "OUTPUTS_OF_1": 2 * sizes[1],
        "BYTES_OF_0": sizes[0] * sizes[0],
        "BYTES_OF_1": 4 * PAIR_COLUMNS * sizes[1],
        "BYTES_OF_2": 4 * PAIR_COLUMNS * sizes[2],
        "MATRICES_AND_SLOTS": MATRICES_AND_SLOTS,
        "COPIED_BYTES": COPIED_BYTES,
    }
    products = [product_text(columns) for columns in (PAIR_COLUMNS, sizes[0] // 2)]
    return "\n".join([
        constant_lines(constants),
        read_source("device.cuh") if device_part is None else device_part,
        "\n".join([read_source("hopper.cuh"), *products]) if hopper_part is None else hopper_part,
        read_source(FILE),
    ])  # fmt: skip


def _n_values(m: int) -> int:
    """Return the number of values of +m, which is that of -m."""
    return (SHAPE.lmax + 1 - m) * SHAPE.hidden


def product_text(columns: int) -> str:
    """Return CUDA C++ that adds (or with SIGN = -1 subtracts) the product of 64 rows, 16 values long, and a matrix.

    Of the results [64, columns], a thread has column 8 j + 2 (lane % 4) + i of row 16 warp + lane / 4 + 8 k at 4 j + 2 k + i.
    """
    n = columns // 2
    sums = ", ".join(f"%{number}" for number in range(n))
    outputs = ", ".join(f'"+f"(sums[{number}])' for number in range(n))
    return f"""
template <int SIGN>
__device__ __forceinline__ void multiply(float (&sums)[{n}], unsigned int rows, unsigned int matrix, bool adds) {{
  asm volatile(
      "{{\\n.reg .pred adding;\\nsetp.ne.b32 adding, %{n + 2}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16 {{{sums}}}, %{n}, %{n + 1}, adding, 1, %{n + 3}, 0, 0;\\n}}\\n"
      : {outputs}
      : "l"(descriptor(rows)), "l"(descriptor(matrix)), "r"(static_cast<int>(adds)), "n"(SIGN));
}}
"""


def matrix_images(matrices: SO2Map) -> Tensor:
    """Return the shares of the matrices as they stand in shared memory, one behind the other: float16, flat.

    The shares are those of `gated_products.cu`. Each is cut along the sum into parts of 64 values; for orders above 0 a part has
    the block A of the outputs, then the block B, of the matrix [[A, -B], [B, A]]. Outputs of a share are in the order of
    `output_order`, so that a thread of the kernel has 8 neighbours, and rows are in the order of `in_shared_memory`.

    Args:
        matrices: Weights of the second map, in float16.

    Raises:
        ValueError: Matrices of another shape or type.
    """
    for m, block in enumerate(matrices.blocks):
        size = _n_values(m) * (2 if m else 1)
        check_tensor(f"the matrix of order {m}", block, (size, size), torch.float16)
    of_0 = [_image([half]) for half in matrices.blocks[0].chunk(2)]
    made = []
    for m, block in enumerate(matrices.blocks[1:], start=1):
        n = _n_values(m)
        a, b = block[:n, :n], block[n:, :n]
        made += [_image([item[start : start + PAIR_COLUMNS] for item in (a, b)]) for start in range(0, n, PAIR_COLUMNS)]
    return torch.cat([*of_0, *made])


def _image(matrices: Sequence[Tensor]) -> Tensor:
    """Return matrices [n_outputs, n_inputs] cut into parts, those of the same part one behind the other."""
    parts = zip(
        *(matrix[output_order(matrix.shape[0], matrix.device)].split(PART, dim=1) for matrix in matrices), strict=True
    )
    return torch.cat([in_shared_memory(part).flatten() for of_part in parts for part in of_part])


def output_order(n_outputs: int, device: torch.device | None = None) -> Tensor:
    """Return which output stands at each place: within 32, those 2 t + i of the j-th 8 are 8 t + 2 j + i."""
    place = torch.arange(n_outputs, device=device)
    return place // 32 * 32 + 8 * (place % 8 // 2) + 2 * (place // 8 % 4) + place % 2


def in_shared_memory(part: Tensor) -> Tensor:
    """Return rows [n_rows, 64] as products read them: the 16 bytes number j of row r stand at j XOR (r modulo 8)."""
    chunks = part.unflatten(1, (8, 8))
    row, place = torch.arange(part.shape[0], device=part.device)[:, None], torch.arange(8, device=part.device)
    return chunks[row, place ^ row % 8].flatten(1)


def blocks_of(n_blocks: int, work: tuple[int, int, int] = WORK) -> tuple[int, int, int]:
    """Return how many blocks each share of order 0, each of order 1 and that of order 2 gets; at least one.

    Args:
        n_blocks: Number of multiprocessors.
        work: In what proportion.
    """
    total = 2 * work[0] + 2 * work[1] + work[2]
    of_0, of_1 = (max(1, n_blocks * item // total) for item in work[:2])
    return of_0, of_1, max(1, n_blocks - 2 * of_0 - 2 * of_1)


def gated_products(
    before: Tensor,
    bias: Tensor,
    images: Tensor,
    edges: EdgeTables,
    out: Tensor,
    *,
    blocks: tuple[int, int, int] | None = None,
) -> Tensor:
    """Apply the gate activation, then an SO(2) map without its bias.

    Args:
        before: [capacity, (lmax + n_edge_coefficients) * hidden] float16, gate scalars in front.
        bias: [(2 lmax + 1) * hidden] float32, of the gate scalars and m = 0.
        images: The matrices of the map, by `matrix_images`.
        edges: Number of the edges.
        out: [capacity, n_edge_coefficients * hidden] float16.
        blocks: How many blocks do each share, as `blocks_of` returns; None for what fills the device.

    Raises:
        ValueError: Tensors that do not fit together.
        ModeUnavailableError: The kernel cannot be compiled or launched.
    """
    n_coefficients = layout.n_edge_coefficients(SHAPE.lmax, SHAPE.mmax)
    check_rows("before", before, edges.capacity, (SHAPE.lmax + n_coefficients) * SHAPE.hidden)
    check_rows("out", out, edges.capacity, n_coefficients * SHAPE.hidden)
    check_rows("bias", bias[None], 1, (2 * SHAPE.lmax + 1) * SHAPE.hidden)
    check_rows("images", images[None], 1, sum(_n_values(0) ** 2 if m == 0 else 2 * _n_values(m) ** 2 for m in range(3)))
    check_types(SHAPE, FLOAT16, {"before": before, "out": out}, {"bias": bias}, {"images": images})
    if edges.capacity:
        of_0, of_1, of_2 = blocks_of(_n_multiprocessors(before.device)) if blocks is None else blocks
        grid = 2 * of_0 + 2 * of_1 + of_2, 1, 1
        arguments = (before, bias, images, out, edges.n_live, edges.capacity, of_0, of_1)
        launch_text(
            source(), FILE, "gated_products", ARCHITECTURE, grid, arguments, threads=WARPS * LANES, shared=SHARED_BYTES
        )
    return out


@functools.cache
def _n_multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
