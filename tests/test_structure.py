"""The rules of the house: who may import whom, how long a file may be, and what importing may cost."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import structure

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "edgewise"
MODULES = structure.read_package(PACKAGE)
SCRIPTS = [path for folder in ("benchmarks", "examples", "training") for path in sorted((ROOT / folder).rglob("*.py"))]

LONGEST_FILE = 500
DOCUMENTED_SHARE = 0.95
IMPORT_SECONDS = 0.3
HELP_SECONDS = 1.0
ATTEMPTS = 3

NOT_AN_OP = {
    "__init__",
    "fast",
    "launch",
    "layout",
    "operands",
    "packed_rotation",
    "row_format",
    "shapes",
    "streams",
    "workspace",
}
"""Files of ops/ that hold what several operations share; `_*.py` and `*_kernels.py` are parts of others as well."""

DEFINITIONS = PACKAGE / "ops" / "reference"
"""The operations in plain PyTorch. Kernels are timed against them, so they have tests and no benchmarks of their own."""

HEAVY = ("torch", "triton", "ase", "numpy")

MACHINE_PATH = re.compile(r"(?<![\w.~}-])/(work|root|tmp|home|mnt|opt)/")


def test_layering() -> None:
    assert structure.layering_violations(MODULES, "edgewise") == []


def test_packages_of_others_are_imported_where_they_belong() -> None:
    assert structure.foreign_import_violations(MODULES, "edgewise") == []


def test_scripts_use_public_names() -> None:
    assert structure.private_import_violations(SCRIPTS, "edgewise") == []


def test_environment_is_read_in_settings_only() -> None:
    others = [module for module in MODULES if module.name != "edgewise.settings"]
    assert structure.environment_reads(others) == []
    assert len(structure.environment_reads(MODULES)) > 0, "the check finds nothing where there is something"


def test_model_does_not_name_triton() -> None:
    assert [str(path) for path in (PACKAGE / "model").rglob("*.py") if "triton" in path.read_text().lower()] == []


def test_files_are_short() -> None:
    paths = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *SCRIPTS]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


def test_public_names_are_documented() -> None:
    documented = structure.public_definitions(MODULES)
    missing = [name for name, present in documented.items() if not present]
    assert len(missing) <= (1 - DOCUMENTED_SHARE) * len(documented), missing


def test_every_op_has_a_test_and_a_benchmark_of_its_name() -> None:
    ops = [
        path.relative_to(PACKAGE / "ops")
        for path in sorted((PACKAGE / "ops").rglob("*.py"))
        if path.stem not in NOT_AN_OP and not path.stem.startswith("_") and not path.stem.endswith("_kernels")
    ]
    kernels = [op for op in ops if DEFINITIONS.name not in op.parts]
    wanted = [ROOT / "benchmarks" / "ops" / op for op in kernels]
    # `reference.edges` is what the tests of all kernels compare with.
    wanted += [ROOT / "tests" / "ops" / op.parent / f"test_{op.name}" for op in ops if op != Path("reference/edges.py")]
    assert [str(path.relative_to(ROOT)) for path in wanted if not path.is_file()] == []
    assert [str(op) for op in kernels if op.stem not in structure.functions(PACKAGE / "ops" / op)] == []


def test_no_page_names_a_place_on_a_machine() -> None:
    pages = [*ROOT.glob("*.md"), ROOT / "mkdocs.yml", ROOT / "CITATION.cff", *(ROOT / "docs").rglob("*.md"), *SCRIPTS]
    pages += PACKAGE.rglob("*.py")
    assert [
        str(page.relative_to(ROOT)) for page in pages if MACHINE_PATH.search(page.read_text(encoding="utf-8"))
    ] == []


def loaded_and_seconds(action: str, allowed: float) -> tuple[list[str], float]:
    """Return which heavy packages an action loads in a fresh interpreter, and its shortest time, interpreter start included.

    Other work on the machine only ever adds time, so a slow attempt is repeated.
    """
    code = (
        f"{action}\nimport json, sys\nprint()\nprint(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    shortest = float("inf")
    for _ in range(ATTEMPTS):
        begin = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
        shortest = min(shortest, time.perf_counter() - begin)
        assert done.returncode == 0, done.stderr
        if shortest < allowed:
            break
    return json.loads(done.stdout.splitlines()[-1]), shortest


def test_import_is_light() -> None:
    action = "import edgewise; edgewise.InferenceSettings(); edgewise.errors; dir(edgewise)"
    loaded, seconds = loaded_and_seconds(action, IMPORT_SECONDS)
    assert loaded == []
    assert seconds < IMPORT_SECONDS


def test_help_is_quick() -> None:
    action = """
import sys
sys.argv = ["edgewise", "--help"]
from edgewise.cli.app import main
try:
    main()
except SystemExit as end:
    assert not end.code
"""
    loaded, seconds = loaded_and_seconds(action, HELP_SECONDS)
    assert loaded == []
    assert seconds < HELP_SECONDS


TOY = {
    "errors.py": "",
    "settings.py": "from toy.errors import Error",
    "systems.py": "from toy import errors",
    "neighbors.py": "import toy.systems",
    "so3.py": "",
    "ops/__init__.py": "from . import gate",
    "ops/gate.py": "from toy.so3 import orders",
    "model/__init__.py": "",
    "model/layers.py": "from ..ops.gate import gate",
    "adapters/__init__.py": "",
    "adapters/ase.py": "from toy.adapters._shared import names",
    "adapters/_shared.py": "",
    "adapters/torchsim.py": "from toy.model import layers",
    "cli/__init__.py": "",
    "__main__.py": "from toy.cli.app import main",
    "cli/app.py": "def main():\n    import toy\n    from toy.adapters.ase import Calculator",
}
"""A package that keeps the layering, in every form that an import can take."""

WRONG = {
    "to the right": ("errors.py", "from toy.settings import Settings"),
    "relative": ("systems.py", "from .neighbors import edges"),
    "same layer": ("so3.py", "import toy.neighbors"),
    "module from the package": ("settings.py", "from toy import model"),
    "inside a function": ("ops/gate.py", "def gate():\n    from toy.model import layers"),
    "for annotations": ("model/layers.py", "if TYPE_CHECKING:\n    from toy.cli.app import main"),
    "by name": ("systems.py", "importlib.import_module('toy.cli.app')"),
    "relative from a package": ("model/__init__.py", "from ..adapters import ase"),
    "ops and structures": ("ops/gate.py", "from toy.systems import Batch"),
    "adapters": ("adapters/ase.py", "from toy.adapters import torchsim"),
    "front": ("adapters/ase.py", "from toy import load"),
    "new module": ("helpers.py", "import math"),
    "front that loads": ("__init__.py", "from toy.errors import Error"),
}


def toy(folder: Path, changed: dict[str, str]) -> list[structure.Module]:
    """Write the toy package with some files changed, and read it."""
    for name, text in {"__init__.py": "if TYPE_CHECKING:\n    from toy.cli import app", **TOY, **changed}.items():
        path = folder / "toy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return structure.read_package(folder / "toy")


def test_the_check_accepts_a_good_package(tmp_path: Path) -> None:
    assert structure.layering_violations(toy(tmp_path, {}), "toy") == []


@pytest.mark.parametrize(("name", "text"), WRONG.values(), ids=list(WRONG))
def test_the_check_reports_a_wrong_import(tmp_path: Path, name: str, text: str) -> None:
    violations = structure.layering_violations(toy(tmp_path, {name: text}), "toy")
    assert len(violations) == 1
    assert name in violations[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("systems.py", "from ase import Atoms"),
        ("ops/gate.py", "def gate():\n    import ase"),
        ("model/layers.py", "import triton.language as tl"),
        ("settings.py", "import torch"),
        ("cli/app.py", "import torch"),
    ],
)
def test_the_check_reports_a_misplaced_package(tmp_path: Path, name: str, text: str) -> None:
    assert len(structure.foreign_import_violations(toy(tmp_path, {name: text}), "toy")) == 1


@pytest.mark.parametrize(
    "text", ["import os\nos.environ['A']", "from os import getenv", "import os as o\no.getenv('A')"]
)
def test_the_check_reports_environment_reads(tmp_path: Path, text: str) -> None:
    assert len(structure.environment_reads(toy(tmp_path, {"systems.py": text}))) == 1
