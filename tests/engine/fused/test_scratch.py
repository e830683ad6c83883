"""Rows that share memory: no result depends on it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase import Atoms

from edgewise.engine.fused.scratch import Piece, Scratch
from edgewise.ops.fused.row_format import FLOAT16, SPLIT, RowFormat
from edgewise.potential import Potential
from tests.cases import potential
from tests.engine.fused.test_kernel_edges import on_kernels
from tests.ops.kernel_problems import DEVICE

pytestmark = [pytest.mark.kernels, pytest.mark.filterwarnings("ignore::edgewise.errors.EdgewiseWarning")]


def rows_of_their_own(own: Scratch, piece: Piece, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Stand in for `Scratch.rows`: memory that nothing else uses, full of NaN."""
    del own, piece
    return torch.full(shape, torch.nan, dtype=dtype, device=DEVICE)


def assert_memory_does_not_matter(model: Potential, structures: list[Atoms], monkeypatch: pytest.MonkeyPatch) -> None:
    shared = model.predict(structures, "omol")
    with monkeypatch.context() as patch:
        patch.setattr(Scratch, "rows", rows_of_their_own)
        alone = model.predict(structures, "omol")
    for name in ("energy", "forces", "stress"):
        assert np.array_equal(getattr(shared, name), getattr(alone, name), equal_nan=True), name
    assert np.isfinite(shared.forces).all()


def pairs() -> list[Atoms]:
    """Return two edges of each of two compositions, so that runs of edges have weights of their own."""
    return [Atoms(symbols, [[0, 0, 0], [0.3, 0.2, distance]]) for symbols, distance in (("H2", 0.8), ("He2", 2.0))]


@pytest.mark.parametrize("row_format", [FLOAT16, SPLIT], ids=lambda item: item.name)
def test_results_do_not_depend_on_what_shares_memory(row_format: RowFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    general = potential("uma-s-tiny", device=DEVICE, precision="float32", execution_mode="general")
    assert_memory_does_not_matter(on_kernels(general, row_format), pairs(), monkeypatch)


def test_radial_networks_of_several_mixtures(monkeypatch: pytest.MonkeyPatch) -> None:
    general = potential("uma-m-tiny", device=DEVICE, precision="float32", execution_mode="general")
    assert_memory_does_not_matter(on_kernels(general, FLOAT16), pairs(), monkeypatch)


def test_rows_that_do_not_fit_are_refused() -> None:
    scratch = Scratch(dict.fromkeys(Piece, 24), torch.device(DEVICE))
    assert scratch.rows(Piece.ROWS, (2, 3), torch.float32).shape == (2, 3)
    assert scratch.rows(Piece.ROWS, (2, 6), torch.float16).dtype == torch.float16
    with pytest.raises(ValueError, match=r"\(2, 4\) values of torch.float32 take 32 bytes; FACTORS has 24"):
        scratch.rows(Piece.FACTORS, (2, 4), torch.float32)
