"""Radial networks in CUDA C++: the launch that `edgewise.ops.fused.radial_hidden` makes where it is asked to.

Arguments are what the function there takes and has checked; here stand the checks that this kernel alone needs. A block keeps
the weights of a network in shared memory and its warps take tiles of 16 edges in turn, values and slopes in their registers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.ops.fused.cuda._kernels import check_places, launch, unfit_device, unfit_format
from edgewise.ops.fused.cuda._radial_form import (
    FEWEST_WARPS,
    LARGEST_BASIS,
    LARGEST_WIDTH,
    TILE,
    ArrangedWeights,
    RadialForm,
    unfit_sizes,
    warps_that_fit,
)
from edgewise.ops.fused.row_format import RowFormat
from edgewise.ops.fused.shapes import EdgeTables
from edgewise.ops.launch import check_tensor

FILE = "radial_hidden.cu"

OLDEST = (8, 0)
"""Compute capability from which on there are products of 16 x 16 and 16 x 8 numbers."""


@dataclass(frozen=True)
class Limits:
    """What a device has.

    Attributes:
        multiprocessors: Number of multiprocessors.
        shared_bytes: Shared memory that a block can have.
    """

    multiprocessors: int
    shared_bytes: int


@functools.cache
def limits(device: torch.device) -> Limits:
    """Return the limits of a GPU."""
    found = torch.cuda.get_device_properties(device)
    return Limits(found.multi_processor_count, found.shared_memory_per_block_optin)


def missing(n_hidden: int, n_basis: int, row_format: RowFormat, device: torch.device) -> str | None:
    """Return why the kernel cannot serve, or None where it can.

    Args:
        n_hidden: Width of the networks.
        n_basis: Number of gaussians.
        row_format: Of what is written.
        device: Where the tensors are; what one that is not here has is not asked for.
    """
    unfit = unfit_format(row_format) or unfit_sizes(n_hidden, n_basis) or unfit_device(device)
    if unfit or not torch.cuda.is_available():
        return unfit
    if torch.cuda.get_device_capability(device) < OLDEST:
        return "the radial networks in CUDA C++ need compute capability 8.0"
    if warps_that_fit(n_hidden, n_basis, limits(device).shared_bytes) < FEWEST_WARPS:
        return f"the radial networks in CUDA C++ do not fit into shared memory of {limits(device).shared_bytes} bytes"
    return None


def radial_hidden(
    distance: Tensor,
    numbers: Tensor,
    edges: EdgeTables,
    spacing: float,
    weights: ArrangedWeights | None,
    values: Tensor,
    slopes: Tensor,
    first: int,
    row_format: RowFormat,
) -> None:
    """Launch the kernel.

    Args:
        distance: As in `edgewise.ops.fused.radial_hidden`, like everything that is not named here.
        numbers: As there.
        edges: As there.
        spacing: Å between the centres of gaussians.
        weights: The networks; None where there is no kernel for their sizes.
        values: As there.
        slopes: As there.
        first: As there.
        row_format: Of what is written.

    Raises:
        ValueError: A size, format or place that there is no kernel for.
        ModeUnavailableError: The kernel cannot be compiled or launched.
    """
    unfit = unfit_format(row_format)
    if unfit:
        raise ValueError(unfit)
    if weights is None:
        message = (
            f"there is no kernel in CUDA C++ for networks of these sizes: their width is a multiple of {TILE} up to "
            f"{LARGEST_WIDTH}, and there are 2 to {LARGEST_BASIS} gaussians"
        )
        raise ValueError(message)
    check_places({"values": values, "slopes": slopes}, row_format.operands)
    check_tensor("distance", distance, (edges.capacity,), torch.float32)
    check_tensor("numbers", numbers, (None,), torch.int32)
    n_networks, device = values.shape[0], limits(values.device)
    sizes = weights.tables.shape[3], weights.n_basis
    given = RadialForm(*sizes, row_format, warps_that_fit(*sizes, device.shared_bytes))
    if given.warps < 1:
        message = (
            f"networks of this size need more than the {device.shared_bytes} bytes of shared memory that there are"
        )
        raise ValueError(message)
    if edges.capacity and n_networks:
        # One block on each multiprocessor, which its weights and registers fill.
        n_blocks = max(1, min(-(-edges.capacity // TILE), device.multiprocessors // n_networks))
        arguments = (
            distance, edges.ends, numbers, weights.weights, weights.tables, values, slopes, edges.n_live, edges.capacity,
            weights.tables.shape[2], first, spacing, 0.5 / spacing,
        )  # fmt: skip
        launch(FILE, "radial_hidden", given, (n_blocks, n_networks, 1), arguments)
