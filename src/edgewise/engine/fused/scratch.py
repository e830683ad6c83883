"""Memory for rows of edges that are read once, soon after they are written.

They are most of what a step writes, and come in sizes that do not fit into each other's gaps: left to an allocator that puts
each where it fits best, a step of 1000 copper atoms takes a quarter more memory. So there are three pieces, each as large as
the largest rows that stand in it. A step uses them in this order:

| step | reads | writes |
|---|---|---|
| radial network's last layer | | FACTORS |
| node -> edge | FACTORS | ROWS |
| first SO(2) map | ROWS | what is kept |
| gate | what is kept | OPERANDS |
| second SO(2) map | OPERANDS | what is kept |
| edge -> node, adjoint | what is kept | OPERANDS |
| second SO(2) map, adjoint | OPERANDS | ROWS |
| gate, adjoint | ROWS, what is kept | OPERANDS |
| first SO(2) map, adjoint | OPERANDS | ROWS |
| radial network's last layer | | FACTORS |
| the same of slopes | | OPERANDS |
| node -> edge, adjoint | ROWS, FACTORS, OPERANDS | |

In the last block of the forward pass FACTORS stay for the first of the adjoint, and what the second map makes stands in ROWS.
FACTORS are written on a branch (`edgewise.ops.fused.streams`), which begins behind the last read of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum, auto

import torch
from torch import Tensor


class Piece(Enum):
    """The pieces of memory."""

    FACTORS = auto()
    ROWS = auto()
    OPERANDS = auto()


class Scratch:
    """The pieces of one step."""

    def __init__(self, n_bytes: Mapping[Piece, int], device: torch.device) -> None:
        """Take nothing yet.

        Args:
            n_bytes: How large the largest rows in each piece are.
            device: Where.
        """
        self._n_bytes, self._device = n_bytes, device
        self._pieces: dict[Piece, Tensor] = {}

    def rows(self, piece: Piece, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Return a piece as rows; what stood in it is lost.

        Raises:
            ValueError: The piece is too small.
        """
        wanted = math.prod(shape) * dtype.itemsize
        if wanted > self._n_bytes[piece]:
            message = f"{shape} values of {dtype} take {wanted} bytes; {piece.name} has {self._n_bytes[piece]}"
            raise ValueError(message)
        if piece not in self._pieces:
            self._pieces[piece] = torch.empty(self._n_bytes[piece], dtype=torch.uint8, device=self._device)
        return self._pieces[piece][:wanted].view(dtype).view(shape)
