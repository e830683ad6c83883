"""What every kernel launch shares: how many programs, how wide their tiles are, and where kernels can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from triton.runtime.interpreter import InterpretedFunction

from edgewise.errors import PropertyUnavailableError

MAX_PROGRAMS = 131_072
"""Programs along the edges; beyond, each takes several edges in turn."""


def programs(n_edges: int, limit: int = MAX_PROGRAMS) -> int:
    """Return the number of programs for a number of edges: one each, up to the limit."""
    # Unlike `min`, this lets one compiled program serve both sides of the limit.
    return torch.sym_min(n_edges, limit)  # pyright: ignore[reportReturnType]


def width(channels: int) -> int:
    """Return the tile width that holds all channels, a power of two."""
    return 1 << max(0, channels - 1).bit_length()


def warps(channels: int) -> int:
    """Return the number of warps of a program: four channels a lane make loads of 16 bytes."""
    return max(1, min(8, width(channels) // 128))


@triton.jit
def _nothing() -> None:
    """Do nothing: what Triton made of this tells what it makes of kernels."""


def is_interpreted() -> bool:
    """Tell whether kernels run in Triton's interpreter, which every device can do, slowly.

    Triton decides when a kernel is defined; a change of TRITON_INTERPRET after that is too late.
    """
    return isinstance(_nothing, InterpretedFunction)


def can_launch(kernel: object, tensor: Tensor) -> bool:
    """Tell whether a kernel can run on the device of a tensor: CUDA, or anywhere under Triton's interpreter."""
    return tensor.is_cuda or isinstance(kernel, InterpretedFunction)


def check_tensor(name: str, tensor: Tensor, shape: tuple[int | None, ...], dtype: torch.dtype) -> None:
    """Make sure that a kernel, which looks at nothing itself, reads inside a tensor.

    Args:
        name: Of the tensor.
        tensor: The tensor.
        shape: Its shape; None for any size.
        dtype: Its type.

    Raises:
        ValueError: Another shape or type.
    """
    fits = tensor.dim() == len(shape) and all(
        wanted is None or size == wanted for size, wanted in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        message = f"{name} has shape {tuple(tensor.shape)}; the other arguments ask for ({wanted})"
        raise ValueError(message)
    if tensor.dtype != dtype:
        message = f"{name} is {tensor.dtype}; the other arguments ask for {dtype}"
        raise ValueError(message)


def kernel_op(name: str) -> Callable[[Callable[..., Any]], CustomOpDef]:
    """Register an op that launches kernels, so that `torch.compile` sees the launches and makes them by itself.

    A launch from compiled code takes the host some 10 microseconds, one through the op's own Python ten times that. The
    interpreter's kernels cannot be seen through; there the op stays closed. Kernels are launched by `wrap_triton`, called
    by this very name: torch looks for it in an op's source to know which kernels its caches depend on.
    """
    if is_interpreted():
        return torch.library.custom_op(name, mutates_args=())
    return torch.library.triton_op(name, mutates_args=())


def empty(like: Tensor, *shape: int) -> Tensor:
    """Return memory for an output of a kernel, of the type and on the device of a tensor.

    Not by `new_empty`: compilers take all those of one shape for one tensor, keep it from the forward to the backward
    pass, and copy it before a kernel writes to it.
    """
    return torch.empty(shape, dtype=like.dtype, device=like.device)


def zeros(like: Tensor, *shape: int) -> Tensor:
    """Return zeros that a kernel adds to; as `empty`, each a tensor of its own."""
    return empty(like, *shape).zero_()


def once_differentiable(backward: CustomOpDef, name: str) -> None:
    """Make the derivative of an op's backward pass an error that says what to use."""

    def refuse(ctx: Any, *gradients: Tensor) -> None:
        message = (
            f"the kernel of {name} has first derivatives only; use execution_mode='general' for second derivatives "
            "(Hessians use it by themselves)"
        )
        raise PropertyUnavailableError(message)

    backward.register_autograd(refuse)
