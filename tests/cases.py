"""Structures and tiny checkpoints that the tests share."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from safetensors.torch import load_file

import edgewise
from edgewise.weights import Checkpoint

GOLDEN = Path(__file__).parent / "golden"
MANIFEST: dict[str, Any] = json.loads((GOLDEN / "manifest.json").read_text())
ARCHITECTURES = tuple(MANIFEST["archs"])


def golden_atoms(case: str, manifest: dict[str, Any] = MANIFEST) -> Atoms:
    """Return the structure of a golden case, with charge and spin in its info."""
    values = manifest["cases"][case]
    return Atoms(
        numbers=values["numbers"],
        positions=values["positions"],
        cell=values["cell"],
        pbc=values["pbc"],
        info={"charge": values["charge"], "spin": values["spin"]},
    )


@functools.cache
def golden_checkpoint(architecture: str) -> Checkpoint:
    """Return a tiny random-weight checkpoint of the golden set."""
    return Checkpoint(
        model_config=json.loads((GOLDEN / f"{architecture}.model_config.json").read_text()),
        tasks_config=json.loads((GOLDEN / f"{architecture}.tasks_config.json").read_text()),
        weights=load_file(GOLDEN / f"{architecture}.safetensors"),
        name=architecture,
        source=None,
        card={},
    )


@functools.cache
def golden_outputs(architecture: str) -> dict[str, np.ndarray]:
    """Return the stored outputs of the peer."""
    with np.load(GOLDEN / f"{architecture}.npz") as archive:
        return dict(archive)


def potential(
    architecture: str = "uma-s-tiny", task: str | None = None, device: str = "cpu", **settings: Any
) -> edgewise.Potential:
    """Return a potential of a golden checkpoint; float64 unless the settings say otherwise."""
    if not {"precision", "base_precision_dtype"} & set(settings):
        settings["precision"] = "float64"
    return edgewise.Potential(
        golden_checkpoint(architecture), task=task, device=device, settings=edgewise.InferenceSettings(**settings)
    )


def water() -> Atoms:
    """Return W of the case collection: 6 edges, flat in the plane x = 0."""
    positions = [(0, 0, 0.1173), (0, 0.7572, -0.4692), (0, -0.7572, -0.4692)]
    return Atoms("OHH", positions)


def copper_primitive() -> Atoms:
    """Return CU1: one atom that sees only its own images, 78 edges."""
    return Atoms("Cu", cell=[(0, 1.805, 1.805), (1.805, 0, 1.805), (1.805, 1.805, 0)], pbc=True)


def copper_cube() -> Atoms:
    """Return the 4-atom cube of fcc copper, 312 edges."""
    scaled = [(0, 0, 0), (0, 0.5, 0.5), (0.5, 0, 0.5), (0.5, 0.5, 0)]
    return Atoms("Cu4", scaled_positions=scaled, cell=[3.61] * 3, pbc=True)


def salt(cell: Any = (5.64, 5.64, 5.64)) -> Atoms:
    """Return NACL: 8 displaced atoms, 256 edges."""
    scaled = [
        (0, 0, 0),
        (0.5, 0, 0),
        (0, 0.5, 0.5),
        (0.5, 0.5, 0.5),
        (0.5, 0, 0.5),
        (0, 0, 0.5),
        (0.5, 0.5, 0),
        (0, 0.5, 0),
    ]
    atoms = Atoms("NaCl" * 4, scaled_positions=scaled, cell=cell, pbc=True)
    i = np.arange(8)
    atoms.positions += 0.05 * np.stack([np.sin(1 + 3 * i), np.sin(2 + 3 * i), np.sin(3 + 3 * i)], axis=1)
    return atoms


def slab(height: float = 9.0) -> Atoms:
    """Return SLAB: 3 layers of copper, periodic in two directions, 142 edges whatever the height of the cell."""
    positions = [(0, 0, -1.805), (1.27635, 1.27635, 0), (0, 0, 1.805)]
    return Atoms("Cu3", positions, cell=[2.5527, 2.5527, height], pbc=(True, True, False))
