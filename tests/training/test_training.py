"""The training scripts on a handful of structures: labels, a resumed run equal to an uninterrupted one, the card."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from ase.calculators.emt import EMT

FOLDER = Path(__file__).parents[2] / "training"


@pytest.fixture(scope="module", autouse=True)
def scripts_on_the_path() -> Iterator[None]:
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "emt.npz"
    command = [sys.executable, "label_emt.py", "--n", "50", "--processes", "1", "--out", str(path)]
    subprocess.run(command, cwd=FOLDER, check=True, capture_output=True)
    return path


def test_labels_are_those_of_the_teacher(data_file: Path) -> None:
    from ase import Atoms
    from dataset import Dataset

    data = Dataset.load(data_file)
    assert len(data) == 50
    bounds = data.offsets
    for i in (0, 7, 49):
        part = slice(bounds[i], bounds[i + 1])
        atoms = Atoms(data.numbers[part], data.positions[part], cell=data.cell[i], pbc=data.pbc[i])
        atoms.calc = EMT()
        assert atoms.get_potential_energy() == pytest.approx(data.energy[i], abs=1e-3)
        np.testing.assert_allclose(atoms.get_forces(), data.forces[part], atol=1e-3)


def test_generator_is_seeded() -> None:
    from structures import random_structure

    first, second = (random_structure(np.random.default_rng(3))[1] for _ in range(2))
    assert np.array_equal(first.positions, second.positions)


def test_a_resumed_run_equals_an_uninterrupted_one(data_file: Path, tmp_path: Path) -> None:
    from dataset import Dataset
    from models import MODELS
    from train import Options, Trainer

    data = Dataset.load(data_file).select(range(20))
    averaged = {}
    for name, legs in {"whole": (5,), "parts": (2, 5)}.items():
        for last_step in legs:
            # A leg ends in the middle of a pass over the data.
            options = Options(steps=5, edges=1500)
            trainer = Trainer(MODELS["emt-mini"], data, options, tmp_path / name, torch.device("cpu"))
            trainer.train(minutes=1, last_step=last_step)
            assert trainer.step == last_step
        averaged[name] = trainer.averaged
    for key, value in averaged["whole"].items():
        assert torch.equal(value, averaged["parts"][key]), key


def test_training_lowers_the_loss_and_the_card_tells_the_errors(data_file: Path, tmp_path: Path) -> None:
    from dataset import Dataset
    from evaluate_emt import errors_by_class
    from models import MODELS
    from package import checkpoint_from_state
    from train import Options, Trainer, split

    import edgewise

    data = Dataset.load(data_file)
    recipe = MODELS["emt-mini"]
    trainer = Trainer(recipe, data, Options(steps=12, edges=4000, warm_up=4), tmp_path, torch.device("cpu"))
    first = trainer._one_step(np.arange(20))
    for _ in range(11):
        last = trainer._one_step(np.arange(20))
    assert float(last["forces"].detach()) < float(first["forces"].detach())
    trainer.save()
    state = torch.load(trainer.checkpoint, weights_only=True)
    checkpoint = checkpoint_from_state(state, recipe, {"elements": list(recipe.elements)})
    rows = errors_by_class(edgewise.Potential(checkpoint), data, split(data, recipe)["train"][:20])
    assert all(row["force MAE (meV/Å)"] > 0 for row in rows.values())
