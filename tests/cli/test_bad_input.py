"""What a first-time user does wrong on the command line: one error that says what was given and the way out."""

from __future__ import annotations

import json
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from click.testing import Result
from typer.testing import CliRunner

from edgewise.cli import app as commands
from edgewise.errors import EdgewiseError


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGEWISE_CACHE", str(tmp_path / "cache"))
    ase.io.write("cu.xyz", bulk("Cu", cubic=True))
    ase.io.write("al.xyz", bulk("Al", cubic=True))
    ase.io.write("many.xyz", [bulk("Cu"), bulk("Fe"), bulk("Al")])
    Path("text.cif").write_text("no structure\n")
    Path("sub").mkdir()


def run(line: str) -> Result:
    return CliRunner().invoke(commands.app, line.split())


def refused(line: str) -> str:
    """Return the message of a command that has to fail with an error of ours or a usage error."""
    result = run(line)
    assert result.exit_code != 0, result.output
    if isinstance(result.exception, SystemExit):
        return result.output
    assert isinstance(result.exception, EdgewiseError), result.exception
    return str(result.exception)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("predict missing.cif", ["missing.cif", "no such file"]),
        ("predict sub", ["is a folder"]),
        ("predict text.cif", ["text.cif", "a format that ase.io reads"]),
        ("predict many.xyz@9", ["no frame 9"]),
        ("predict many.xyz@x", ["'x' picks no frame", "many.xyz@0"]),
        ("predict cu.xyz -o sub", ["sub is a folder", "sub/run"]),
        ("predict cu.xyz -o new/", ["is a folder"]),
        ("predict cu.xyz -o missing/run", ["cannot write into missing"]),
        ("predict cu.xyz --precision double", ["double", "float32", "float64", "tf32"]),
        ("predict cu.xyz --allow everything", ["any-element"]),
        ("predict cu.xyz --set deterministic", ["NAME=VALUE"]),
        ("predict cu.xyz --set turbo=true", ["unknown settings turbo", "deterministic"]),
        ("predict cu.xyz --set tf32=maybe", ["tf32 is 'maybe'"]),
        ("predict cu.xyz --set precision=float64", ["--precision"]),
        ("predict cu.xyz --set execution_mode=turbo", ["'turbo'", "umas_fast_gpu"]),
        ("relax many.xyz@:", ["picks 3 structures", "@0"]),
        ("eos many.xyz@0:2", ["picks 2 structures"]),
        ("relax cu.xyz --fix 3-1", ["3-1"]),
        ("relax cu.xyz --fmax -1", ["fmax is -1.0 eV/Å"]),
        ("relax cu.xyz --steps 0", ["steps is 0"]),
        ("relax cu.xyz --optimizer newton", ["newton", "lbfgs"]),
        ("eos cu.xyz --points 2", ["points is 2", "at least 5"]),
        ("eos cu.xyz --span 0.7", ["span is 0.7"]),
        ("md cu.xyz --seed -1", ["seed is -1"]),
        ("md cu.xyz --temperature inf", ["temperature is inf K"]),
        ("md cu.xyz --timestep 0", ["timestep is 0.0 fs"]),
        ("md cu.xyz --interval 0", ["interval is 0"]),
        ("md cu.xyz --ensemble nve --friction 5", ["friction 5.0", "nvt only"]),
        ("md cu.xyz --ensemble nvt --pressure 3", ["pressure 3.0", "npt only"]),
        ("convert emt-mini missing/x.pt", ["cannot write into missing"]),
        ("relax many.xyz@1", ["Fe", "--allow any-element"]),
    ],
)
def test_one_clear_error(line: str, words: list[str]) -> None:
    message = refused(line)
    for word in words:
        assert word in message, message
    assert "Traceback" not in message


def test_bad_structures_are_told_before_a_run_begins() -> None:
    Atoms().write("zero.xyz")
    broken = bulk("Cu", cubic=True)
    broken.positions[1, 2] = np.nan
    ase.io.write("nan.traj", broken)
    for line in ("md zero.xyz", "relax zero.xyz", "md nan.traj", "relax nan.traj"):
        refused(line)
    assert not list(Path().glob("zero-*")) + list(Path().glob("nan-*"))


def test_frames_are_named_by_their_place() -> None:
    result = run("predict many.xyz@:")
    assert result.exit_code == 1
    assert "many.xyz, structure 1: Fe" in result.output
    assert "many.xyz, structure 2: Al" in result.output


def test_case_of_words_does_not_matter() -> None:
    assert run("relax cu.xyz --optimizer fire --fmax 0.5").exit_code == 0


def test_earlier_runs_are_not_lost() -> None:
    assert run("md cu.xyz --steps 10 -o a").exit_code == 0
    before = Path("a.extxyz").read_bytes()
    message = refused("md cu.xyz --steps 10 -o a")
    assert "--restart" in message
    assert "--overwrite" in message
    assert Path("a.extxyz").read_bytes() == before
    assert run("md cu.xyz --steps 10 --timestep 2 -o a --overwrite").exit_code == 0


def test_a_restart_goes_on_with_the_same_run_only() -> None:
    assert run("md cu.xyz --steps 10 --timestep 2 -o a").exit_code == 0
    assert "timestep 2.0" in refused("md cu.xyz --steps 20 --timestep 1 -o a --restart")
    assert "ensemble nve" in refused("md cu.xyz --steps 20 --timestep 2 --ensemble nvt -o a --restart")
    assert "Al4" in refused("md al.xyz --steps 20 --timestep 2 -o a --restart")
    done = run("md cu.xyz --steps 5 --timestep 2 -o a --restart")
    assert "nothing to do: the run has 10 steps and --steps is 5" in done.output
    assert run("md cu.xyz --steps 20 --timestep 2 -o a --restart").exit_code == 0
    times = [float(line.split(",")[1]) for line in Path("a.csv").read_text().splitlines()[1:]]
    assert times == [0.0, 20.0, 40.0]


def test_source_of_a_conversion_is_kept() -> None:
    assert run("convert emt-mini x.pt").exit_code == 0
    assert "the same file" in refused("convert x.pt ./x.pt")


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.output.startswith("edgewise 0.")


def test_the_files_that_were_written_are_listed() -> None:
    output = run("eos cu.xyz -o e").output
    assert "wrote e.json, e.png" in output
    assert json.loads(Path("e.json").read_text())["status"] == "done"


def test_any_element_can_be_allowed() -> None:
    assert run("predict many.xyz@1 --allow any-element").exit_code == 0
