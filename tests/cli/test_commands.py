"""Every command end to end on the embedded model or on ASE's EMT: files, exit codes, messages."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.constraints import FixAtoms
from click.testing import Result
from typer.testing import CliRunner

from edgewise.cli import app as commands
from edgewise.cli.reporting import Status
from edgewise.errors import EdgewiseError
from tests.cases import GOLDEN

PNG_HEADER = b"\x89PNG"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGEWISE_CACHE", str(tmp_path / "cache"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(commands.app, list(arguments))


def rattled_copper(name: str = "cu.xyz", a: float = 3.55) -> str:
    atoms = bulk("Cu", a=a, cubic=True)
    atoms.rattle(0.08, seed=1)
    ase.io.write(name, atoms)
    return name


def summary(name: str) -> dict[str, Any]:
    return json.loads(Path(name).read_text())


def test_help_answers_at_once_without_heavy_packages() -> None:
    code = (
        "import sys; sys.argv = ['edgewise', '--help']\n"
        "from edgewise.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'ase', 'numpy', 'triton', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        seconds.append(time.perf_counter() - start)
        assert done.returncode == 0, done.stderr
    assert "Exit codes" in done.stdout
    assert min(seconds) < 1.0


def test_predict_goes_on_after_a_bad_structure() -> None:
    ase.io.write("good.xyz", [bulk("Cu", cubic=True), bulk("Al")])
    ase.io.write("bad.xyz", bulk("Fe"))
    done = run("predict", "good.xyz@:", "bad.xyz", "-o", "out")
    assert done.exit_code == Status.INPUT_ERROR
    assert "is Fe" in done.output
    frames = ase.io.read("out.extxyz@:")
    assert [str(atoms.symbols) for atoms in frames] == ["Cu4", "Al"]
    assert np.isfinite(frames[0].get_stress()).all()
    values = summary("out.json")
    assert [("error" in row) for row in values["results"]["structures"]] == [False, False, True]
    assert values["units"]["energy"] == "eV"
    assert {"edgewise", "torch", "ase", "numpy"} <= set(values["versions"])
    assert values["status"] == "input_error"


def test_relax_writes_frames_picture_and_summary() -> None:
    done = run("relax", rattled_copper(), "--cell", "full", "-o", "out")
    assert done.exit_code == Status.DONE, done.output
    frames = ase.io.read("out.extxyz@:")
    assert np.linalg.norm(frames[-1].get_forces(), axis=1).max() < 0.02
    assert frames[-1].get_volume() ** (1 / 3) == pytest.approx(3.59, abs=0.03)
    assert Path("out.png").read_bytes().startswith(PNG_HEADER)
    values = summary("out.json")
    assert values["results"]["converged"] is True
    assert values["results"]["steps"] == len(frames) - 1


def test_relax_that_does_not_converge_says_so_and_goes_on_later() -> None:
    file = rattled_copper()
    assert run("relax", file, "--steps", "2", "-o", "out").exit_code == Status.NOT_CONVERGED
    assert len(ase.io.read("out.extxyz@:")) == 3
    done = run("relax", file, "--restart", "-o", "out")
    assert done.exit_code == Status.DONE, done.output
    steps = [int(atoms.info["step"]) for atoms in ase.io.read("out.extxyz@:")]
    assert steps == list(range(len(steps)))


def test_relax_keeps_constraints_and_fixed_atoms() -> None:
    atoms = bulk("Cu", a=3.5, cubic=True)
    atoms.rattle(0.1, seed=2)
    atoms.set_constraint(FixAtoms([0]))
    ase.io.write("fixed.traj", atoms)
    run("relax", "fixed.traj", "--fix", "1,2-2", "-o", "out", "--steps", "20")
    last = ase.io.read("out.extxyz@-1")
    moved = np.linalg.norm(last.positions - atoms.positions, axis=1)
    assert (moved[:3] < 1e-7).all()
    assert moved[3] > 1e-3


def test_pressure_squeezes_the_cell() -> None:
    volumes = []
    for pressure in ("0", "10"):
        run("relax", rattled_copper(), "--cell", "volume", "--pressure", pressure, "-o", f"p{pressure}")
        volumes.append(summary(f"p{pressure}.json")["results"]["volume"])
    assert volumes[1] < 0.97 * volumes[0]


def test_equation_of_state() -> None:
    ase.io.write("cu.cif", bulk("Cu", a=3.6, cubic=True))
    done = run("eos", "cu.cif", "-o", "out")
    assert done.exit_code == Status.DONE, done.output
    values = summary("out.json")["results"]
    assert values["cell_lengths"][0] == pytest.approx(3.59, abs=0.02)
    assert 100 < values["bulk_modulus"] < 170
    assert Path("out.png").read_bytes().startswith(PNG_HEADER)
    ase.io.write("small.cif", bulk("Cu", a=3.45, cubic=True))
    assert run("eos", "small.cif", "--span", "0.05", "-o", "small").exit_code == Status.NOT_CONVERGED


@pytest.mark.parametrize("ensemble", ["nve", "nvt", "npt"])
def test_md(ensemble: str) -> None:
    done = run("md", rattled_copper(a=3.6), "--ensemble", ensemble, "--steps", "12", "--interval", "5", "-o", "out")
    assert done.exit_code == Status.DONE, done.output
    frames = ase.io.read("out.extxyz@:")
    assert [int(atoms.info["step"]) for atoms in frames] == [0, 5, 10, 12]
    assert np.abs(frames[1].get_momenta()).max() > 0
    assert Path("out.png").read_bytes().startswith(PNG_HEADER)
    assert summary("out.json")["results"]["time"] == pytest.approx(12.0)


def test_describe_and_models() -> None:
    values = json.loads(run("describe", "--json").output)
    assert values["mode"] == "general"
    assert "operation" in run("describe", "emt-mini").output
    listing = run("models").output
    assert "emt-mini" in listing
    assert "Al Cu Ag Au Ni Pd Pt" in listing
    assert "uma-s-1p2p1" in listing


def test_settings_reach_the_engine() -> None:
    assert "fixed order" in run("describe", "--set", "deterministic=true").output
    assert "fixed order" not in run("describe", "--set", "edge_chunk_size=100").output


def test_convert_there_and_back() -> None:
    assert run("convert", str(GOLDEN / "plain.pt"), "model.safetensors").exit_code == Status.DONE
    assert run("convert", "model.safetensors", "model.pt").exit_code == Status.DONE
    ase.io.write("mgo.cif", bulk("MgO", "rocksalt", a=4.2))
    energies = []
    for model in (str(GOLDEN / "plain.pt"), "model.safetensors", "model.pt"):
        done = run("predict", "mgo.cif", "-m", model, "-t", "omat", "-o", "out")
        assert done.exit_code == Status.DONE, done.output
        energies.append(summary("out.json")["results"]["structures"][0]["energy"])
    assert energies[0] == energies[1] == energies[2]


def test_charge_and_spin_options() -> None:
    ase.io.write("water.xyz", molecule("H2O"))
    arguments = ("predict", "water.xyz", "-m", str(GOLDEN / "plain.pt"), "-t", "omol")
    energies = []
    for name, extra in {"neutral": (), "anion": ("--charge", "-1", "--spin", "2")}.items():
        assert run(*arguments, *extra, "-o", name).exit_code == Status.DONE
        energies.append(summary(f"{name}.json")["results"]["structures"][0]["energy"])
    assert energies[0] != energies[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("predict", "missing.xyz"), "missing.xyz cannot be read"),
        (("predict", "text.xyz"), "text.xyz cannot be read"),
        (("predict", "cu.xyz", "-m", "uma-s-9"), "no model 'uma-s-9'"),
        (("predict", "cu.xyz", "-t", "omat"), "'omat' is not one of"),
        (("predict", "cu.xyz", "-d", "quantum"), "'quantum'"),
        (("predict", "cu.xyz", "--precision", "float16"), "'float16'"),
        (("predict", "cu.xyz", "-o", "nowhere/out"), "cannot write into nowhere"),
        (("predict", "cu.xyz", "-m", str(GOLDEN / "plain.pt")), "several tasks"),
        (("relax", "cu.xyz", "--cell", "sideways"), "'sideways'"),
        (("relax", "cu.xyz", "--optimizer", "newton"), "'newton'"),
        (("relax", "cu.xyz", "--fix", "a-b"), "--fix"),
        (("relax", "cu.xyz", "--fix", "99"), "atoms 0 to 3"),
        (("relax", "cu.xyz", "--pressure", "3"), "--cell"),
        (("relax", "cu.xyz", "--restart", "-o", "never"), "nothing|restart from"),
        (("relax", "dimer.xyz", "--cell", "full"), "no periodic axis"),
        (("md", "cu.xyz", "--ensemble", "nvvt"), "'nvvt'"),
        (("md", "cu.xyz", "--timestep", "-1"), "timestep is -1.0"),
        (("md", "dimer.xyz", "--ensemble", "npt"), "three periodic axes"),
        (("eos", "dimer.xyz"), "three periodic axes"),
        (("eos", "cu.xyz", "--points", "3"), "at least 5"),
        (("convert", "emt-mini", "out.onnx"), "suffix"),
    ],
)
def test_bad_input_gets_one_clear_message(arguments: tuple[str, ...], words: str) -> None:
    rattled_copper()
    Path("text.xyz").write_text("this is no structure\n")
    ase.io.write("dimer.xyz", Atoms("Cu2", [[0, 0, 0], [2.4, 0, 0]]))
    done = run(*arguments)
    assert done.exit_code != 0
    assert isinstance(done.exception, (EdgewiseError, SystemExit))
    text = done.output + str(done.exception)
    assert any(word in text for word in words.split("|")), text
    assert "Traceback" not in done.output


def test_errors_become_exit_code_one_without_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "edgewise", "predict", "missing.xyz"], capture_output=True, text=True, check=False
    )
    assert done.returncode == Status.INPUT_ERROR
    assert done.stderr.startswith("edgewise: missing.xyz cannot be read")
    assert "Traceback" not in done.stderr
    usage = subprocess.run([sys.executable, "-m", "edgewise", "fly"], capture_output=True, text=True, check=False)
    assert usage.returncode == Status.USAGE_ERROR
