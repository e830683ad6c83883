"""What every kernel launch shares: how many programs, how wide their tiles are, and where kernels can run."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from triton import knobs
from triton.runtime.interpreter import InterpretedFunction

from edgewise.errors import PropertyUnavailableError

MAX_PROGRAMS = 131_072
"""Programs along the edges; beyond, each takes several edges in turn."""


def programs(n_edges: int, limit: int = MAX_PROGRAMS) -> int:
    """Return the number of programs for a number of edges: one each, up to the limit."""
    return min(n_edges, limit)


def width(channels: int) -> int:
    """Return the tile width that holds all channels, a power of two."""
    return 1 << max(0, channels - 1).bit_length()


def warps(channels: int) -> int:
    """Return the number of warps of a program: four channels a lane make loads of 16 bytes."""
    return max(1, min(8, width(channels) // 128))


def is_interpreted() -> bool:
    """Tell whether kernels run in Triton's interpreter, which every device can do, slowly."""
    return bool(knobs.runtime.interpret)


def can_launch(kernel: object, tensor: Tensor) -> bool:
    """Tell whether a kernel can run on the device of a tensor: CUDA, or anywhere under Triton's interpreter."""
    return tensor.is_cuda or isinstance(kernel, InterpretedFunction)


def once_differentiable(backward: CustomOpDef, name: str) -> None:
    """Make the derivative of an op's backward pass an error that says what to use."""

    def refuse(ctx: Any, *gradients: Tensor) -> None:
        message = (
            f"the kernel of {name} has first derivatives only; use execution_mode='general' for second derivatives "
            "(Hessians use it by themselves)"
        )
        raise PropertyUnavailableError(message)

    backward.register_autograd(refuse)
