"""Kernels run many times: which they are, what counts as a failure, and that all of them are launched."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SOURCES = Path(__file__).parent.parent.parent / "src" / "edgewise" / "ops" / "fused"

# Products on matrix units: the operation itself, or one of the functions that kernels share for it.
PRODUCT = re.compile(r"\btl\.dot\(|\b(?:\w+_)?product\(")


def test_every_kernel_on_matrix_units_is_run() -> None:
    from many_runs import KERNELS

    helpers = {"split_kernels"}
    texts = {path.stem: path.read_text(encoding="utf-8") for path in SOURCES.glob("*.py")}
    with_products = {name for name, text in texts.items() if "@triton.jit" in text and PRODUCT.search(text)}
    assert with_products - helpers == set(KERNELS)


class Kernel:
    """Something that is launched: right, but for one value of some launches."""

    def __init__(self, wrong: dict[int, float]) -> None:
        self.wrong, self.launched, self.out = wrong, 0, torch.empty(3)

    def __call__(self) -> list[torch.Tensor]:
        assert self.launched == 0 or self.out.isnan().all(), "what was there is still there"
        self.out[:] = torch.tensor([1.0, 2.0, 0.0])
        if self.launched in self.wrong:
            self.out[2] = self.wrong[self.launched]
        self.launched += 1
        return [self.out]


EXACT = [torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64)]


# The launch with number 0 only leaves memory behind.
@pytest.mark.parametrize(
    ("wrong", "different", "right"),
    [
        ({}, 0, True),
        ({0: 5.0}, 0, True),
        ({4: 1e-30}, 1, True),
        ({3: -0.0, 4: 1.0}, 2, True),
        ({2: float("nan")}, 1, True),
        ({1: 1.0}, 4, False),
    ],
)
def test_a_launch_that_differs_in_a_bit_is_counted(wrong: dict[int, float], different: int, right: bool) -> None:
    from many_runs import repeated

    kernel = Kernel(wrong)
    row = repeated(5, "forward", kernel, None, bound=1e-6, exact=EXACT)
    assert kernel.launched == 6
    assert row["launches"] == 5
    assert row["different"] == different
    assert (row["error"] <= row["bound"]) == right


def test_a_result_that_is_not_written_is_not_within_the_bound() -> None:
    from many_runs import repeated

    out = torch.tensor([1.0, 2.0, 0.0])
    row = repeated(2, "forward", lambda: [out], None, bound=1e-6, exact=EXACT)
    assert not row["error"] <= row["bound"]


def row(**changes: Any) -> dict[str, Any]:
    return {"kernel": "k", "launches": 5, "different": 0, "error": 1e-7, "bound": 1e-6, "digest": "a", **changes}


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ([row()], "passed: k: 10 launches in 2 processes"),
        ([row(different=1)], "FAILED: k: 10 launches in 2 processes; 1 differ"),
        ([row(digest="b")], "1 processes have other bits"),
        ([row(error=1e-3)], "1 are beyond 1e-06"),
        ([row(error=float("nan"))], "largest error nan"),
        ([], "1 are missing"),
    ],
)
def test_what_is_not_the_same_everywhere_has_failed(second: list[dict[str, Any]], said: str) -> None:
    from many_runs import Outcome, summary

    lines, well = summary([Outcome("process 1", [row()]), Outcome("process 2", second)])
    assert len(lines) == 1
    assert said in lines[0]
    assert well == (second == [row()])
    assert lines[0].startswith("passed" if well else "FAILED")


def test_processes_without_results_have_failed() -> None:
    from many_runs import Outcome, summary

    assert summary([Outcome("process 1", [])]) == (["FAILED: no kernel was launched"], False)


@pytest.mark.parametrize(
    ("end", "failure"),
    [
        ("print('and more')", ""),
        ("print('out of bounds', file=sys.stderr); sys.exit(3)", "code 3: out of bounds"),
        ("print('== ERROR SUMMARY: 2 errors'); sys.exit(99)", "ERROR SUMMARY: 2 errors"),
    ],
)
def test_a_process_tells_how_it_ended(end: str, failure: str) -> None:
    from many_runs import start

    program = f"import json, sys; print(json.dumps(dict(a=1)), flush=True); {end}"
    found = start("process 1", [sys.executable, "-c", program], 60)
    assert found.rows == [{"a": 1}]
    assert failure in found.failure
    assert bool(failure) == bool(found.failure)


def test_a_process_that_hangs_has_failed() -> None:
    from many_runs import start

    found = start("process 1", [sys.executable, "-c", "import time; time.sleep(60)"], 0.2)
    assert found.failure == "not at its end after 0.2 s"


@pytest.fixture
def one_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter each format of rows takes as long as all the rest."""
    from ops.fused import problem as problems

    from edgewise.ops.fused.row_format import SPLIT

    monkeypatch.setattr(problems, "BOUNDS", {SPLIT: problems.BOUNDS[SPLIT]})


@pytest.mark.kernels
@pytest.mark.usefixtures("one_format")
def test_all_kernels_are_launched(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import many_runs
    from ops import measure

    # Both are put back as they were.
    monkeypatch.setattr(measure, "compare", measure.compare)
    monkeypatch.setattr(sys, "path", list(sys.path))
    many_runs.work(2, "cpu", None)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    lines, well = many_runs.summary([many_runs.Outcome("process 1", rows)])
    assert well, lines
    assert {line.split(": ")[1].split(",")[0] for line in lines} == set(many_runs.KERNELS)
