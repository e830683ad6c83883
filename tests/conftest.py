"""Shared set-up of the tests."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    # Kernels run in Triton's interpreter where there is no GPU; Triton reads this when a kernel is defined.
    os.environ.setdefault("TRITON_INTERPRET", "1")

if "PYTEST_XDIST_WORKER" in os.environ:
    # Each worker has one core; more threads would only wait for each other.
    torch.set_num_threads(1)
