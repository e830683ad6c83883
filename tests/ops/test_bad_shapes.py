"""Tensors that do not fit together are refused by name before a kernel reads beside them.

A target beyond the last atom is not among them: to see it the device would have to be waited for.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from edgewise.ops.gate import gate
from edgewise.ops.gather_rotate import gather_rotate
from edgewise.ops.rotate_scatter import rotate_scatter
from tests.ops.kernel_problems import DEVICE

pytestmark = pytest.mark.kernels

N_EDGES, N_ATOMS, CHANNELS = 4, 3, 2


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


def indices(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


def refused(name: str, given: object, expected: object) -> Any:
    """Expect an error that tells the argument, what it is and what it should be."""
    pattern = f"^{re.escape(name)} .*{re.escape(str(given))}.*{re.escape(str(expected))}"
    return pytest.raises(ValueError, match=pattern)


GATHERED: dict[str, tuple[int, ...]] = {
    "nodes": (N_ATOMS, 9, CHANNELS),
    "edge_index": (2, N_EDGES),
    "rotations": (N_EDGES, 35),
    "radial": (N_EDGES, 12 * CHANNELS),
}


def call_gather_rotate(**replaced: Tensor) -> list[Tensor]:
    given = {name: indices(*shape) if name == "edge_index" else zeros(*shape) for name, shape in GATHERED.items()}
    given.update(replaced)
    return gather_rotate(given["nodes"], given["edge_index"], given["rotations"], given["radial"], 2)


def test_gather_rotate_takes_what_fits() -> None:
    assert len(call_gather_rotate()) == 3
    # The rotation says which orders there are, and so how many radial factors.
    assert len(call_gather_rotate(rotations=zeros(N_EDGES, 25), radial=zeros(N_EDGES, 10 * CHANNELS))) == 2


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        pytest.param("nodes", (N_ATOMS, 8, CHANNELS), "9", id="coefficients"),
        pytest.param("nodes", (N_ATOMS, 25, CHANNELS), "9", id="lmax 4"),
        pytest.param("nodes", (N_ATOMS, 9 * CHANNELS), "9", id="flat nodes"),
        pytest.param("edge_index", (2, N_EDGES + 1), (2, N_EDGES), id="more edges"),
        pytest.param("edge_index", (2, N_EDGES - 1), (2, N_EDGES), id="fewer edges"),
        pytest.param("edge_index", (N_EDGES, 2), (2, N_EDGES), id="turned edges"),
        pytest.param("edge_index", (2 * N_EDGES,), (2, N_EDGES), id="flat edges"),
        pytest.param("radial", (N_EDGES + 1, 12 * CHANNELS), (N_EDGES, 12 * CHANNELS), id="more factors"),
        pytest.param("radial", (N_EDGES - 1, 12 * CHANNELS), (N_EDGES, 12 * CHANNELS), id="fewer factors"),
        pytest.param("radial", (N_EDGES, 10 * CHANNELS), (N_EDGES, 12 * CHANNELS), id="factors of mmax 1"),
        pytest.param("radial", (N_EDGES, 6 * CHANNELS), (N_EDGES, 12 * CHANNELS), id="factors of one end"),
        pytest.param("radial", (N_EDGES, 6, 2 * CHANNELS), (N_EDGES, 12 * CHANNELS), id="factors not flat"),
    ],
)
def test_gather_rotate_refuses_shapes(name: str, shape: tuple[int, ...], expected: object) -> None:
    made = indices(*shape) if name == "edge_index" else zeros(*shape)
    with refused(name, shape, expected):
        call_gather_rotate(**{name: made})


def test_gather_rotate_refuses_factors_of_mmax_2_for_rotations_of_mmax_1() -> None:
    with refused("radial", (N_EDGES, 12 * CHANNELS), (N_EDGES, 10 * CHANNELS)):
        call_gather_rotate(rotations=zeros(N_EDGES, 25))


def test_gather_rotate_refuses_factors_of_other_channels_than_the_nodes_have() -> None:
    with refused("radial", (N_EDGES, 12 * CHANNELS), (N_EDGES, 12 * (CHANNELS + 1))):
        call_gather_rotate(nodes=zeros(N_ATOMS, 9, CHANNELS + 1))


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("n_edges", [0, N_EDGES - 1, N_EDGES + 1])
def test_gather_rotate_refuses_another_number_of_rotations(n_edges: int, dense: bool) -> None:
    with pytest.raises(ValueError, match=rf"\(2, {N_EDGES}\).*\(2, {n_edges}\)"):
        call_gather_rotate(rotations=zeros(n_edges, 9, 9) if dense else zeros(n_edges, 35))


@pytest.mark.parametrize("name", ["nodes", "radial"])
def test_gather_rotate_refuses_types(name: str) -> None:
    with refused(name, torch.float64, torch.float32):
        call_gather_rotate(**{name: zeros(*GATHERED[name], dtype=torch.float64)})


def test_gather_rotate_refuses_rotations_of_another_type_than_all_others() -> None:
    with pytest.raises(ValueError, match=r"torch\.float32.*torch\.float64"):
        call_gather_rotate(rotations=zeros(N_EDGES, 35, dtype=torch.float64))


def test_gather_rotate_refuses_indices_of_32_bits() -> None:
    with refused("edge_index", torch.int32, torch.int64):
        call_gather_rotate(edge_index=indices(2, N_EDGES, dtype=torch.int32))


WIDTHS = [3 * CHANNELS, 4 * CHANNELS, 2 * CHANNELS]


def call_rotate_scatter(
    blocks: list[Tensor] | None = None,
    edge_index: Tensor | None = None,
    rotations: Tensor | None = None,
    channels: int = CHANNELS,
) -> Tensor:
    return rotate_scatter(
        [zeros(N_EDGES, width) for width in WIDTHS] if blocks is None else blocks,
        indices(2, N_EDGES) if edge_index is None else edge_index,
        zeros(N_EDGES, 35) if rotations is None else rotations,
        N_ATOMS,
        channels,
    )


def with_block(widths: list[int], m: int, block: Tensor) -> list[Tensor]:
    """Return blocks of these widths with another one in place of block m."""
    return [block if order == m else zeros(N_EDGES, width) for order, width in enumerate(widths)]


def test_rotate_scatter_takes_what_fits() -> None:
    for n_blocks in (1, 2, 3):
        blocks = [zeros(N_EDGES, width) for width in WIDTHS[:n_blocks]]
        assert call_rotate_scatter(blocks).shape == (N_ATOMS, 9, CHANNELS)


@pytest.mark.parametrize("m", [0, 1, 2])
@pytest.mark.parametrize(("more_edges", "more_columns"), [(1, 0), (-1, 0), (0, 1), (0, -1), (0, CHANNELS)])
def test_rotate_scatter_refuses_blocks(m: int, more_edges: int, more_columns: int) -> None:
    shape = (N_EDGES + more_edges, WIDTHS[m] + more_columns)
    with refused(f"block {m}", shape, (N_EDGES, WIDTHS[m])):
        call_rotate_scatter(with_block(WIDTHS, m, zeros(*shape)))


@pytest.mark.parametrize("channels", [1, CHANNELS + 1])
def test_rotate_scatter_refuses_other_channels_than_the_blocks_have(channels: int) -> None:
    with refused("block 0", (N_EDGES, 3 * CHANNELS), (N_EDGES, 3 * channels)):
        call_rotate_scatter(channels=channels)


@pytest.mark.parametrize("shape", [(2, N_EDGES + 1), (2, N_EDGES - 1), (N_EDGES, 2), (1, N_EDGES)])
def test_rotate_scatter_refuses_edges(shape: tuple[int, ...]) -> None:
    with refused("edge_index", shape, (2, N_EDGES)):
        call_rotate_scatter(edge_index=indices(*shape))


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("n_edges", [0, N_EDGES - 1, N_EDGES + 1])
def test_rotate_scatter_refuses_another_number_of_rotations(n_edges: int, dense: bool) -> None:
    with pytest.raises(ValueError, match=rf"\(2, {N_EDGES}\).*\(2, {n_edges}\)"):
        call_rotate_scatter(rotations=zeros(n_edges, 9, 9) if dense else zeros(n_edges, 35))


@pytest.mark.parametrize(("n_blocks", "rotations"), [(0, 35), (4, 35), (3, 25)])
def test_rotate_scatter_refuses_more_orders_than_the_rotations_have_and_none(n_blocks: int, rotations: int) -> None:
    blocks = [zeros(N_EDGES, width) for width in [*WIDTHS, CHANNELS][:n_blocks]]
    with pytest.raises(ValueError, match=rf"{n_blocks} blocks .* 1 to {3 if rotations == 35 else 2}"):
        call_rotate_scatter(blocks, rotations=zeros(N_EDGES, rotations))


@pytest.mark.parametrize("m", [0, 1, 2])
def test_rotate_scatter_refuses_types(m: int) -> None:
    with refused(f"block {m}", torch.float64, torch.float32):
        call_rotate_scatter(with_block(WIDTHS, m, zeros(N_EDGES, WIDTHS[m], dtype=torch.float64)))


def test_rotate_scatter_refuses_rotations_of_another_type_than_all_others() -> None:
    with refused("block 0", torch.float32, torch.float64):
        call_rotate_scatter(rotations=zeros(N_EDGES, 35, dtype=torch.float64))


def test_rotate_scatter_refuses_indices_of_32_bits() -> None:
    with refused("edge_index", torch.int32, torch.int64):
        call_rotate_scatter(edge_index=indices(2, N_EDGES, dtype=torch.int32))


GATED = [5 * CHANNELS, 4 * CHANNELS, 2 * CHANNELS]


def test_gate_takes_what_fits() -> None:
    for n_blocks in (2, 3):
        assert len(gate([zeros(N_EDGES, width) for width in GATED[:n_blocks]], 2, CHANNELS)) == n_blocks


@pytest.mark.parametrize("m", [0, 1, 2])
@pytest.mark.parametrize(("more_edges", "more_columns"), [(1, 0), (-1, 0), (0, 1), (0, -1), (0, CHANNELS)])
def test_gate_refuses_blocks(m: int, more_edges: int, more_columns: int) -> None:
    if m == 0 and more_edges:
        # The first block says how many edges there are, so that the second one is the first that differs.
        given, name = zeros(N_EDGES + more_edges, GATED[0]), "block 1"
        shape, expected = (N_EDGES, GATED[1]), (N_EDGES + more_edges, GATED[1])
    else:
        shape, expected = (N_EDGES + more_edges, GATED[m] + more_columns), (N_EDGES, GATED[m])
        given, name = zeros(*shape), f"block {m}"
    with refused(name, shape, expected):
        gate(with_block(GATED, m, given), 2, CHANNELS)


@pytest.mark.parametrize("channels", [1, 2 * CHANNELS])
def test_gate_refuses_other_channels_than_the_blocks_have(channels: int) -> None:
    with refused("block 0", (N_EDGES, 5 * CHANNELS), (N_EDGES, 5 * channels)):
        gate([zeros(N_EDGES, width) for width in GATED], 2, channels)


def test_the_gate_refuses_a_fourth_order_and_mixed_types() -> None:
    block_0, block_1, block_2 = (zeros(3, width * 8) for width in (5, 4, 2))
    with pytest.raises(ValueError, match="4 blocks are given"):
        gate([block_0, block_1, block_2, block_2], 2, 8)
    with pytest.raises(ValueError, match=r"block 1 is torch\.float64"):
        gate([block_0, block_1.double(), block_2], 2, 8)
