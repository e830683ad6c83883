"""Times the radial networks of mode fused up to their last layer, all in one kernel, beside plain PyTorch.

python benchmarks/ops/fused/radial_hidden.py [copper | random]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from ops.fused import problem
from sizes import CUTOFF
from torch import Tensor

from edgewise.ops.fused.radial_hidden import radial_hidden, radial_stack
from edgewise.ops.fused.row_format import RowFormat
from edgewise.ops.reference.radial_network import HiddenWeights, hidden_with_slope

N_NETWORKS, N_ELEMENTS = 5, 100
"""Networks of UMA-S: of the embedding and of four blocks."""


class Networks:
    """Random networks of the width of the rows, and what kernels and plain PyTorch make of them."""

    def __init__(self, given: problem.FusedProblem) -> None:
        """Make the weights."""
        self.given, c, float32 = given, given.channels, torch.float32
        self._basis, self._source, self._target, self._linear = (
            given.random(N_NETWORKS, *shape, seed=seed, dtype=float32)
            for seed, shape in enumerate([(c, problem.N_BASIS), (N_ELEMENTS, c), (N_ELEMENTS, c), (c, c)])
        )
        self._vectors = given.random(N_NETWORKS, 5, c, seed=7, dtype=float32)
        hidden = [self._weights(network, float32) for network in range(N_NETWORKS)]
        self._stack = radial_stack(list(self._basis), list(self._source), list(self._target), hidden)
        self._numbers = torch.arange(given.n_atoms, device=given.device) % N_ELEMENTS
        self._distance = given.geometry(float32).distance
        self._columns = [given.row_format.hidden_columns(c, constant=constant) for constant in (True, False)]

    def _weights(self, network: int, to: torch.dtype) -> HiddenWeights:
        first_scale, first_shift, bias, second_scale, second_shift = self._vectors[network].to(to)
        linear = self._linear[network].to(to) * self.given.channels**-0.5
        return HiddenWeights(first_scale, first_shift, linear, bias, second_scale, second_shift)

    def kernel(self, *, in_cuda: bool) -> list[Tensor]:
        """Return values and slopes as a kernel writes them."""
        given, chosen = self.given, self.given.row_format
        made = [given.empty(N_NETWORKS, given.n_edges, count, dtype=chosen.operands) for count in self._columns]
        inputs = self._distance, self._numbers.int(), given.edges, CUTOFF, self._stack, *made
        radial_hidden(*inputs, row_format=chosen, in_cuda=in_cuda)
        return made

    def read(self, found: Sequence[Tensor]) -> list[Tensor]:
        """Return what kernels have written as float32: both parts together are what the last layer multiplies."""
        return [self._sum_of_parts(item) for item in found]

    def _sum_of_parts(self, item: Tensor) -> Tensor:
        c = self.given.channels
        if item.shape[-1] == c:
            return item.float()
        first, second = item[..., :c].float(), item[..., c : 2 * c].float()
        return problem.value_of_parts(second, first) if self.given.row_format.parts == 2 else first + second

    def plain(self, to: torch.dtype) -> list[Tensor]:
        """Return values and slopes by plain PyTorch in a type."""
        geometry, order, found = self.given.geometry(to), self.given.order, []
        for network in range(N_NETWORKS):
            first = geometry.gaussians @ self._basis[network].to(to).T
            first += (
                self._source[network].to(to)[self._numbers[order.source]]
                + self._target[network].to(to)[self._numbers[order.target]]
            )
            slope = geometry.gaussian_slopes @ self._basis[network].to(to).T
            found.append(hidden_with_slope(first, slope, self._weights(network, to)))
        return [torch.stack([item[part] for item in found]) for part in range(2)]


def rows(graph: str, row_format: RowFormat, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and format; tests give a problem of their own."""
    networks = Networks(given or problem.make(graph, row_format))
    ours = partial(networks.kernel, in_cuda=False)
    return [problem.compare(networks.given, "radial_hidden", "values and slopes", ours, networks.plain, networks.read)]


if __name__ == "__main__":
    problem.main(rows, __doc__)
