"""Nothing is lost when a run dies: exact restarts, half-written frames, signals, explosions and full disks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.calculator import Calculator, all_changes
from ase.calculators.emt import EMT

from edgewise.cli import dynamics, frames
from edgewise.cli.dynamics import DynamicsOptions, run_dynamics
from edgewise.cli.relax import RelaxOptions, relax
from edgewise.cli.reporting import Status
from edgewise.errors import RunFailedError


@pytest.fixture
def copper() -> Atoms:
    return bulk("Cu", cubic=True).repeat((2, 1, 1))


def steps_of(path: Path) -> list[int]:
    return [int(atoms.info["step"]) for atoms in ase.io.read(f"{path}@:")]


def test_a_restart_goes_on_exactly(tmp_path: Path, copper: Atoms) -> None:
    whole = run_dynamics(copper, EMT(), DynamicsOptions(steps=20, interval=5), tmp_path / "whole.extxyz")
    run_dynamics(copper, EMT(), DynamicsOptions(steps=10, interval=5), tmp_path / "parts.extxyz")
    parts = run_dynamics(copper, EMT(), DynamicsOptions(steps=20, interval=5), tmp_path / "parts.extxyz", restart=True)
    assert parts.steps == whole.steps == 20
    np.testing.assert_allclose(parts.atoms.positions, whole.atoms.positions, rtol=0, atol=1e-10)
    np.testing.assert_allclose(parts.atoms.get_momenta(), whole.atoms.get_momenta(), rtol=0, atol=1e-10)
    assert steps_of(tmp_path / "parts.extxyz") == steps_of(tmp_path / "whole.extxyz") == [0, 5, 10, 15, 20]
    assert parts.column("step") == whole.column("step")


def test_a_half_written_frame_is_cut_off(tmp_path: Path, copper: Atoms) -> None:
    path = tmp_path / "run.extxyz"
    run_dynamics(copper, EMT(), DynamicsOptions(steps=10, interval=5), path)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(whole + b"".join(lines[:4]) + lines[4][:10])
    run_dynamics(copper, EMT(), DynamicsOptions(steps=15, interval=5), path, restart=True)
    assert steps_of(path) == [0, 5, 10, 15]


def test_frames_past_the_last_state_are_not_repeated(tmp_path: Path, copper: Atoms) -> None:
    """A crash between the frame and the state leaves one frame too many."""
    path = tmp_path / "run.extxyz"
    run_dynamics(copper, EMT(), DynamicsOptions(steps=10, interval=5), path)
    frames.append_frame(path, ase.io.read(f"{path}@-1"))
    run_dynamics(copper, EMT(), DynamicsOptions(steps=15, interval=5), path, restart=True)
    assert steps_of(path) == [0, 5, 10, 15]


class Exploding(Calculator):
    """Gives energies of EMT until it is asked once too often."""

    implemented_properties = ("energy", "free_energy", "forces")

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls, self.emt = calls, EMT()

    def calculate(self, atoms: Any = None, properties: Any = ("energy",), system_changes: Any = all_changes) -> None:
        super().calculate(atoms, properties, system_changes)
        self.calls -= 1
        factor = 1.0 if self.calls > 0 else 1e9
        forces = self.emt.get_forces(atoms) * factor + (factor > 1) * 1e9
        energy = self.emt.get_potential_energy(atoms)
        self.results = {"energy": energy, "free_energy": energy, "forces": forces}


def test_an_exploding_run_stops_with_the_last_good_frame(tmp_path: Path, copper: Atoms) -> None:
    path = tmp_path / "run.extxyz"
    with pytest.raises(RunFailedError, match="exploded at step"):
        run_dynamics(copper, Exploding(8), DynamicsOptions(steps=50, interval=2), path)
    last = ase.io.read(f"{path}@-1")
    assert last.get_temperature() < dynamics.HIGHEST_TEMPERATURE
    assert len(steps_of(path)) >= 3
    with pytest.raises(RunFailedError, match="exploded at step"):
        relax(copper, Exploding(0), RelaxOptions(), tmp_path / "relax.extxyz")


def test_an_error_of_the_model_ends_the_run_as_failed(tmp_path: Path) -> None:
    import edgewise

    atoms = Atoms("Cu2", [[0, 0, 0], [2.5, 0, 0]])
    atoms.set_momenta([[6.0, 0, 0], [-6.0, 0, 0]])
    atoms.calc = None
    calculator = edgewise.Calculator(edgewise.load("emt-mini"))

    original = calculator.potential._runner.run
    calls = iter(range(100))

    def failing(batch: Any) -> Any:
        if next(calls) > 3:
            message = "structure 0"
            raise edgewise.errors.NonFiniteResultError(message)
        return original(batch)

    calculator.potential._runner.run = failing
    with pytest.raises(RunFailedError, match="failed at step"):
        run_dynamics(atoms, calculator, DynamicsOptions(steps=20, interval=1), tmp_path / "run.extxyz")
    assert len(steps_of(tmp_path / "run.extxyz")) >= 2


def test_a_full_disk_leaves_the_frames_before_it(
    tmp_path: Path, copper: Atoms, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.extxyz"
    original, calls = frames.append_frame, iter(range(100))

    def full(target: Path, atoms: Atoms) -> None:
        if next(calls) >= 2:
            raise OSError(28, "No space left on device")
        original(target, atoms)

    monkeypatch.setattr(dynamics, "append_frame", full)
    with pytest.raises(OSError, match="No space"):
        run_dynamics(copper, EMT(), DynamicsOptions(steps=20, interval=5), path)
    assert steps_of(path) == [0, 5]
    monkeypatch.undo()
    run_dynamics(copper, EMT(), DynamicsOptions(steps=20, interval=5), path, restart=True)
    assert steps_of(path) == [0, 5, 10, 15, 20]


def started_md(folder: Path, steps: int) -> subprocess.Popen[str]:
    ase.io.write(folder / "cu.xyz", bulk("Cu", cubic=True))
    command = [sys.executable, "-m", "edgewise", "md", "cu.xyz", "--steps", str(steps), "--interval", "2", "-o", "out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # What a shell runs in the background ignores the interrupt, and so does what it starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if (folder / "out.csv").is_file() and len((folder / "out.csv").read_text().splitlines()) > 4:
            return process
        time.sleep(0.02)
    pytest.fail(f"the run did not start: {process.communicate()}")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_signals(tmp_path: Path, how: signal.Signals) -> None:
    process = started_md(tmp_path, 100_000)
    process.send_signal(how)
    _, errors = process.communicate(timeout=60)
    if how is signal.SIGINT:
        assert process.returncode == Status.INTERRUPTED
        assert "--restart" in errors
        assert (tmp_path / "out.json").is_file()
    done = steps_of(tmp_path / "out.extxyz") if how is signal.SIGINT else []
    state = int(frames.load_state(tmp_path / "out.restart.traj").info["edgewise_step"])
    command = [sys.executable, "-m", "edgewise", "md", "cu.xyz", "--steps", str(state + 4), "--interval", "2"]
    finished = subprocess.run(
        [*command, "--restart", "-o", "out"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert finished.returncode == Status.DONE, finished.stderr
    steps = steps_of(tmp_path / "out.extxyz")
    assert steps == list(range(0, state + 5, 2))
    assert len(done) <= len(steps)
