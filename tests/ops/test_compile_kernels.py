"""Every kernel compiles for GPUs that are not here, without spilling registers and with room for all edges."""

from __future__ import annotations

import pytest

from tests.ops import compile_kernels

pytestmark = pytest.mark.kernels

N_KERNELS = 26


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_kernels_compile_without_spills(capability: int) -> None:
    rows = compile_kernels.run("tests.ops.compile_kernels", capability)
    assert len(rows) == N_KERNELS
    assert [row for row in rows if row["spilled_bytes"]] == []
    # A radial tensor of 1.4 million edges has 2^31 values. `test_large.py` runs such problems where there is a GPU.
    assert [row for row in rows if row["edge_bits"] != 64] == []
    # A multiprocessor has 65,536 registers: twelve warps run at once as long as none needs more than 168 a thread.
    assert max(row["registers"] for row in rows) <= 168
