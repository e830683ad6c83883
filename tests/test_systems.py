"""Structures as tensors: what is accepted, what is refused, and that nothing of the caller's atoms is changed."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule

from edgewise.errors import ChargeSpinError, ChargeSpinTypeError, InvalidStructureError
from edgewise.systems import batch_from_atoms, charge_and_spin, reduced_composition


def test_batch_joins_structures() -> None:
    batch = batch_from_atoms([molecule("H2O"), bulk("Cu", cubic=True)], ["omol", "omat"])
    assert batch.positions.dtype == torch.float64
    assert batch.n_atoms.tolist() == [3, 4]
    assert batch.system_idx.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert batch.compositions() == [((1, 2), (8, 1)), ((29, 4),)]
    assert batch.spin.tolist() == [1, 0]
    assert reduced_composition(((1, 4), (8, 2))) == ((1, 2), (8, 1))


def test_structures_are_not_changed() -> None:
    atoms = bulk("Cu")
    atoms.positions += 100
    before = copy.deepcopy((atoms.positions, atoms.cell[:], atoms.info))
    batch = batch_from_atoms([atoms], ["omat"])
    batch.positions.zero_()
    assert np.array_equal(atoms.positions, before[0])
    assert np.array_equal(atoms.cell[:], before[1])
    assert atoms.info == before[2] == {}


@pytest.mark.parametrize(
    ("atoms", "words"),
    [
        (Atoms(), ["no atoms"]),
        (Atoms("HO", [[0, 0, 0], [0, np.nan, 1]]), ["atom 1", "O"]),
        (Atoms("HO", [[0, 0, np.inf], [0, 1, 1]]), ["atom 0", "H"]),
        (Atoms("H", pbc=True), ["no lattice vector 0"]),
        (Atoms("H", cell=[[1, 0, 0], [2, 0, 0], [0, 0, 5]], pbc=True), ["in one plane"]),
        (Atoms("H", cell=[[4, 0, 0], [0, 4, 0], [0, 0, 0]], pbc=True), ["no lattice vector 2", "pbc[2]=False"]),
        (Atoms("H", cell=[[4, 0, 0], [0, np.nan, 0], [0, 0, 1]], pbc=True), ["finite"]),
    ],
)
def test_bad_structures_are_named(atoms: Atoms, words: list[str]) -> None:
    with pytest.raises(InvalidStructureError) as caught:
        batch_from_atoms([molecule("H2O"), atoms], ["omol", "omat"])
    for word in ["structure 1", *words]:
        assert word in str(caught.value)


def test_cells_of_partly_periodic_structures_are_completed() -> None:
    atoms = Atoms("H", cell=[[0, 3, 0], [0, 0, 0], [0, 0, 0]], pbc=(True, False, False))
    cell = batch_from_atoms([atoms], ["omat"]).cell[0]
    assert torch.allclose(torch.linalg.det(cell).abs(), torch.tensor(3.0, dtype=torch.float64))
    assert cell[0].tolist() == [0, 3, 0]


@pytest.mark.parametrize("value", [0.5, 1.0, "1", True, [1], np.float64(1)])
def test_charge_and_spin_have_to_be_integers(value: object) -> None:
    for name in ("charge", "spin"):
        with pytest.raises(ChargeSpinTypeError, match=name):
            charge_and_spin({name: value}, "omol")


@pytest.mark.parametrize("value", [np.int64(1), np.int8(1), np.array(1), 1])
def test_numpy_integers_are_accepted(value: object) -> None:
    assert charge_and_spin({"charge": value, "spin": value}, "omol") == (1, 1)


@pytest.mark.parametrize("info", [{"charge": 101}, {"charge": -101}, {"spin": -1}, {"spin": 101}])
def test_charge_and_spin_have_ranges(info: dict[str, int]) -> None:
    with pytest.raises(ChargeSpinError, match="allowed are"):
        charge_and_spin(info, "omol")


def test_defaults_depend_on_the_task() -> None:
    assert charge_and_spin({}, "omol") == (0, 1)
    assert charge_and_spin({"spin": 0}, "omol") == (0, 0)
    assert charge_and_spin({}, "omat") == (0, 0)
    assert charge_and_spin({"charge": 0, "spin": 0}, "omat") == (0, 0)


@pytest.mark.parametrize("info", [{"charge": 1}, {"spin": 1}])
def test_other_tasks_refuse_charge_and_spin_unless_told(info: dict[str, int]) -> None:
    with pytest.raises(ChargeSpinError, match="allowing"):
        charge_and_spin(info, "omat")
    assert charge_and_spin(info, "omat", allow_charge_spin=True) == (info.get("charge", 0), info.get("spin", 0))
