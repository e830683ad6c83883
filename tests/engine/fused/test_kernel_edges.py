"""Whole steps on kernels against autograd through the network in float64: float32 rows, and float16 rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from ase import Atoms

import edgewise
from edgewise.engine.fused.kernel_edges import KernelEdges
from edgewise.engine.fused.kernel_nodes import KernelNodes
from edgewise.engine.fused.runner import FusedRunner
from edgewise.engine.fused.step import Step
from edgewise.engine.fused.weights import prepare
from edgewise.potential import Potential
from edgewise.systems import batch_from_atoms
from tests import tolerances
from tests.cases import ARCHITECTURES, golden_checkpoint, potential, water
from tests.model.test_options import open_variant
from tests.ops.kernel_problems import DEVICE

pytestmark = [pytest.mark.kernels, pytest.mark.filterwarnings("ignore::edgewise.errors.EdgewiseWarning")]


def on_kernels(general: Potential, dtype: torch.dtype) -> Potential:
    """Return a potential whose steps run on kernels with rows of a type."""
    made = general.allowing(charge_spin=True, lone_atoms=True)
    runner = general._runner
    made._runner = FusedRunner(runner.network, general._scales, general.settings, runner.device, runner.precision)
    made._runner.make_edges = partial(KernelEdges, cutoff=general.cutoff, dtype=dtype)
    made._runner.row_dtype = dtype
    made._runner.nodes = KernelNodes()
    return made


def structures() -> list[Atoms]:
    """At most 14 edges in all: the interpreter is slow."""
    ion = water()
    ion.info = {"charge": -1, "spin": 2}
    chain = Atoms("He", [[0.3, 0.2, 0.1]], cell=[[3.0, 0, 0.2], [0, 1, 0], [0, 0, 1]], pbc=[True, False, False])
    return [ion, Atoms("Na"), chain]


def compare(found: Potential, exact: Potential, tolerance: tolerances.Tolerance) -> None:
    exact = exact.allowing(charge_spin=True, lone_atoms=True)
    task = exact.tasks[0]
    expected = exact.predict(structures(), task)
    for one, other in zip(found.predict(structures(), task), expected, strict=True):
        tolerances.assert_close(one, other, tolerance)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_float32_rows(architecture: str) -> None:
    general = potential(architecture, device=DEVICE, precision="float32", execution_mode="general")
    compare(on_kernels(general, torch.float32), potential(architecture), tolerances.T32)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_float16_rows(architecture: str) -> None:
    general = potential(architecture, device=DEVICE, precision="float32", execution_mode="general")
    compare(on_kernels(general, torch.float16), potential(architecture), tolerances.FAST)


@pytest.mark.parametrize("name", ["norm_layer_norm", "ff_grid_res10", "neighbors_10"])
def test_options(name: str) -> None:
    found = open_variant(name, precision="float32", execution_mode="general")
    if DEVICE == "cpu":
        compare_few(on_kernels(found, torch.float32), open_variant(name))


def compare_few(found: Potential, exact: Potential) -> None:
    for one, other in zip(found.predict([water()], "omol"), exact.predict([water()], "omol"), strict=True):
        tolerances.assert_close(one, other, tolerances.T32)


def test_float16_gradients_of_any_size_are_held() -> None:
    """Gradients carry powers of two, so that energies in units a million times smaller lose nothing."""
    general = potential("uma-s-tiny", device=DEVICE, precision="float32", execution_mode="general")
    usual = on_kernels(general, torch.float16).predict([water()], "omol")
    checkpoint = golden_checkpoint("uma-s-tiny")
    last = ".energy_block.4."
    weights = {name: value * 2.0**-24 if last in name else value for name, value in checkpoint.weights.items()}
    settings = edgewise.InferenceSettings(precision="float32", execution_mode="general")
    small = Potential(replace(checkpoint, weights=weights), device=DEVICE, settings=settings)
    found = on_kernels(small, torch.float16).predict([water()], "omol")
    assert np.abs(usual.forces).max() > 0
    assert np.array_equal(found.forces * 2.0**24, usual.forces)


def test_a_step_can_be_made_again() -> None:
    """What a captured step does: the same inputs, over and over."""
    general = potential("uma-s-tiny", device=DEVICE, precision="float32", execution_mode="general")
    runner, batch = general._runner, batch_from_atoms([water()], ["omol"])
    edges = runner._edges(batch).to(DEVICE)
    mixed, of_system = runner.mixtures.for_batch(batch)
    step = Step(runner.network, partial(KernelEdges, cutoff=general.cutoff), KernelNodes())
    weights = [prepare(runner.network.backbone, item, torch.float32) for item in mixed]
    inputs = step.inputs(batch.to(DEVICE), edges, weights, of_system)
    (one, gradient), (other, again) = (step.evaluate(inputs) for _ in range(2))
    assert gradient is not None
    assert again is not None
    assert torch.equal(one.node_energy, other.node_energy)
    assert torch.equal(gradient, again)


def test_runs_repeat_to_the_bit() -> None:
    general = potential("uma-s-tiny", device=DEVICE, precision="float32", execution_mode="general")
    model = on_kernels(general, torch.float16)
    one, other = (model.predict(structures(), "omol") for _ in range(2))
    assert np.array_equal(one.energy, other.energy)
    assert np.array_equal(one.forces, other.forces)
    assert isinstance(one, edgewise.potential.Results)
