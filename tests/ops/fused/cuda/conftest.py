"""Where there is no GPU, the kernels of this folder run in the emulator."""

from __future__ import annotations

import pytest

from edgewise.ops.fused.cuda import _radial_form, gated_products, gather_rotate, radial_hidden, rotate_sum
from edgewise.ops.fused.cuda.radial_hidden import Limits
from tests.ops.fused.cuda import emulator
from tests.ops.kernel_problems import DEVICE


@pytest.fixture(name="somewhere")
def _somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cuda":
        return
    for module in (gather_rotate, radial_hidden, rotate_sum):
        monkeypatch.setattr(module, "launch", emulator.launch)
    monkeypatch.setattr(gated_products, "launch_text", emulator.launch_text)
    # Few warps, since each lane of one is a thread.
    monkeypatch.setattr(_radial_form, "MOST_WARPS", 2)
    monkeypatch.setattr(radial_hidden, "limits", lambda _: Limits(multiprocessors=4, shared_bytes=227 * 1024))
