"""The benchmarks of dynamics on a few atoms: that trajectories are what they say, and that what is wrong gives no row."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from ase import units
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.md.verlet import VelocityVerlet

import edgewise


def test_a_few_steps_of_silicon() -> None:
    from molecular_dynamics import Options, run

    row = run(Options(repeats=1, steps=4, warm_up=2, device="cpu"), "float32")
    assert row["atoms"] == 8
    assert row["edges"] == [368, 368]
    assert 0 < row["share_of_ase"] < 1
    assert row["calculator_median_ms"] <= row["wall_median_ms"] <= row["wall_p95_ms"]
    assert row["recordings"] == [None, None]
    assert 0 < row["displacement_A"] < 0.1
    assert 0 < row["error_against_float64"]["forces_relative"] < 1e-4
    # 4 fs in four steps.
    assert row["ns_per_day"] == pytest.approx(86400e-6 / (row["wall_median_ms"] / 1000), rel=0.5)
    json.dumps(row)


def test_springs_bring_back_and_have_the_energy_of_their_forces() -> None:
    from molecular_dynamics import Springs, silicon

    atoms = silicon(1)
    springs = Springs(atoms.positions.copy(), 4.0)
    atoms.positions += np.random.default_rng(0).normal(0, 0.1, atoms.positions.shape)
    forces = np.zeros_like(atoms.positions)
    springs.adjust_forces(atoms, forces)
    energies = []
    for step in (1e-4, -1e-4):
        moved = atoms.copy()
        moved.positions[3, 1] += step
        energies.append(springs.adjust_potential_energy(moved))
    assert forces[3, 1] == pytest.approx(-(energies[0] - energies[1]) / 2e-4, rel=1e-6)


def test_a_lost_crystal_gives_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    import molecular_dynamics
    from checks import CheckFailedError

    monkeypatch.setattr(molecular_dynamics, "LARGEST_DISPLACEMENT", 1e-3)
    with pytest.raises(CheckFailedError, match="displacement"):
        molecular_dynamics.run(molecular_dynamics.Options(repeats=1, steps=3, warm_up=2, device="cpu"), "float32")


def test_times_need_one_call_for_each_step() -> None:
    from dynamics import times_of_steps

    row = times_of_steps([2.0, 4.0, 3.0], [0.001, 0.002, 0.0015])
    assert row == {"wall_median_ms": 3.0, "wall_p95_ms": 3.9, "calculator_median_ms": 1.5, "share_of_ase": 0.5}
    with pytest.raises(ValueError, match="3 steps were timed, and 2 calls"):
        times_of_steps([2.0, 4.0, 3.0], [0.001, 0.002])


def test_a_short_run_at_constant_energy() -> None:
    from energy_drift import Options, run

    row = run(Options(repeats=2, picoseconds=0.032, equilibration=0.008, interval=2, device="cpu"), "float32", 300.0)
    assert row["looks"] == 9
    # What is kept within 0.1 meV/atom is not an accident: the kinetic energy alone changes a hundred times as much.
    assert row["deviation_meV_per_atom"] < 0.1
    assert row["deviation_short_half_timestep"] < row["deviation_short"] / 2
    assert row["deviation_K"] > 10
    assert row["error_against_float64"]["forces_relative"] < 1e-4


def test_a_line_is_fitted() -> None:
    from energy_drift import line

    x, noise = np.linspace(0, 50, 2001), np.random.default_rng(0).normal(0, 0.2, 2001)
    found = line(x, 7 + 0.03 * x + noise)
    assert found.slope == pytest.approx(0.03, abs=1e-3)
    assert found.deviation == pytest.approx(0.2, rel=0.05)
    with pytest.raises(ValueError, match="3 points"):
        line(x[:2], x[:2])


def test_energy_that_runs_away_gives_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    import energy_drift
    from checks import CheckFailedError

    monkeypatch.setattr(energy_drift, "LARGEST_CHANGE", 1e-12)
    options = energy_drift.Options(repeats=2, picoseconds=0.016, equilibration=0.004, interval=1, device="cpu")
    with pytest.raises(CheckFailedError, match="drift"):
        energy_drift.run(options, "float32", 1000.0)


def test_looks_at_the_energy_are_those_of_the_atoms() -> None:
    from energy_drift import Options, crystal, follow

    options = Options(repeats=2, interval=2, device="cpu")
    atoms = crystal(options, 300.0)
    assert atoms.get_temperature() == pytest.approx(600, rel=0.05)
    begin = atoms.copy()
    atoms.calc = edgewise.Calculator(edgewise.load("emt-mini"))
    trace = follow(atoms, options, 0.008)
    assert trace.steps == 4
    assert trace.picoseconds == pytest.approx([0, 0.004, 0.008])
    begin.calc = edgewise.Calculator(edgewise.load("emt-mini"))
    dynamics = VelocityVerlet(begin, 2 * units.fs)
    dynamics.run(4)
    assert trace.energy[-1] == pytest.approx(1000 * begin.get_total_energy() / len(begin), abs=1e-6)


def test_every_run_is_a_stage_that_is_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import run
    from energy_drift import FILE, STAGES

    def fails(out: Path) -> list[dict[str, float]]:
        del out
        message = "interrupted"
        raise KeyboardInterrupt(message)

    monkeypatch.setattr(run, "require_gpu", lambda parser: None)
    monkeypatch.setattr(run, "machine", lambda: {"gpu": "none", "torch": "0"})
    first, second, *_ = STAGES
    stages = {first: lambda out: iter([{"drift": 1.0}]), second: fails}
    monkeypatch.setitem(run.SETS, "drift", (stages, FILE))
    monkeypatch.setattr(sys, "argv", ["run.py", "drift", "--out", str(tmp_path), "--commit", "abc"])
    with pytest.raises(KeyboardInterrupt):
        run.main()
    stages[first] = fails
    stages[second] = lambda out: iter([{"drift": 2.0}])
    run.main()
    rows = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert [(row["stage"], row["drift"]) for row in rows] == [(first, 1.0), (second, 2.0)]
    assert f"{first}: results of this commit are in" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["dynamics", "drift"])
def test_stages_are_listed(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import run

    monkeypatch.setattr(sys, "argv", ["run.py", name, "--list"])
    run.main()
    assert len(capsys.readouterr().out.splitlines()) == len(run.SETS[name][0])


def test_emt_itself_says_what_the_timestep_is_made_for() -> None:
    """The vibration that the timestep is chosen by: moving neighbouring planes against each other."""
    atoms = bulk("Cu", "fcc", a=3.61, cubic=True)
    atoms.calc = EMT()
    atoms.positions[atoms.positions[:, 2] > 1, 2] += 0.01
    force = atoms.get_forces()[atoms.positions[:, 2] > 1, 2].mean()
    # Both halves move, so the stiffness acts on half a mass.
    frequency = np.sqrt(-force / 0.01 / (atoms.get_masses()[0] / 2)) / (2 * np.pi) * (1000 * units.fs)
    assert 6 < frequency < 8
