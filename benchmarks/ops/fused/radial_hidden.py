"""Times the radial networks of mode fused up to their last layer, all in one kernel, beside plain PyTorch.

python benchmarks/ops/fused/radial_hidden.py [copper | random]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from ops.fused import problem
from sizes import CUTOFF
from torch import Tensor

from edgewise.ops.fused.radial_hidden import radial_hidden, radial_stack
from edgewise.ops.reference.radial_network import HiddenWeights, hidden_with_slope

N_NETWORKS, N_ELEMENTS = 5, 100
"""Networks of UMA-S: of the embedding and of four blocks."""


def rows(graph: str, dtype: torch.dtype, given: problem.FusedProblem | None = None) -> list[dict[str, Any]]:
    """Return the rows of one graph and type; tests give a problem of their own."""
    given = given or problem.make(graph, dtype)
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
    distance, parts = given.geometry(float32).distance, 2 if given.dtype == torch.float16 else 1

    def ours() -> list[Tensor]:
        values, slopes = (given.empty(N_NETWORKS, given.n_edges, parts * c) for _ in range(2))
        radial_hidden(distance, numbers.int(), given.edges, CUTOFF, stack, values, slopes, exact_slopes=parts == 1)
        # Both parts together are what the last layer multiplies.
        return [item if parts == 1 else item[..., :c].float() + item[..., c:].float() for item in (values, slopes)]

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

    return [problem.compare(given, "radial_hidden", "values and slopes", ours, plain)]


if __name__ == "__main__":
    problem.main(rows, __doc__)
