"""How an operation is judged: checked first, then timed with its peak memory, as rows of plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor

Timed = Callable[[], Sequence[Tensor]]


def relative(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """Return the relative L2 difference of lists of tensors, the larger over the pairs; NaN anywhere gives NaN."""
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


def compare(name: str, ours: Timed, replaced: Timed, exact: Sequence[Tensor] | None = None) -> dict[str, Any]:
    """Return one row: time, memory, difference and equality of two ways to compute the same.

    Args:
        name: Of the row.
        ours: The way that is in use.
        replaced: The way that it takes the place of.
        exact: The same in float64, for the error of each.
    """
    a, b = ours(), replaced()
    row: dict[str, Any] = {
        "row": name,
        "relative_difference": relative(a, b),
        "bitwise": all(torch.equal(x, y) for x, y in zip(a, b, strict=True)),
    }
    if exact is not None:
        row["error"], row["error_replaced"] = relative(a, exact), relative(b, exact)
    row |= {
        "ms": round(milliseconds(ours), 4),
        "ms_replaced": round(milliseconds(replaced), 4),
        "MiB": round(peak_mebibytes(ours), 1),
        "MiB_replaced": round(peak_mebibytes(replaced), 1),
    }
    return row
