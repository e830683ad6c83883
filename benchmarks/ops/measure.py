"""How an operation is judged: checked first, then timed with its peak memory, as rows of plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from checks import CheckFailedError, require
from torch import Tensor

Timed = Callable[[], Sequence[Tensor]]

FLOAT32_BOUND = 2e-6
"""Largest relative L2 difference of operations in float32: some ten roundings."""


def relative(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """Return the relative L2 difference of lists of tensors, the larger over the pairs; NaN anywhere gives NaN."""
    for x, y in zip(a, b, strict=True):
        if x.shape != y.shape:
            message = f"shapes {tuple(x.shape)} and {tuple(y.shape)} differ; nothing was timed"
            raise CheckFailedError(message)
    values = [
        float((x.double() - y.double()).norm() / y.double().norm().clamp_min(1e-30)) for x, y in zip(a, b, strict=True)
    ]
    return float("nan") if any(value != value for value in values) else max(values)  # noqa: PLR0124


def milliseconds(function: Timed, repeats: int = 100) -> float:
    """Return the median time of a call, with caches flushed between calls."""
    return float(triton.testing.do_bench(function, warmup=25, rep=repeats, return_mode="median"))


def peak_mebibytes(function: Timed) -> float:
    """Return the memory that a call takes at its peak, beyond what is there before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = function()
    torch.cuda.synchronize()
    del kept
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def compare(
    name: str,
    ours: Timed,
    replaced: Timed,
    *,
    bound: float,
    exact: Sequence[Tensor] | None = None,
    read: Callable[[Sequence[Tensor]], Sequence[Tensor]] | None = None,
    read_replaced: Callable[[Sequence[Tensor]], Sequence[Tensor]] | None = None,
) -> dict[str, Any]:
    """Return one row: time, memory, difference and equality of two ways to compute the same.

    Args:
        name: Of the row.
        ours: The way that is in use.
        replaced: The way that it takes the place of.
        bound: Largest relative L2 difference between both, and from `exact`; 0 asks for the same bits.
        exact: The same in float64, for the error of each.
        read: Turns what `ours` returns into what is compared, outside of what is timed; None where it is the same.
        read_replaced: The same for what `replaced` returns.

    Raises:
        CheckFailedError: A difference is larger or NaN, or shapes differ; nothing is timed then.
    """
    a = ours() if read is None else read(ours())
    b = replaced() if read_replaced is None else read_replaced(replaced())
    row: dict[str, Any] = {
        "row": name,
        "relative_difference": relative(a, b),
        "bitwise": all(torch.equal(x, y) for x, y in zip(a, b, strict=True)),
    }
    require(f"{name}: the difference from what is replaced", row["relative_difference"], bound)
    if exact is not None:
        row["error"], row["error_replaced"] = relative(a, exact), relative(b, exact)
        for key in ("error", "error_replaced"):
            require(f"{name}: {key}", row[key], bound)
    del a, b
    row |= {
        "ms": round(milliseconds(ours), 4),
        "ms_replaced": round(milliseconds(replaced), 4),
        "MiB": round(peak_mebibytes(ours), 1),
        "MiB_replaced": round(peak_mebibytes(replaced), 1),
    }
    return row
