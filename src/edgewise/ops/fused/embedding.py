"""First scalars of the nodes, by a kernel that adds them in place: a few atoms a program (MODEL.md section 7)."""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from edgewise.ops.fused.shapes import check_rows
from edgewise.ops.launch import width

ATOMS = 4
"""Atoms of a program."""


@triton.jit
def _embed(
    x, numbers, table, at_atoms, n_atoms,
    STRIDE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Do a few atoms."""
    atom = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = atom < n_atoms
    column = tl.arange(0, BLOCK)
    inside = live[:, None] & (column < CHANNELS)[None, :]
    number = tl.load(numbers + atom, mask=live, other=0).to(tl.int64)
    value = tl.load(table + number[:, None] * CHANNELS + column[None, :], mask=inside, other=0.0)
    value += tl.load(at_atoms + atom[:, None] * CHANNELS + column[None, :], mask=inside, other=0.0)
    here = x + atom[:, None] * STRIDE + column[None, :]
    tl.store(here, value + tl.load(here, mask=inside, other=0.0), mask=inside)


def embedding(x: Tensor, numbers: Tensor, table: Tensor, at_atoms: Tensor) -> Tensor:
    """Add the embeddings of elements and systems to the scalars of node features, in place.

    Args:
        x: [n_atoms, n_coefficients, channels] float32, changed in place.
        numbers: [n_atoms], atomic numbers, whole numbers below n_elements.
        table: [n_elements, channels].
        at_atoms: [n_atoms, channels], embedding of each atom's system.

    Returns:
        The features themselves.

    Raises:
        ValueError: Tensors that do not fit together.
    """
    n_atoms, n_coefficients, channels = x.shape
    check_rows("x", x, n_atoms, n_coefficients, channels)
    check_rows("numbers", numbers[None], 1, n_atoms)
    check_rows("table", table, table.shape[0], channels)
    check_rows("at_atoms", at_atoms, n_atoms, channels)
    if n_atoms:
        _embed[(triton.cdiv(n_atoms, ATOMS),)](
            x, numbers, table, at_atoms, n_atoms,
            STRIDE=n_coefficients * channels, CHANNELS=channels, BLOCK=width(channels), ROWS=ATOMS,
        )  # fmt: skip
    return x
