"""Random radial networks, and checks of their kernel against the reference in float64, in Triton and in CUDA C++ alike."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from edgewise.ops.fused.radial_hidden import RadialStack, radial_hidden, radial_stack
from edgewise.ops.fused.row_format import FLOAT16, SPLIT, RowFormat
from edgewise.ops.reference.radial_network import HiddenWeights, hidden_with_slope
from tests import tolerances
from tests.ops.fused.problems import CUTOFF, SPARE, Problem, poisoned
from tests.ops.kernel_problems import DEVICE

N_ELEMENTS, N_NETWORKS = 6, 2


class Networks:
    """Random networks, and their values by the reference."""

    def __init__(self, given: Problem, n_hidden: int, n_basis: int) -> None:
        self.given, self.n_basis = given, n_basis
        scale = n_hidden**-0.5
        self.basis = [given.random(n_hidden, n_basis) for _ in range(N_NETWORKS)]
        self.source = [given.random(N_ELEMENTS, n_hidden) for _ in range(N_NETWORKS)]
        self.target = [given.random(N_ELEMENTS, n_hidden) for _ in range(N_NETWORKS)]
        self.hidden = [
            HiddenWeights(
                1 + 0.1 * given.random(n_hidden),
                0.1 * given.random(n_hidden),
                scale * given.random(n_hidden, n_hidden),
                0.1 * given.random(n_hidden),
                1 + 0.1 * given.random(n_hidden),
                0.1 * given.random(n_hidden),
            )
            for _ in range(N_NETWORKS)
        ]
        self.numbers = torch.randint(N_ELEMENTS, (given.n_atoms,), generator=given.generator).to(DEVICE)

    def stack(self) -> RadialStack:
        return radial_stack(self.basis, self.source, self.target, self.hidden)

    def expected(self, network: int) -> tuple[Tensor, Tensor]:
        centres = torch.linspace(0, CUTOFF, self.n_basis, dtype=torch.float64, device=DEVICE)
        width = 2 * (centres[1] - centres[0])
        offset = (self.given.geometry.distance[:, None] - centres) / width
        gaussians = torch.exp(-0.5 * offset**2)
        first = functional.linear(gaussians, self.basis[network])
        first = first + self.source[network][self.numbers[self.given.order.source]]
        first = first + self.target[network][self.numbers[self.given.order.target]]
        slope = functional.linear(-gaussians * offset / width, self.basis[network])
        return hidden_with_slope(first, slope, self.hidden[network])


def check_values_and_slopes(n_edges: int, n_hidden: int, n_basis: int, *, in_cuda: bool) -> None:
    """Compare with the reference, in rows that are NaN before."""
    given = Problem(2, 2, n_edges, 4)
    networks = Networks(given, n_hidden, n_basis)
    values, slopes = (poisoned(N_NETWORKS, given.capacity, n_hidden) for _ in range(2))
    distance = given.filled(given.geometry.distance.float())
    inputs = distance, networks.numbers.int(), given.edges, CUTOFF, networks.stack(), values, slopes
    radial_hidden(*inputs, in_cuda=in_cuda)
    # Distances and centres are rounded to float32; narrow gaussians turn this into an error of values, and of slopes twice.
    narrow = max(1.0, n_basis / 32)
    of_value, of_slope = tolerances.FUSED, tolerances.FUSED_SUMS
    for network in range(N_NETWORKS):
        value, slope = networks.expected(network)
        found = values[network, :n_edges].double(), slopes[network, :n_edges].double()
        torch.testing.assert_close(found[0], value, rtol=of_value["rtol"], atol=of_value["atol"] * narrow)
        torch.testing.assert_close(found[1], slope, rtol=of_slope["rtol"], atol=of_slope["atol"] * narrow**2)
    assert values[:, n_edges:].isnan().all()
    assert slopes[:, n_edges:].isnan().all()
    assert values.shape[1] == n_edges + SPARE


def check_layout(row_format: RowFormat, n_hidden: int, n_basis: int, *, in_cuda: bool) -> None:
    """Both parts together are as good as float32, and slopes have no constants."""
    given = Problem(2, 2, 17, 4)
    networks = Networks(given, n_hidden, n_basis)
    values, slopes = (
        poisoned(
            N_NETWORKS, given.capacity, row_format.hidden_columns(n_hidden, constant=item), dtype=row_format.operands
        )
        for item in (True, False)
    )
    distance, numbers = given.filled(given.geometry.distance.float()), networks.numbers.int()
    inputs = distance, numbers, given.edges, CUTOFF, networks.stack(), values, slopes
    radial_hidden(*inputs, row_format=row_format, in_cuda=in_cuda)
    matrix, bias = given.random(3, n_hidden).half().double(), given.random(3).half().double()
    last = row_format.last_matrix(matrix.float(), bias.float())
    for network in range(N_NETWORKS):
        exact = networks.expected(network)
        for found, expected, constant in zip((values, slopes), exact, (True, False), strict=True):
            plain = row_format.hidden(expected.float(), constant=constant)
            first, *others = found[network, :17].double().split(n_hidden, dim=1)
            if row_format is FLOAT16 and not constant:
                torch.testing.assert_close(first, expected, **tolerances.FUSED_ROUNDED)
                assert not others, "slopes have one part"
            else:
                second, *others = others
                high, low = (second, first / 2048) if row_format is SPLIT else (first, second)
                torch.testing.assert_close(high + low, expected, **tolerances.FUSED_SUMS)
                assert (low.abs() <= high.abs() / 2048 + 1e-7).all(), "the second part is what rounding leaves"
            if row_format is SPLIT:
                assert torch.equal(others[0], high)
                assert torch.equal(others[1], plain[:, 3 * n_hidden :].double()), "constants"
            made = row_format.last_layer(found[network, :17], last, bias.to(row_format.results) if constant else None)
            wanted = functional.linear(expected, matrix, bias if constant else None)
            bound = tolerances.FUSED_ROUNDED if row_format is FLOAT16 else tolerances.FUSED_SUMS
            torch.testing.assert_close(made.double(), wanted, **bound)
    assert values[:, 17:].isnan().all()
    assert slopes[:, 17:].isnan().all()


def check_some_of_the_networks(n_hidden: int, n_basis: int, *, in_cuda: bool) -> None:
    """The same bits as among all of them; more than there are is an error."""
    given = Problem(2, 2, 17, 4)
    networks = Networks(given, n_hidden, n_basis)
    distance, numbers = given.filled(given.geometry.distance.float()), networks.numbers.int()

    def found(first: int, count: int) -> tuple[Tensor, Tensor]:
        values, slopes = (poisoned(count, given.capacity, n_hidden) for _ in range(2))
        inputs = distance, numbers, given.edges, CUTOFF, networks.stack(), values, slopes
        radial_hidden(*inputs, first=first, in_cuda=in_cuda)
        return values[:, :17], slopes[:, :17]

    for part, every in zip(found(1, N_NETWORKS - 1), found(0, N_NETWORKS), strict=True):
        assert torch.equal(part, every[1:])
    with pytest.raises(ValueError, match=f"networks 1 to {N_NETWORKS} of {N_NETWORKS}"):
        found(1, N_NETWORKS)
