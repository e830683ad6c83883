"""The benchmarks of the kernels in CUDA C++ check what they time: here the checks alone, on a few edges."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from edgewise.ops.fused.cuda import gated_products
from edgewise.ops.fused.row_format import FLOAT16, FLOAT32, SPLIT, TF32, RowFormat
from tests.ops.kernel_problems import DEVICE

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("somewhere")]

BENCHMARKS = Path(__file__).parent.parent.parent.parent.parent / "benchmarks"


@pytest.fixture
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Find the modules of the benchmarks, and forget them afterwards: training has some of the same names."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(BENCHMARKS)):
            del sys.modules[name]


def checked(
    name: str, row_format: RowFormat, monkeypatch: pytest.MonkeyPatch, *, n_edges: int, channels: int
) -> list[dict[str, Any]]:
    """Return the rows of a benchmark of which nothing is timed."""
    place = BENCHMARKS / "ops" / "fused" / "cuda" / f"{name}.py"
    found = importlib.util.spec_from_file_location(f"benchmark_of_{name}", place)
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    path = list(sys.path)
    found.loader.exec_module(module)
    monkeypatch.setattr(sys, "path", path)
    monkeypatch.setattr(module.measure, "milliseconds", lambda function, repeats=0: 0.0 * len(function()))
    monkeypatch.setattr(module.measure, "peak_mebibytes", lambda function: 0.0)
    from structures import random_graph  # of the benchmarks

    edge_index, edge_vec = random_graph(torch.device(DEVICE), n_edges, 5)
    given = module.problem.FusedProblem(edge_index, edge_vec, row_format, channels=channels, n_atoms=5)
    rows = module.rows("random", row_format, given)
    print(*rows, sep="\n")
    assert all(row["error"] <= module.problem.BOUNDS[row_format] for row in rows)
    return rows


@pytest.mark.parametrize(("name", "n_rows"), [("gather_rotate", 2), ("radial_hidden", 1), ("rotate_sum", 2)])
@pytest.mark.parametrize("row_format", [FLOAT16, SPLIT, TF32, FLOAT32], ids=lambda item: item.name)
@pytest.mark.usefixtures("on_the_path")
def test_checks_pass(name: str, n_rows: int, row_format: RowFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(checked(name, row_format, monkeypatch, n_edges=18, channels=16)) == n_rows


@pytest.mark.usefixtures("on_the_path")
def test_checks_of_gated_products_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        monkeypatch.setattr(gated_products, "missing", lambda *_: None)
        monkeypatch.setattr(gated_products, "_n_multiprocessors", lambda _: 5)
    elif why := gated_products.missing(gated_products.SHAPE, FLOAT16, torch.device(DEVICE)):
        pytest.skip(why)
    (row,) = checked("gated_products", FLOAT16, monkeypatch, n_edges=18, channels=128)
    assert row["relative_difference"] < 3e-4, "both round the same rows"


@pytest.mark.parametrize("row_format", [FLOAT16, SPLIT], ids=lambda item: item.name)
@pytest.mark.usefixtures("on_the_path")
def test_what_gated_products_do_not_serve_has_no_row(row_format: RowFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked("gated_products", row_format, monkeypatch, n_edges=18, channels=16) == []
