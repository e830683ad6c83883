"""Runs the examples of README.md and of every page: what a reader copies has to work.

Fences ```python and lines of fences ```bash that begin with `edgewise ` are run, in the order of the page, in one namespace
and one empty folder a page. Fences ```py (examples that need a download or a GPU) are compiled only; ```sh is for reading.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.digest import kernels_digest

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```(python|py|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = (sys.executable, "-c", "from edgewise.cli.app import main; main()")
# Tests run side by side, one for each core.
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def fences(page: Path) -> list[tuple[str, str, int]]:
    """Return language, text and first line number of every fence that is checked."""
    text = page.read_text(encoding="utf-8")
    return [(found[1], found[2], text.count("\n", 0, found.start(2))) for found in FENCE.finditer(text)]


WITH_EXAMPLES = [page for page in PAGES if fences(page)]


def run_commands(text: str) -> None:
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["edgewise"]:
            done = subprocess.run(
                [*COMMAND, *words[1:]], env=ONE_THREAD, capture_output=True, text=True, check=False, timeout=300
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for language, text, line in fences(page):
        if language == "bash":
            run_commands(text)
            continue
        # Empty lines in front make the line numbers of errors those of the page.
        code = compile("\n" * line + text, str(page), "exec")
        if language == "python":
            exec(code, namespace)


def test_pages_have_examples() -> None:
    assert len(WITH_EXAMPLES) >= 8


def test_measured_figures_are_those_of_the_results() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "report.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_log_of_the_gpu_is_of_these_kernels() -> None:
    log = ROOT / "benchmarks" / "results" / "nvidia-h200" / "gpu_tests.log"
    first = log.read_text(encoding="utf-8").splitlines()[0]
    found = re.search(r"'kernels': '([0-9a-f]+)'", first)
    logged = found[1] if found else "none"
    assert logged == kernels_digest(), f"run python benchmarks/gpu_tests.py on a GPU again; its log begins: {first}"


def test_the_digest_of_kernels_sees_code_and_nothing_else(tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    digests = []
    for text in (
        "import triton\n\ndef f(x):\n    return x + 1\n",
        '"""A kernel."""\nimport triton\n\ndef f(x):\n    """Add."""\n    # one\n    return (x + 1)\n',
        "import triton\n\ndef f(x):\n    return x + 2\n",
    ):
        kernel.write_text(text)
        digests.append(kernels_digest(tmp_path))
    (tmp_path / "other.py").write_text("import torch\n")
    assert digests[0] == digests[1]
    assert digests[1] != digests[2]
    assert kernels_digest(tmp_path) == digests[2]
