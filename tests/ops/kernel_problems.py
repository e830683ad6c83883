"""Random inputs of the kernels, and what every kernel test does: poisoned memory, counted compilations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from edgewise import so3
from edgewise.ops import gate, gather_rotate, rotate_scatter
from edgewise.ops.launch import MAX_PROGRAMS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

SIZES = [(0, 4), (1, 4), (7, 6), (17, 8)]
"""Edges and channels: none, one, primes, widths that are powers of two and not."""

if DEVICE == "cuda":
    # The width of published models, and one edge more than there are programs.
    SIZES += [(1009, 128), (MAX_PROGRAMS + 1, 4)]

BLOCK_SIZES = (3, 4, 2)
"""Coefficients of the orders 0, 1 and 2 for lmax = 2."""


class Problem:
    """Inputs of the operations on edges for lmax = 2."""

    def __init__(
        self, n_edges: int, channels: int, mmax: int = 2, dtype: torch.dtype = torch.float64, n_atoms: int = 5
    ) -> None:
        self.generator = torch.Generator().manual_seed(1000 * n_edges + channels)
        self.n_edges, self.channels, self.mmax, self.dtype, self.n_atoms = n_edges, channels, mmax, dtype, n_atoms
        edge_index = torch.randint(0, n_atoms, (2, n_edges), generator=self.generator)
        edge_index[1] = edge_index[1].sort().values
        self.edge_index = edge_index.to(DEVICE)
        self.directions = torch.nn.functional.normalize(self.random(n_edges, 3).detach(), dim=1)
        self.envelope = torch.rand(n_edges, generator=self.generator, dtype=torch.float64).to(DEVICE, dtype)
        self.nodes = self.random(n_atoms, 9, channels)
        self.radial = self.random(n_edges, 2 * channels * (6 if mmax == 2 else 5))

    def random(self, *shape: int) -> Tensor:
        values = torch.randn(*shape, generator=self.generator, dtype=torch.float64)
        return values.to(DEVICE, self.dtype).requires_grad_()

    @property
    def dense(self) -> Tensor:
        return so3.edge_rotations(self.directions, 2, self.mmax).detach().requires_grad_()

    @property
    def packed(self) -> Tensor:
        return so3.packed_edge_rotations(self.directions, 2, self.mmax).detach().requires_grad_()

    def blocks(self, channels: int, *, extra: int = 0, orders: int | None = None) -> list[Tensor]:
        """Return m-blocks with `extra` more coefficients in front of block 0."""
        orders = self.mmax if orders is None else orders
        return [
            self.random(self.n_edges, (size + (extra if m == 0 else 0)) * channels)
            for m, size in enumerate(BLOCK_SIZES[: orders + 1])
        ]

    def unpacked(self, packed: Tensor) -> Tensor:
        """Return packed values in the places of a dense rotation, zero elsewhere."""
        shape = (packed.shape[0], so3.n_coefficients(2) if self.mmax == 2 else 7, 9)
        dense = packed.new_zeros(shape).flatten(1)
        dense[:, list(so3.packed_entries(2, self.mmax))] = packed
        return dense.view(shape)


def gradients(outputs: list[Tensor], inputs: list[Tensor], seed: int = 0) -> list[Tensor]:
    """Return the gradients of random sums of the outputs, the same sums for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    factors = [
        torch.randn(item.shape, generator=generator, dtype=torch.float64).to(item.device, item.dtype)
        for item in outputs
    ]
    return list(torch.autograd.grad(outputs, inputs, factors, allow_unused=False))


def assert_close(found: list[Tensor], expected: list[Tensor], bound: float) -> None:
    """Compare relative to the largest entry of each tensor."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        if b.numel():
            assert (a - b).abs().max().item() <= bound * max(1.0, b.abs().max().item())


@contextmanager
def poisoned_memory(monkeypatch: Any) -> Iterator[None]:
    """Fill every tensor that an op makes without values with NaN, so that what it fails to write shows."""

    def poisoned(like: Tensor, *shape: int) -> Tensor:
        return torch.full(shape, torch.nan, dtype=like.dtype, device=like.device)

    with monkeypatch.context() as patch:
        for module in (gate, gather_rotate, rotate_scatter):
            patch.setattr(module, "empty", poisoned)
        yield


def count_compilations(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> int:
    """Run a function compiled without graph breaks and with dynamic shapes; return how often it was compiled."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
    torch._dynamo.utils.counters.clear()
    for arguments in calls:
        compiled(*arguments)
    count = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    torch._dynamo.reset()
    return count


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Ask torch for sums in fixed order."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(mode=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
