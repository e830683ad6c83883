"""Where there is no GPU, the kernels of this folder run in the emulator."""

from __future__ import annotations

import pytest

from edgewise.ops.fused.cuda import gated_products, gather_rotate, rotate_sum
from tests.ops.fused.cuda import emulator
from tests.ops.kernel_problems import DEVICE


@pytest.fixture(name="somewhere")
def _somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cuda":
        return
    for module in (gather_rotate, rotate_sum):
        monkeypatch.setattr(module, "launch", emulator.launch)
    monkeypatch.setattr(gated_products, "launch_text", emulator.launch_text)
