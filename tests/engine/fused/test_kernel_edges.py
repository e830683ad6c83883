"""Whole steps on kernels against autograd through the network in float64: float32 rows, and float16 rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms

import edgewise
from edgewise.engine.fused import kernel_edges
from edgewise.engine.fused.kernel_edges import KernelEdges
from edgewise.engine.fused.kernel_nodes import KernelNodes
from edgewise.engine.fused.runner import FusedRunner
from edgewise.engine.fused.step import Step, StepInputs
from edgewise.engine.fused.weights import prepare
from edgewise.ops import EdgeSegment, SO2Weights
from edgewise.ops.fused.cuda import gated_products
from edgewise.ops.fused.row_format import FLOAT16, FLOAT32, SPLIT, TF32, RowFormat
from edgewise.ops.fused.so2_linear import so2_linear, so2_map
from edgewise.potential import Potential
from edgewise.systems import batch_from_atoms
from tests import tolerances
from tests.cases import ARCHITECTURES, golden_checkpoint, potential, water
from tests.model.test_options import checkpoint as option
from tests.ops.fused.cuda import emulator
from tests.ops.fused.problems import Problem
from tests.ops.kernel_problems import DEVICE

pytestmark = [pytest.mark.kernels, pytest.mark.filterwarnings("ignore::edgewise.errors.EdgewiseWarning")]


def on_kernels(general: Potential, row_format: RowFormat) -> Potential:
    """Return a potential whose steps run on kernels with rows of a format."""
    made = general.allowing(charge_spin=True, lone_atoms=True)
    runner = general._runner
    made._runner = FusedRunner(
        runner.network,
        general._scales,
        general.settings,
        runner.device,
        runner.precision,
        make_edges=partial(KernelEdges.listed, cutoff=general.cutoff, row_format=row_format),
        nodes=KernelNodes(),
        row_format=row_format,
    )
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
    compare(on_kernels(general, FLOAT32), potential(architecture), tolerances.T32)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_float16_rows(architecture: str) -> None:
    general = potential(architecture, device=DEVICE, precision="float32", execution_mode="general")
    compare(on_kernels(general, FLOAT16), potential(architecture), tolerances.FAST)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_split_rows(architecture: str) -> None:
    general = potential(architecture, device=DEVICE, precision="float32", execution_mode="general")
    compare(on_kernels(general, SPLIT), potential(architecture), tolerances.T32)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tf32_rows(architecture: str) -> None:
    general = potential(architecture, device=DEVICE, precision="float32", execution_mode="general")
    compare(on_kernels(general, TF32), potential(architecture), tolerances.FAST)


def test_errors_by_format() -> None:
    """Rows in two parts are as good as float32, rows for TF32 at least as good as float16.

    Of several molecules, since the errors of one are a matter of luck.
    """
    general = potential("uma-s-tiny", device=DEVICE, precision="float32", execution_mode="general")
    molecules = [water() for _ in range(6)]
    for seed, atoms in enumerate(molecules):
        atoms.rattle(0.15, seed=seed)

    def forces(model: Potential) -> np.ndarray:
        return np.concatenate([item.forces for item in model.predict(molecules, "omol")])

    exact = forces(potential("uma-s-tiny"))
    error = {
        row_format.name: np.linalg.norm(forces(on_kernels(general, row_format)) - exact)
        for row_format in (FLOAT32, SPLIT, TF32, FLOAT16)
    }
    assert error["split"] <= 2 * error["float32"]
    assert error["tf32"] <= error["float16"]


@pytest.mark.parametrize("name", ["norm_layer_norm", "ff_grid_res10", "neighbors_10"])
def test_options(name: str) -> None:
    found, exact = (
        Potential(
            option(name), device=DEVICE, settings=edgewise.InferenceSettings(execution_mode="general", precision=p)
        )
        for p in ("float32", "float64")
    )
    one, other = (model.predict([water()], "omol")[0] for model in (on_kernels(found, FLOAT32), exact))
    tolerances.assert_close(one, other, tolerances.T32)


@pytest.mark.parametrize(
    ("row_format", "bound"),
    [(FLOAT32, tolerances.FUSED), (SPLIT, tolerances.FUSED), (FLOAT16, tolerances.FUSED_ROUNDED)],
)
def test_rows_that_hold_no_edge_are_not_read(
    row_format: RowFormat, bound: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are NaN here. Products round differently with more rows, so that only the same capacity gives the same bits."""
    general = potential("uma-s-tiny", device=DEVICE, precision="float32", execution_mode="general")
    given = [step_of(general, row_format, capacity) for capacity in (None, 13, 13)]
    real = torch.empty

    def poisoned(*arguments: Any, **options: Any) -> torch.Tensor:
        made = real(*arguments, **options)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", poisoned)
    tight, roomy, again = (step.evaluate(inputs) for step, inputs in given)
    for (output, gradient), equal in ((roomy, False), (again, True)):
        expected = roomy if equal else tight
        torch.testing.assert_close(
            output.node_energy, expected[0].node_energy, **({"rtol": 0, "atol": 0} if equal else bound)
        )
        torch.testing.assert_close(gradient[:6], expected[1][:6], **({"rtol": 0, "atol": 0} if equal else bound))


def step_of(general: Potential, row_format: RowFormat, capacity: int | None = None) -> tuple[Step, StepInputs]:
    """Return a step on kernels and its inputs for water."""
    runner, batch = general._runner, batch_from_atoms([water()], ["omol"])
    edges = runner._edges(batch).to(DEVICE)
    mixed, of_system = runner.mixtures.for_batch(batch)
    step = Step(
        runner.network,
        partial(KernelEdges.listed, cutoff=general.cutoff, row_format=row_format, capacity=capacity),
        KernelNodes(),
    )
    weights = [prepare(runner.network.backbone, item, row_format) for item in mixed]
    return step, step.inputs(batch.to(DEVICE), edges, weights, of_system)


@pytest.mark.parametrize("row_format", [FLOAT16, SPLIT], ids=lambda item: item.name)
def test_float16_gradients_of_any_size_are_held(row_format: RowFormat) -> None:
    """Gradients carry powers of two, so that energies in units a million times smaller lose nothing."""
    general = potential("uma-s-tiny", device=DEVICE, precision="float32", execution_mode="general")
    usual = on_kernels(general, row_format).predict([water()], "omol")
    checkpoint = golden_checkpoint("uma-s-tiny")
    last = ".energy_block.4."
    weights = {name: value * 2.0**-24 if last in name else value for name, value in checkpoint.weights.items()}
    settings = edgewise.InferenceSettings(precision="float32", execution_mode="general")
    small = Potential(replace(checkpoint, weights=weights), device=DEVICE, settings=settings)
    found = on_kernels(small, row_format).predict([water()], "omol")
    assert np.abs(usual.forces).max() > 0
    assert np.array_equal(found.forces * 2.0**24, usual.forces)


@pytest.mark.parametrize("why", [None, "it is switched off"])
def test_radial_networks_run_where_they_can(why: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In CUDA C++ wherever nothing stands against it; the answer for the embedding's format is its own."""
    asked, ran = [], []

    def missing(n_hidden: int, n_basis: int, row_format: RowFormat, _: torch.device) -> str | None:
        asked.append((n_hidden, n_basis, row_format.name))
        return why

    monkeypatch.setattr(kernel_edges.radial_in_cuda, "missing", missing)

    def run(*tensors: Any, in_cuda: bool, **_: Any) -> None:
        ran.append(in_cuda)
        for made in tensors[-2:]:
            made.zero_()

    monkeypatch.setattr(kernel_edges, "radial_hidden", run)
    general = potential("uma-s-tiny", device=DEVICE, precision="float32", execution_mode="general")
    step, inputs = step_of(general, FLOAT16)
    step.evaluate(inputs)
    config = general.config
    names = ["split", *["float16"] * config.n_layers]
    assert asked == [(config.edge_channels, config.n_basis, name) for name in names]
    assert ran == [why is None] * len(names)


def test_a_step_can_be_made_again() -> None:
    """What a captured step does: the same inputs, over and over."""
    general = potential("uma-s-tiny", device=DEVICE, precision="float32", execution_mode="general")
    step, inputs = step_of(general, FLOAT32)
    (one, gradient), (other, again) = (step.evaluate(inputs) for _ in range(2))
    assert gradient is not None
    assert again is not None
    assert torch.equal(one.node_energy, other.node_energy)
    assert torch.equal(gradient, again)


def test_runs_repeat_to_the_bit() -> None:
    general = potential("uma-s-tiny", device=DEVICE, precision="float32", execution_mode="general")
    model = on_kernels(general, FLOAT16)
    one, other = (model.predict(structures(), "omol") for _ in range(2))
    assert np.array_equal(one.energy, other.energy)
    assert np.array_equal(one.forces, other.forces)


@pytest.mark.parametrize("n_segments", [1, 2])
def test_gate_and_products_are_one_kernel_where_edges_share_weights(
    n_segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, bias = Problem(2, 2, 17, 128), torch.zeros(640, device=DEVICE)
    rows = given.rows(11 * 128).half()
    blocks = [given.random(n, n) * n**-0.5 for n in (384, 512, 256)]
    for m, block in enumerate(blocks[1:], start=1):
        n = (3 - m) * 128
        block[n:, n:], block[:n, n:] = block[:n, :n], -block[n:, :n]
    maps = [so2_map(SO2Weights(tuple(blocks), bias), FLOAT16)] * 2
    segments = [EdgeSegment(0, given.capacity, 1), EdgeSegment(given.capacity, given.capacity, 0)][:n_segments]
    if DEVICE == "cpu":
        monkeypatch.setattr(gated_products, "missing", lambda *_: None)
        monkeypatch.setattr(gated_products, "launch_text", emulator.launch_text)
        monkeypatch.setattr(gated_products, "_n_multiprocessors", lambda _: 5)
    edges = KernelEdges(given.edges, given.random(20), given.random(20, 3), given.shape, 2.5, FLOAT16)
    if why := gated_products.missing(given.shape, FLOAT16, torch.device(DEVICE)):
        pytest.skip(why)
    calls = []
    launched = gated_products.launch_text
    monkeypatch.setattr(
        gated_products, "launch_text", lambda *items, **named: [calls.append(1), launched(*items, **named)]
    )
    found = edges.gate_and_multiply(rows, bias, maps, segments)[:17].double()
    wanted = so2_linear(edges.gate(rows, bias), maps, segments)[:17].double()
    assert len(calls) == (n_segments == 1)
    assert (found - wanted).norm() <= 4e-4 * wanted.norm(), "both round their results"
