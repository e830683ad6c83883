"""Times the radial networks of mode fused up to their last layer, all in one kernel, beside plain PyTorch.

python benchmarks/ops/fused/radial_hidden.py [copper | random]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
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


def rows(graph: str, row_format: RowFormat, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and format; tests give a problem of their own."""
    given = given or problem.make(graph, row_format)
    c, n_basis, float32 = given.channels, problem.N_BASIS, torch.float32
    basis, source, target, linear = (
        given.random(N_NETWORKS, *shape, seed=seed, dtype=float32)
        for seed, shape in enumerate([(c, n_basis), (N_ELEMENTS, c), (N_ELEMENTS, c), (c, c)])
    )
    vectors = given.random(N_NETWORKS, 5, c, seed=7, dtype=float32)

    def weights(network: int, to: torch.dtype) -> HiddenWeights:
        first_scale, first_shift, bias, second_scale, second_shift = vectors[network].to(to)
        return HiddenWeights(
            first_scale, first_shift, linear[network].to(to) * c**-0.5, bias, second_scale, second_shift
        )

    hidden = [weights(network, float32) for network in range(N_NETWORKS)]
    stack = radial_stack(list(basis), list(source), list(target), hidden)
    numbers = torch.arange(given.n_atoms, device=given.device) % N_ELEMENTS
    distance, chosen = given.geometry(float32).distance, given.row_format
    columns = [chosen.hidden_columns(c, constant=constant) for constant in (True, False)]

    def ours() -> list[Tensor]:
        made = [given.empty(N_NETWORKS, given.n_edges, count, dtype=chosen.operands) for count in columns]
        radial_hidden(distance, numbers.int(), given.edges, CUTOFF, stack, *made, row_format=chosen)
        return made

    def read(found: Sequence[Tensor]) -> list[Tensor]:
        # Both parts together are what the last layer multiplies.
        return [sum_of_parts(item) for item in found]

    def sum_of_parts(item: Tensor) -> Tensor:
        if item.shape[-1] == c:
            return item.float()
        first, second = item[..., :c].float(), item[..., c : 2 * c].float()
        return problem.value_of_parts(second, first) if chosen.parts == 2 else first + second

    def plain(to: torch.dtype) -> list[Tensor]:
        geometry, found = given.geometry(to), []
        for network in range(N_NETWORKS):
            first = geometry.gaussians @ basis[network].to(to).T
            first += (
                source[network].to(to)[numbers[given.order.source]]
                + target[network].to(to)[numbers[given.order.target]]
            )
            slope = geometry.gaussian_slopes @ basis[network].to(to).T
            found.append(hidden_with_slope(first, slope, weights(network, to)))
        return [torch.stack([item[part] for item in found]) for part in range(2)]

    return [problem.compare(given, "radial_hidden", "values and slopes", ours, plain, read)]


if __name__ == "__main__":
    problem.main(rows, __doc__)
