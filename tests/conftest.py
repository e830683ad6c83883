"""Shared set-up of the tests."""

from __future__ import annotations

import os

import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    # Each worker has one core; more threads would only wait for each other.
    torch.set_num_threads(1)
