"""Powers of two of gradients: the bound, numbers without one, and every place of a row."""

from __future__ import annotations

import pytest
import torch

from edgewise.ops.fused.gradient_scales import LARGEST_EXPONENT, VALUES, gradient_scales
from tests.ops.kernel_problems import DEVICE

pytestmark = pytest.mark.kernels


def test_powers_of_two_bring_each_atom_just_below_the_bound() -> None:
    largest = torch.tensor([0.0, 1e-30, 0.9, 1.0, 3.0, 1e30], device=DEVICE)
    scales = gradient_scales(largest[:, None, None].expand(-1, 9, 4).contiguous())
    assert torch.equal(torch.frexp(scales)[0], torch.full_like(scales, 0.5)), "powers of two"
    # Gradients of 1e-30 and less keep the scale that float32 has room for.
    scaled = (scales * largest)[2:]
    assert (scaled >= 2.0 ** (LARGEST_EXPONENT - 1)).all()
    assert (scaled < 2.0**LARGEST_EXPONENT).all()
    assert 0 < float(scales[1] * largest[1]) < 2.0**LARGEST_EXPONENT
    assert scales.isfinite().all()


@pytest.mark.parametrize("columns", [1, 7, VALUES, VALUES + 1])
@pytest.mark.parametrize("n_atoms", [0, 1, 5])
def test_the_largest_may_stand_anywhere(n_atoms: int, columns: int) -> None:
    gradient = torch.randn(n_atoms, 1, columns, device=DEVICE)
    _, exponent = torch.frexp(gradient.abs().amax((1, 2))) if n_atoms else (None, torch.zeros(0, device=DEVICE))
    expected = torch.ldexp(torch.ones(n_atoms, device=DEVICE), LARGEST_EXPONENT - exponent)
    assert torch.equal(gradient_scales(gradient), expected)
