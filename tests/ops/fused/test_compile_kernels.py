"""Every kernel of mode fused compiles for GPUs that are not here, for all published shapes, without spilling registers."""

from __future__ import annotations

import pytest

from tests.ops import compile_kernels

pytestmark = pytest.mark.kernels

N_KERNELS = 3 * (10 + 2 * 4) + 4 + 2 * 8 + 6 + 2 * 3 + 6 + 2 + 2 * 2


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_kernels_compile_without_spills(capability: int) -> None:
    rows = compile_kernels.run("tests.ops.fused.compile_kernels", capability)
    assert len(rows) == N_KERNELS
    assert [row for row in rows if row["spilled_bytes"]] == []
    # Twelve warps of a multiprocessor run at once as long as none needs more than 168 registers a thread.
    wide = {row["kernel"] for row in rows if row["registers"] > 168}
    assert wide <= {"gather_rotate to target", "radial_hidden", "grid_feed_forward adjoint"}, (
        "what is new here has to be measured first"
    )
