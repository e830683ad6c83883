"""Radial networks as their kernel in CUDA C++ is compiled for them, and their weights in the order in which it reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from edgewise.ops.fused.cuda._source import LANES, constant_lines
from edgewise.ops.fused.row_format import LOW_SCALE, TF32, RowFormat, high_and_low
from edgewise.ops.reference.radial_network import EPSILON, HiddenWeights

TILE = 16
"""Edges of a warp, columns of a group, and values that a step of a product sums over."""

LARGEST_WIDTH = 128
"""Both factors of a wider layer do not fit into registers."""

LARGEST_BASIS = 128
"""Gaussians; with more the first layer does not fit into registers."""

MOST_WARPS, FEWEST_WARPS = 8, 4
"""Warps of a block: there are registers for no more, and with fewer the matrix units wait."""

VECTORS = 5
"""First scale and shift, bias, second scale and shift."""

PRODUCT_BYTES = 2 * LANES * 16
"""High and low parts of a matrix for one group of columns and one step, 16 bytes a lane."""


@dataclass(frozen=True)
class RadialForm:
    """What the kernel of radial networks is compiled for.

    Attributes:
        n_hidden: Width of the networks, a multiple of TILE.
        n_basis: Number of gaussians.
        row_format: Of what is written.
        warps: Of a block.
    """

    n_hidden: int
    n_basis: int
    row_format: RowFormat
    warps: int

    headers: ClassVar[tuple[str, ...]] = ("vectors.cuh",)

    @property
    def weight_bytes(self) -> int:
        """Bytes of a network's weights."""
        return weight_bytes(self.n_hidden, self.n_basis)

    @property
    def shared_bytes(self) -> int:
        """See `AnyForm`: weights, and room for what each warp puts aside."""
        return self.weight_bytes + self.warps * aside_bytes(self.n_hidden)

    def constants(self) -> str:
        """See `AnyForm`."""
        columns = [self.row_format.hidden_columns(self.n_hidden, constant=item) for item in (True, False)]
        sizes = {
            "WARPS": self.warps,
            "LANES": LANES,
            "TILE": TILE,
            "WIDTH": self.n_hidden,
            "BASIS": self.n_basis,
            "BASIS_STEPS": _steps(self.n_basis),
            "SHARED_BYTES": self.shared_bytes,
            "PARTS": self.row_format.parts,
            "ROUNDED_TO_TF32": int(self.row_format is TF32),
            "VALUE_COLUMNS": columns[0],
            "SLOPE_COLUMNS": columns[1],
        }
        return constant_lines(sizes, {"LOW_SCALE": LOW_SCALE, "EPSILON": EPSILON})


def _steps(n_basis: int) -> int:
    return -(-n_basis // TILE)


def weight_bytes(n_hidden: int, n_basis: int) -> int:
    """Return how many bytes the weights of a network take."""
    groups = n_hidden // TILE
    return (_steps(n_basis) + groups) * groups * PRODUCT_BYTES + VECTORS * 4 * n_hidden


def aside_bytes(n_hidden: int) -> int:
    """Return how many bytes a warp needs for the values and slopes of its edges."""
    return 2 * TILE * n_hidden * 4


def warps_that_fit(n_hidden: int, n_basis: int, shared_bytes: int) -> int:
    """Return how many warps of a block there is shared memory for."""
    return min(MOST_WARPS, (shared_bytes - weight_bytes(n_hidden, n_basis)) // aside_bytes(n_hidden))


def unfit_sizes(n_hidden: int, n_basis: int) -> str | None:
    """Return why there is no kernel for networks of some sizes, or None where there is."""
    if n_hidden % TILE or n_hidden > LARGEST_WIDTH:
        return (
            f"radial networks are {n_hidden} wide; the kernel in CUDA C++ has multiples of {TILE} up to {LARGEST_WIDTH}"
        )
    if not 2 <= n_basis <= LARGEST_BASIS:
        return f"there are {n_basis} gaussians; the kernel in CUDA C++ has 2 to {LARGEST_BASIS}"
    return None


@dataclass(frozen=True)
class ArrangedWeights:
    """Weights without their means over columns, so that what layer norms are given has none.

    Attributes:
        weights: [n_networks, weight_bytes / 4] int32, the bits of both matrices and of the vectors.
        tables: [n_networks, 2, n_elements, n_hidden] float32, of sources and of targets.
        n_basis: Number of gaussians.
    """

    weights: Tensor
    tables: Tensor
    n_basis: int


def arranged(
    basis: Sequence[Tensor], source: Sequence[Tensor], target: Sequence[Tensor], hidden: Sequence[HiddenWeights]
) -> ArrangedWeights | None:
    """Lay out networks as `radial_stack` does, which has the arguments; None for sizes that there is no kernel for."""
    n_hidden, n_basis = basis[0].shape
    if unfit_sizes(n_hidden, n_basis):
        return None
    tables = [torch.stack([_centred(item, 1) for item in pair]) for pair in zip(source, target, strict=True)]
    networks = [_network(*pair) for pair in zip(basis, hidden, strict=True)]
    return ArrangedWeights(torch.stack(networks), torch.stack(tables).float().contiguous(), n_basis)


def _network(basis: Tensor, hidden: HiddenWeights) -> Tensor:
    """Return the bits of a network's matrices and vectors, [weight_bytes / 4] int32."""
    vectors = (
        hidden.first_scale,
        hidden.first_shift,
        _centred(hidden.bias, 0),
        hidden.second_scale,
        hidden.second_shift,
    )
    matrices = (as_lanes_read(_centred(item, 0)) for item in (basis, hidden.linear))
    parts = [*matrices, torch.stack([item.float() for item in vectors])]
    return torch.cat([item.flatten().view(torch.int32) for item in parts])


def _centred(x: Tensor, axis: int) -> Tensor:
    """Return weights less their mean over columns of the layer's output, in float64."""
    x = x.double()
    return x - x.mean(axis, keepdim=True)


def as_lanes_read(matrix: Tensor) -> Tensor:
    """Return both parts of a matrix [n_out, n_in] as the kernel reads them.

    Inputs and outputs come in groups of 16 = 4 x 2 x 2: the lane of four that has it, the one of two products or of two
    registers that it is part of, and the half of a register. A lane multiplies inputs by its place among four, and has the
    outputs of one column among eight.

    Returns:
        [groups, steps, 2, lanes, 8] float16.
    """
    n_out, n_in = matrix.shape
    steps = _steps(n_in)
    groups = functional.pad(matrix, (0, steps * TILE - n_in)).view(n_out // TILE, 4, 2, 2, steps, 4, 2, 2)
    # Group and step; of the lane: its column among eight, and its place among four; product, register and half.
    ordered = groups.permute(0, 4, 1, 3, 5, 2, 6, 7).reshape(n_out // TILE, steps, LANES, 8)
    return torch.stack(high_and_low(ordered), dim=2).contiguous()
