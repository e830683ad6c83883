"""Precision of matrix products during a call, put back as it was afterwards whatever happens."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch

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
