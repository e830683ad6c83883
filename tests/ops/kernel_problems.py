"""Random inputs of the kernels, and what every kernel test does: poisoned memory, counted compilations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
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


def _columns_apart(tensor: Tensor) -> Tensor:
    wide = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1]), _FILLER[tensor.is_floating_point()])
    wide[..., ::2] = tensor
    return wide[..., ::2]


def _rows_apart(tensor: Tensor) -> Tensor:
    wide = tensor.new_full((*tensor.shape[:-1], tensor.shape[-1] + 3), _FILLER[tensor.is_floating_point()])
    wide[..., 1:-2] = tensor
    return wide[..., 1:-2]


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


_FILLER = {True: torch.nan, False: 0}
"""Between the values of a tensor that is not contiguous: shows where it is read, and is the index of an atom."""

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "columns apart": _columns_apart,
    "rows apart": _rows_apart,
    "transposed": _transposed,
}
"""Ways for the same values to stand in memory that is not contiguous."""


def laid_out(tensor: Tensor, layout: str) -> Tensor:
    """Return a leaf with the values of a tensor in another layout."""
    made = LAYOUTS[layout](tensor.detach())
    assert torch.equal(made, tensor)
    assert not made.is_contiguous()
    return made.requires_grad_(tensor.requires_grad)


def gradients_for(outputs: list[Tensor], inputs: list[Tensor], factors: list[Tensor]) -> list[Tensor]:
    """Return the gradients of the inputs for given ones of the outputs."""
    return list(torch.autograd.grad(outputs, inputs, factors))


@contextmanager
def poisoned_memory(monkeypatch: Any) -> Iterator[None]:
    """Fill every tensor that an op makes without values with NaN, so that what it fails to write shows."""

    def poisoned(like: Tensor, *shape: int) -> Tensor:
        return torch.full(shape, torch.nan, dtype=like.dtype, device=like.device)

    with monkeypatch.context() as patch:
        for module in (gate, gather_rotate, rotate_scatter):
            patch.setattr(module, "empty", poisoned)
        yield


@dataclass
class Launch:
    """One launch of a kernel.

    Attributes:
        module: Name of the module that the kernel is in.
        grid: Programs along each axis.
        constants: Keyword arguments: what the kernel is compiled for.
    """

    module: str
    grid: tuple[int, ...]
    constants: dict[str, Any]


@dataclass
class Record:
    """What the operations do.

    Attributes:
        launches: Kernels.
        allocations: Module and shape of each tensor that an operation makes without values.
    """

    launches: list[Launch] = field(default_factory=list)
    allocations: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)


class _Recorded:
    """A kernel that notes its launches before it makes them."""

    def __init__(self, kernel: Any, module: str, record: Record) -> None:
        self.kernel, self.module, self.record = kernel, module, record

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **constants: Any) -> None:
            self.record.launches.append(Launch(self.module, tuple(grid), constants))
            self.kernel[grid](*arguments, **constants)

        return launch


def recorded(monkeypatch: Any) -> Record:
    """Return a record that grows with what the kernels' modules do, until the monkeypatch is undone."""
    record = Record()

    def watch(module: Any, name: str) -> None:
        wrap, make = module.wrap_triton, module.empty

        def empty(like: Tensor, *shape: int) -> Tensor:
            record.allocations.append((name, shape))
            return make(like, *shape)

        monkeypatch.setattr(module, "wrap_triton", lambda kernel: _Recorded(wrap(kernel), name, record))
        monkeypatch.setattr(module, "empty", empty)

    for module in (gate, gather_rotate, rotate_scatter):
        watch(module, module.__name__.rpartition(".")[2])
    return record


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


def same_order() -> AbstractContextManager[None]:
    """Make sums repeat to the bit: the interpreter's do, those of a GPU's atomic additions only when they are told to."""
    return deterministic_algorithms() if DEVICE == "cuda" else nullcontext()
