"""State of torch that a call needs, put back as it was afterwards whatever happens."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import deterministic

from edgewise.settings import Precision

TORCH_DTYPES: dict[Precision, torch.dtype] = {
    "fast": torch.float32,
    "tf32": torch.float32,
    "float32": torch.float32,
    "float64": torch.float64,
}
"""Type of parameters and activations for each precision."""


@contextmanager
def matmul_precision(precision: Precision) -> Generator[None]:
    """Set the precision of float32 matrix products for the duration of a call.

    "tf32" allows TF32 on GPUs; every other precision asks for IEEE products on GPU and CPU, even where the program
    around has allowed less.
    """
    # torch's type hints do not know the second one.
    cuda, cpu = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue]
    before = cuda.fp32_precision, cpu.fp32_precision
    try:
        cuda.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        cpu.fp32_precision = "ieee"
        yield
    finally:
        cuda.fp32_precision, cpu.fp32_precision = before


@contextmanager
def fixed_order() -> Generator[None]:
    """Ask torch for operations whose sums have a fixed order, where it has them, for the duration of a call."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    options: Any = deterministic  # made at run time, so that type checkers do not know them
    fill = options.fill_uninitialized_memory
    try:
        # What has no such form (cuBLAS without a fixed workspace, which one stream does not need) is allowed to run.
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        options.fill_uninitialized_memory = False
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*[Dd]eterministic", category=UserWarning)
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        options.fill_uninitialized_memory = fill
