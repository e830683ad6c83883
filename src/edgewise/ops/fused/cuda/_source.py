"""The text that is compiled: constants from `layout`, which stays the one definition of places, and the files beside this one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import torch

from edgewise.ops.fused import layout
from edgewise.ops.fused.row_format import LOW_SCALE, TF32, RowFormat
from edgewise.ops.reference.edges import MessageShape

WARPS = 4
"""Warps of a block that does edges or atoms; a power of two."""

LANES = 32
"""Lanes of a warp."""

LANE_CHANNELS = 4
"""Channels of a lane: loads of 16 bytes of float32 and 8 of float16."""

LARGEST_GROUP = 9
"""Coefficients of the degrees that a warp does together, at most, unless one degree alone has more."""

BLOCKS = {torch.float16: 4, torch.float32: 3}
"""Blocks that share a multiprocessor for lmax <= 2, by the type of results: they bound the registers of a thread, by 128 and 168.
With fewer registers the adjoints spill and take twice as long."""

ROW_TYPES = {torch.float16: "half_t", torch.float32: "float"}

_FOLDER = Path(__file__).parent


class AnyForm(Protocol):
    """What a kernel is compiled for, of whatever kind; two that are equal have the same code."""

    headers: ClassVar[tuple[str, ...]]
    """Files that stand between the types and the kernels."""

    @property
    def row_format(self) -> RowFormat:
        """Of the rows of edges."""
        ...

    @property
    def warps(self) -> int:
        """Warps of a block."""
        ...

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block beyond what the kernels declare."""
        ...

    def constants(self) -> str:
        """Return sizes and tables as CUDA C++."""
        ...


@dataclass(frozen=True)
class Form:
    """What a kernel on rows of coefficients is compiled for.

    Attributes:
        lmax: Largest degree.
        mmax: Largest order on edges.
        channels: A multiple of LANE_CHANNELS.
        row_format: Of the rows of edges; a plain one where no operands are written.
        embedding: The features are those of the degree embedding, which have m = 0 alone.
    """

    lmax: int
    mmax: int
    channels: int
    row_format: RowFormat
    embedding: bool = False

    headers: ClassVar[tuple[str, ...]] = ("vectors.cuh", "rows.cuh")
    warps = WARPS
    shared_bytes = 0

    def constants(self) -> str:
        """See `AnyForm`; places of coefficients that there are not are -1."""
        return _constants(self)

    @property
    def orders(self) -> int:
        """Largest order of the features."""
        return 0 if self.embedding else self.mmax

    @property
    def n_groups(self) -> int:
        """Number of groups of degrees, each done by warps of its own."""
        return len(degree_groups(self.lmax)) - 1


def form(shape: MessageShape, row_format: RowFormat, *, embedding: bool = False) -> Form:
    """Return what kernels on rows of a shape are compiled for."""
    return Form(shape.lmax, shape.mmax, shape.channels, row_format, embedding)


def degree_groups(lmax: int) -> tuple[int, ...]:
    """Return where the groups of degrees begin that a warp does together, and lmax + 1."""
    starts = [0]
    for degree in range(1, lmax + 1):
        if (degree + 1) ** 2 - starts[-1] ** 2 > LARGEST_GROUP:
            starts.append(degree)
    return (*starts, lmax + 1)


def source(file: str, given: AnyForm, *, device_part: str | None = None) -> str:
    """Return the text of a file of kernels with all that it needs.

    Args:
        file: Its name.
        given: What it is compiled for.
        device_part: Stands in for `device.cuh` where there is no GPU.
    """
    device = read_source("device.cuh") if device_part is None else device_part
    rest = [read_source(name) for name in (*given.headers, file)]
    return "\n".join([given.constants(), device, types(given.row_format), *rest])


def read_source(file: str) -> str:
    """Return the text of a file of this folder."""
    return (_FOLDER / file).read_text(encoding="utf-8")


def types(row_format: RowFormat) -> str:
    """Return the types of rows as CUDA C++."""
    operand, result = ROW_TYPES[row_format.operands], ROW_TYPES[row_format.results]
    return f"struct half_t;\ntypedef {operand} operand_t;\ntypedef {result} row_t;\n"


def constant_lines(sizes: Mapping[str, int], numbers: Mapping[str, float] | None = None) -> str:
    """Return whole numbers, and others, as CUDA C++."""
    return "\n".join([
        *(f"constexpr int {name} = {value};" for name, value in sizes.items()),
        *(f"constexpr float {name} = static_cast<float>({value!r});" for name, value in (numbers or {}).items()),
    ])  # fmt: skip


def _constants(given: Form) -> str:
    lmax, mmax, groups = given.lmax, given.mmax, degree_groups(given.lmax)
    degrees, orders = range(lmax + 1), range(-mmax, mmax + 1)
    turned = range(-mmax - 1, mmax + 2)  # rotations go one order further
    row_format = given.row_format
    sizes = {
        "LMAX": lmax,
        "MMAX": mmax,
        "ORDERS": given.orders,
        "EMBEDDING": int(given.embedding),
        "CHANNELS": given.channels,
        "COEFFICIENTS": layout.n_edge_coefficients(lmax, given.orders),
        "FACTORS": layout.radial_factor(lmax, mmax, lmax) + 1,
        "GEOMETRY": layout.geometry_width(lmax, mmax),
        "ENVELOPE_SLOPE": layout.envelope_slope(lmax, mmax),
        "WARPS": WARPS,
        "LANES": LANES,
        "LANE_CHANNELS": LANE_CHANNELS,
        "GROUPS": len(groups) - 1,
        "MOST_ROWS": max(end**2 - start**2 for start, end in itertools.pairwise(groups)),
        # A degree above 2 alone takes more registers.
        "BLOCKS": BLOCKS[row_format.results] if lmax <= 2 else 1,
        "PARTS": row_format.parts,
        "ROUNDED_TO_TF32": int(row_format is TF32),
    }
    tables = {
        "COEFFICIENT": [
            [layout.coefficient(degree, order, lmax) if abs(order) <= degree else -1 for order in orders]
            for degree in degrees
        ],
        "OPERAND": [
            [_operand(degree, order, lmax, row_format) if abs(order) <= degree else -1 for order in orders]
            for degree in degrees
        ],
        "RADIAL_FACTOR": [
            [layout.radial_factor(degree, m, lmax) if m <= degree else -1 for m in range(mmax + 1)]
            for degree in degrees
        ],
        # Scalars are not turned.
        "ROTATION": [[-1] * len(turned)]
        + [
            [layout.rotation(degree, m, mmax) if abs(m) <= layout.highest(degree, mmax) else -1 for m in turned]
            for degree in degrees[1:]
        ],
        "COUPLING": [
            [layout.coupling(degree, m) if m < degree else 0.0 for m in range(max(1, lmax))] for degree in degrees
        ],
    }
    highest = [layout.highest(degree, mmax) for degree in degrees]
    return "\n".join([
        constant_lines(sizes, {"LOW_SCALE": LOW_SCALE}),
        _row("GROUP_STARTS", groups),
        _row("HIGHEST", highest),
        _row("NEXT_PART", [layout.order_size(m, lmax, 0) for m in range(mmax + 1)]),
        *(_table(name, rows) for name, rows in tables.items()),
        "",
    ])  # fmt: skip


def _operand(degree: int, order: int, lmax: int, row_format: RowFormat) -> int:
    """Return where the first part of a coefficient stands; the parts of an order stand one after the other."""
    return layout.coefficient(degree, order, lmax) + (row_format.parts - 1) * layout.order_start(order, lmax, 0)


def _row(name: str, values: Sequence[int]) -> str:
    return f"constexpr int {name}[{len(values)}] = {_braces(values)};"


def _table(name: str, rows: Sequence[Sequence[float]]) -> str:
    kind = "float" if isinstance(rows[0][0], float) else "int"
    return f"constexpr {kind} {name}[{len(rows)}][{len(rows[0])}] = {_braces([_braces(row) for row in rows])};"


def _braces(values: Sequence[object]) -> str:
    # Numbers are written in full and rounded to float32 once.
    written = [f"static_cast<float>({item!r})" if isinstance(item, float) else str(item) for item in values]
    return "{" + ", ".join(written) + "}"
