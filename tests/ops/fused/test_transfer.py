"""Copies between the device and pinned memory."""

from __future__ import annotations

import pytest
import torch

from edgewise.ops.fused.transfer import VALUES, transfer
from tests.ops.kernel_problems import DEVICE

pytestmark = pytest.mark.kernels

PINNED = DEVICE == "cuda"


@pytest.mark.parametrize("n_values", [0, 1, 7, VALUES, VALUES + 1, 3 * VALUES + 5])
@pytest.mark.parametrize("to_host", [False, True])
def test_values_arrive(n_values: int, to_host: bool) -> None:
    values = torch.rand(n_values, dtype=torch.float64)
    on_host = torch.full((n_values + 1,), torch.nan, dtype=torch.float64, pin_memory=PINNED)
    on_device = torch.full((n_values + 1,), torch.nan, dtype=torch.float64, device=DEVICE)
    source, out = (on_device, on_host) if to_host else (on_host, on_device)
    source[:n_values] = values
    place = out[:n_values]
    assert transfer(source[:n_values], place) is place
    if PINNED:
        torch.cuda.synchronize()
    assert torch.equal(out[:n_values].cpu(), values)
    assert out[n_values].isnan(), "nothing is written behind the end"


def test_what_does_not_fit_is_refused() -> None:
    values = torch.zeros(3, dtype=torch.float64, device=DEVICE)
    with pytest.raises(ValueError, match="out has shape"):
        transfer(values, torch.zeros(4, dtype=torch.float64, device=DEVICE))
    with pytest.raises(ValueError, match=r"given is torch.float64"):
        transfer(values, torch.zeros(3, device=DEVICE))


@pytest.mark.gpu
def test_memory_that_is_not_pinned_is_refused() -> None:
    with pytest.raises(ValueError, match="pinned"):
        transfer(torch.zeros(3), torch.zeros(3, device="cuda"))
