"""The gate activation on m-blocks in one kernel: sigmoid, SiLU, multiply, split and output together (lmax = 2).

The formula is `reference.gate`: with gate scalars a_l, s_l = sigmoid(a_l), the scalar v and the other values y,

* SiLU(v) = v sigmoid(v), with derivative sigmoid(v) (1 + v (1 - sigmoid(v))),
* s_l y, with dE/dy = s_l g and dE/da_l = s_l (1 - s_l) sum over the values y of degree l of g y.

The first derivative has a kernel; the derivative of that one goes through the reference, which can be differentiated any
number of times. Widths that are no power of two and types other than float32 take the reference from the start.
"""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from edgewise.ops import reference
from edgewise.ops.launch import MAX_PROGRAMS, can_launch, check_tensor, empty, kernel_op, programs, warps

LMAX = 2


@triton.jit
def _gate_forward(
    block_0, block_1, block_2, out_0, out_1, out_2, n_edges, HIDDEN: tl.constexpr, MMAX: tl.constexpr
):  # fmt: skip
    """Activate one edge after the other: rows of HIDDEN values, a power of two."""
    H = HIDDEN
    column = tl.arange(0, HIDDEN)
    for edge in range(tl.program_id(0).to(tl.int64), n_edges, tl.num_programs(0)):
        y_0, y_1, y_2 = (
            block_0 + edge * (5 * H) + column,
            block_1 + edge * (4 * H) + column,
            block_2 + edge * (2 * H) + column,
        )
        z_0, z_1, z_2 = (
            out_0 + edge * (3 * H) + column,
            out_1 + edge * (4 * H) + column,
            out_2 + edge * (2 * H) + column,
        )
        s1 = tl.sigmoid(tl.load(y_0))
        s2 = tl.sigmoid(tl.load(y_0 + H))
        v = tl.load(y_0 + 2 * H)
        tl.store(z_0, v * tl.sigmoid(v))
        tl.store(z_0 + H, tl.load(y_0 + 3 * H) * s1)
        tl.store(z_0 + 2 * H, tl.load(y_0 + 4 * H) * s2)
        tl.store(z_1, tl.load(y_1) * s1)
        tl.store(z_1 + H, tl.load(y_1 + H) * s2)
        tl.store(z_1 + 2 * H, tl.load(y_1 + 2 * H) * s1)
        tl.store(z_1 + 3 * H, tl.load(y_1 + 3 * H) * s2)
        if MMAX == 2:
            tl.store(z_2, tl.load(y_2) * s2)
            tl.store(z_2 + H, tl.load(y_2 + H) * s2)


@triton.jit
def _value(y, g, to_y, s):
    """Do the backward pass of one gated coefficient; return its share of the gate's gradient."""
    gradient = tl.load(g)
    tl.store(to_y, gradient * s)
    return gradient * tl.load(y)


@triton.jit
def _gate_backward(
    block_0, block_1, block_2, gradient_0, gradient_1, gradient_2, to_0, to_1, to_2, n_edges,
    HIDDEN: tl.constexpr, MMAX: tl.constexpr,
):  # fmt: skip
    """Make the gradients of the blocks before the gate."""
    H = HIDDEN
    column = tl.arange(0, HIDDEN)
    for edge in range(tl.program_id(0).to(tl.int64), n_edges, tl.num_programs(0)):
        row_0, row_1, row_2 = edge * (5 * H) + column, edge * (4 * H) + column, edge * (2 * H) + column
        y_0, y_1, y_2 = block_0 + row_0, block_1 + row_1, block_2 + row_2
        t_0, t_1, t_2 = to_0 + row_0, to_1 + row_1, to_2 + row_2
        g_0, g_1, g_2 = gradient_0 + edge * (3 * H) + column, gradient_1 + row_1, gradient_2 + row_2
        s1 = tl.sigmoid(tl.load(y_0))
        s2 = tl.sigmoid(tl.load(y_0 + H))
        v = tl.load(y_0 + 2 * H)
        s = tl.sigmoid(v)
        tl.store(t_0 + 2 * H, tl.load(g_0) * (s * (1 + v * (1 - s))))
        sum_1 = _value(y_0 + 3 * H, g_0 + H, t_0 + 3 * H, s1)
        sum_2 = _value(y_0 + 4 * H, g_0 + 2 * H, t_0 + 4 * H, s2)
        sum_1 += _value(y_1, g_1, t_1, s1)
        sum_2 += _value(y_1 + H, g_1 + H, t_1 + H, s2)
        sum_1 += _value(y_1 + 2 * H, g_1 + 2 * H, t_1 + 2 * H, s1)
        sum_2 += _value(y_1 + 3 * H, g_1 + 3 * H, t_1 + 3 * H, s2)
        if MMAX == 2:
            sum_2 += _value(y_2, g_2, t_2, s2)
            sum_2 += _value(y_2 + H, g_2 + H, t_2 + H, s2)
        tl.store(t_0, sum_1 * s1 * (1 - s1))
        tl.store(t_0 + H, sum_2 * s2 * (1 - s2))


def has_kernel(blocks: Sequence[Tensor], channels: int) -> bool:
    """Tell whether the kernel serves these blocks: float32, width a power of two, on a device that it can run on."""
    power_of_two = channels > 0 and channels & (channels - 1) == 0
    float32 = all(block.dtype == torch.float32 for block in blocks)
    return power_of_two and float32 and can_launch(_gate_forward, blocks[0])


def gate(blocks: Sequence[Tensor], lmax: int, channels: int, *, max_programs: int = MAX_PROGRAMS) -> list[Tensor]:
    """Apply the gate activation, as `reference.gate`.

    Args:
        blocks: m-blocks; block 0 is [n_edges, 5 * channels] and begins with the gate scalars.
        lmax: Largest degree; the kernel serves 2, the reference everything else.
        channels: Width of each coefficient.
        max_programs: Largest number of programs of a launch.

    Returns:
        m-blocks without the gate scalars.

    Raises:
        ValueError: Blocks that do not fit together.
    """
    if lmax != LMAX or len(blocks) < 2:
        return reference.gate(blocks, lmax, channels)
    if len(blocks) > LMAX + 1:
        message = f"{len(blocks)} blocks are given; allowed are 2 to {LMAX + 1}, for m = 0..{LMAX}"
        raise ValueError(message)
    for m, (block, coefficients) in enumerate(zip(blocks, (5, 4, 2), strict=False)):
        check_tensor(f"block {m}", block, (blocks[0].shape[0], coefficients * channels), blocks[0].dtype)
    if not has_kernel(blocks, channels):
        return reference.gate(blocks, lmax, channels)
    absent = [empty(blocks[0], blocks[0].shape[0], 0)] * (3 - len(blocks))
    return list(_gate(*blocks, *absent, max_programs)[: len(blocks)])


@kernel_op("edgewise::gate")
def _gate(block_0: Tensor, block_1: Tensor, block_2: Tensor, max_programs: int) -> tuple[Tensor, Tensor, Tensor]:
    outputs = _empty_outputs(block_0, block_1, block_2)
    n_edges, hidden = block_0.shape[0], block_0.shape[1] // 5
    if n_edges:
        wrap_triton(_gate_forward)[(programs(n_edges, max_programs),)](
            *(block.contiguous() for block in (block_0, block_1, block_2)),
            *outputs,
            n_edges,
            HIDDEN=hidden,
            MMAX=2 if block_2.shape[1] else 1,
            num_warps=warps(hidden),
        )
    return outputs


def _empty_outputs(block_0: Tensor, block_1: Tensor, block_2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    first = empty(block_0, block_0.shape[0], block_0.shape[1] // 5 * 3)
    return first, empty(block_1, *block_1.shape), empty(block_2, *block_2.shape)


@_gate.register_fake
def _(block_0: Tensor, block_1: Tensor, block_2: Tensor, max_programs: int) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_outputs(block_0, block_1, block_2)


@kernel_op("edgewise::gate_backward")
def gate_backward(
    block_0: Tensor,
    block_1: Tensor,
    block_2: Tensor,
    gradient_0: Tensor,
    gradient_1: Tensor,
    gradient_2: Tensor,
    max_programs: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the three m-blocks before the gate for those of the blocks behind it."""
    first, second, third = (empty(block, *block.shape) for block in (block_0, block_1, block_2))
    n_edges, hidden = block_0.shape[0], block_0.shape[1] // 5
    if n_edges:
        inputs = (block_0, block_1, block_2, gradient_0, gradient_1, gradient_2)
        wrap_triton(_gate_backward)[(programs(n_edges, max_programs),)](
            *(tensor.contiguous() for tensor in inputs),
            first,
            second,
            third,
            n_edges,
            HIDDEN=hidden,
            MMAX=2 if block_2.shape[1] else 1,
            num_warps=warps(hidden),
        )
    return first, second, third


@gate_backward.register_fake
def _(
    block_0: Tensor,
    block_1: Tensor,
    block_2: Tensor,
    gradient_0: Tensor,
    gradient_1: Tensor,
    gradient_2: Tensor,
    max_programs: int,
) -> tuple[Tensor, Tensor, Tensor]:
    first, second, third = (empty(block, *block.shape) for block in (block_0, block_1, block_2))
    return first, second, third


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.max_programs = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    return (*gate_backward(*ctx.saved_tensors, *gradients, ctx.max_programs), None)


def _second_gradients(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    """Differentiate the first derivative, made again in the form that PyTorch can differentiate, as often as is wanted."""
    again = torch.is_grad_enabled()
    # Views cut the tensors off from each other: one may depend on another outside, and only the direct part belongs here.
    with torch.enable_grad():
        wanted = [
            item.view_as(item) if again and item.requires_grad else item.detach().requires_grad_()
            for item in ctx.saved_tensors
        ]
        blocks, output_gradients = wanted[:3], wanted[3:]
        present = 3 if blocks[2].shape[1] else 2
        activated = reference.gate(blocks[:present], LMAX, blocks[0].shape[1] // 5)
        first = torch.autograd.grad(activated, blocks[:present], output_gradients[:present], create_graph=True)
        chosen = [*blocks[:present], *output_gradients[:present]]
        found = torch.autograd.grad(first, chosen, list(gradients[:present]), create_graph=again)
    if present == 2:
        absent = torch.zeros_like(blocks[2])
        found = (*found[:2], absent, *found[2:], absent)
    return (*found, None)


_gate.register_autograd(_gradients, setup_context=_keep)
gate_backward.register_autograd(_second_gradients, setup_context=_keep)
