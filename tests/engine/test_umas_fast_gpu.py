"""Mode umas_fast_gpu: where it serves and where it says why not, and that it computes what general computes.

Without a GPU the kernels run in Triton's interpreter, so the structures are small; the float64 comparisons are exact.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms

import edgewise
from edgewise.errors import EdgewiseWarning, ModeUnavailableError
from edgewise.ops import REFERENCE
from edgewise.ops.fast import Optimizations, fast_ops
from edgewise.potential import Potential
from tests import tolerances
from tests.cases import copper_cube, golden_checkpoint, potential, water
from tests.model.test_options import checkpoint as option
from tests.ops.kernel_problems import DEVICE, deterministic_algorithms

pytestmark = [pytest.mark.kernels, pytest.mark.filterwarnings("ignore::edgewise.errors.EdgewiseWarning")]

NAMES = [item.name for item in fields(Optimizations)]


def hydrogen(distance: float = 0.8) -> Atoms:
    return Atoms("H2", [[0, 0, 0], [0.1, 0, distance]])


def chain() -> Atoms:
    """One periodic axis with 4 edges for a short cell, so that there is a stress."""
    return Atoms("He", [[0.3, 0.2, 0.1]], cell=[[3.0, 0, 0.2], [0, 1, 0], [0, 0, 1]], pbc=[True, False, False])


def exactly(architecture: str = "uma-s-tiny", chosen: Optimizations | None = None) -> Potential:
    """Return the mode's operations in float64, which its settings do not offer: the comparison is exact then."""
    settings = edgewise.InferenceSettings(execution_mode="general", precision="float64")
    return edgewise.Potential(golden_checkpoint(architecture), device=DEVICE, settings=settings).with_ops(
        fast_ops(chosen)
    )


def fast(checkpoint: edgewise.weights.Checkpoint | str = "uma-s-tiny", **settings: object) -> Potential:
    given = golden_checkpoint(checkpoint) if isinstance(checkpoint, str) else checkpoint
    made = edgewise.InferenceSettings(**{"execution_mode": "umas_fast_gpu", **settings})
    return edgewise.Potential(given, device=DEVICE, settings=made).allowing(charge_spin=True, lone_atoms=True)


def assert_same(
    model: Potential,
    plain: Potential,
    structures: Sequence[Atoms],
    task: str | Sequence[str],
    tolerance: tolerances.Tolerance = tolerances.T32,
) -> None:
    """Compare each structure's results; what the element references give is no measure of an energy's error."""
    tasks = [task] * len(structures) if isinstance(task, str) else task
    found, expected = (item.predict(structures, tasks) for item in (model, plain))
    for one, other, atoms, name in zip(found, expected, structures, tasks, strict=True):
        table = plain._scales[name].references
        offset = 0.0 if table is None else float(table[atoms.numbers].sum())
        tolerances.assert_close(one, other, tolerance, energy_offset=offset)


@pytest.mark.parametrize("chosen", [Optimizations(), Optimizations.none()], ids=["all", "none"])
def test_a_mixed_batch_equals_general(chosen: Optimizations) -> None:
    structures, tasks = [water(), hydrogen(), chain(), Atoms("Na")], ["omol", "omol", "omat", "omol"]
    assert_same(exactly(chosen=chosen), potential(), structures, tasks, tolerances.T64)


@pytest.mark.parametrize("name", NAMES)
def test_each_optimization_can_be_switched_off_alone(name: str) -> None:
    model = exactly(chosen=replace(Optimizations(), **{name: False}))
    assert_same(model, potential(), [water()], "omol", tolerances.T64)


@pytest.mark.parametrize("merge_mole", [True, False])
def test_merged_and_unmerged(merge_mole: bool) -> None:
    structures = [water(), hydrogen(), water()]
    model = fast(merge_mole=merge_mole)
    for _ in range(2):
        assert_same(model, potential(), structures, "omol")


@pytest.mark.parametrize("architecture", ["uma-s-1p2-tiny", "esen-tiny", "esen-direct-tiny"])
def test_other_architectures(architecture: str) -> None:
    task = potential(architecture).tasks[0]
    assert_same(fast(architecture), potential(architecture).allowing(charge_spin=True), [hydrogen()], task)


def mmax_1() -> edgewise.weights.Checkpoint:
    given = golden_checkpoint("uma-s-tiny")
    config = {**given.model_config, "backbone": {**given.model_config["backbone"], "mmax": 1}}
    keep = {name: value for name, value in given.weights.items() if "so2_m_conv.1." not in name}
    for name, value in keep.items():
        if name.endswith(("so2_conv_1.rad_func.net.6.weight", "so2_conv_1.rad_func.net.6.bias")):
            # The radial factors of order 2 stand last.
            keep[name] = value[: value.shape[0] // 6 * 5]
    return replace(given, model_config=config, weights=keep)


def test_mmax_1_runs_on_the_same_kernels() -> None:
    settings = edgewise.InferenceSettings(execution_mode="general", precision="float64")
    plain = edgewise.Potential(mmax_1(), device=DEVICE, settings=settings)
    assert_same(plain.with_ops(fast_ops()), plain, [water(), hydrogen()], "omol", tolerances.T64)
    model = fast(mmax_1())
    assert model.describe().mode == "umas_fast_gpu"
    assert_same(model, plain, [water(), hydrogen()], "omol")


def test_s2_activation_takes_the_path_that_keeps_everything() -> None:
    given = option("act_s2")
    plain = edgewise.Potential(given, settings=edgewise.InferenceSettings(precision="float64")).allowing(
        charge_spin=True
    )
    model = fast(given)
    assert "s2 activation" in str(model.describe())
    assert_same(model, plain, [hydrogen()], plain.tasks[0])


def test_deterministic_runs_repeat_to_the_bit() -> None:
    structures, tasks = [water(), chain()], ["omol", "omat"]
    if DEVICE == "cuda":
        # 2496 edges: enough programs at once for sums in any order to differ, and their bits with them.
        crystal = copper_cube().repeat(2)
        crystal.rattle(0.05, seed=1)
        structures, tasks = [*structures, crystal], [*tasks, "omat"]
    model = fast(deterministic=True)
    first, *others = (model.predict(structures, tasks) for _ in range(5 if DEVICE == "cuda" else 2))
    for other in others:
        for name in ("energy", "forces", "stress"):
            assert getattr(first, name).tobytes() == getattr(other, name).tobytes()
    assert_same(model, potential(), structures, tasks)
    assert "sums in fixed order" in str(model.describe())


class InTheMiddleError(Exception):
    """What a test raises inside a call."""


@pytest.mark.parametrize("fails", [False, True], ids=["", "fails"])
@pytest.mark.parametrize("before", [False, True], ids=["", "on before"])
@pytest.mark.parametrize("deterministic", [False, True], ids=["any order", "fixed order"])
@pytest.mark.parametrize("mode", ["general", "umas_fast_gpu"])
def test_a_fixed_order_is_asked_for_during_a_deterministic_call_alone(
    mode: str, deterministic: bool, before: bool, fails: bool
) -> None:
    forward: list[bool] = []
    backward: list[bool] = []
    made = potential(precision="float32", execution_mode=mode, device=DEVICE, deterministic=deterministic)
    ops = fast_ops() if mode == "umas_fast_gpu" else REFERENCE

    def message(*arguments: Any) -> torch.Tensor:
        forward.append(torch.are_deterministic_algorithms_enabled())
        if fails:
            raise InTheMiddleError
        out = ops.edge_message(*arguments)
        out.register_hook(lambda gradient: backward.append(torch.are_deterministic_algorithms_enabled()))
        return out

    model = made.allowing(charge_spin=True).with_ops(replace(ops, edge_message=message))
    with deterministic_algorithms() if before else nullcontext():
        with pytest.raises(InTheMiddleError) if fails else nullcontext():
            model.predict([hydrogen()], "omol")
        assert torch.are_deterministic_algorithms_enabled() == before
    assert set(forward) == {deterministic or before}
    assert set(backward) == (set() if fails else {deterministic or before})


def test_no_edges_at_all() -> None:
    found = fast().predict([Atoms("Na", info={"charge": 1, "spin": 1})], "omol")
    assert np.array_equal(found.forces, np.zeros((1, 3)))
    assert_same(fast(), potential(), [Atoms("Na", info={"charge": 1, "spin": 1})], "omol")


@pytest.mark.parametrize("vectorised", [True, False])
def test_hessians_go_through_plain_pytorch(vectorised: bool) -> None:
    found = fast(hessian_vmap=vectorised).hessian(hydrogen(), "omol")
    expected = potential().hessian(hydrogen(), "omol")
    assert np.abs(found - expected).max() <= tolerances.HESSIAN32 * np.abs(expected).max()


def test_edge_chunks() -> None:
    assert_same(fast(edge_chunk_size=2), fast(), [water()], "omol")


def test_compiled_once_for_changing_numbers_of_atoms_and_edges() -> None:
    model = fast()
    model._runner.network.backbone.compile_features("aot_eager")
    quads = [Atoms("H4", [[0, 0, 0], [0, 0, 0.9], [0, 0, 1.9], [0, 0, z]]) for z in (2.9, 7.5, 30.0)]
    torch._dynamo.utils.counters.clear()
    for atoms in quads:
        assert_same(model, potential(), [atoms], "omol")
    for atoms in (water(), quads[1], water()):
        assert_same(model, potential(), [atoms], "omol")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    # Several systems that share their weights may cost one more.
    for n in (2, 3, 2):
        assert_same(model, potential(), [water()] * n, "omol")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    # Systems that do not share weights are not compiled, and right all the same.
    structures = [water(), hydrogen()]
    assert_same(model, potential(), structures, "omol")


def test_where_it_cannot_serve_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModeUnavailableError, match="lmax 4, mmax 2"):
        fast("uma-m-tiny")
    monkeypatch.setattr("edgewise.ops.launch.is_interpreted", lambda: False)
    with pytest.raises(ModeUnavailableError, match="the device is cpu, not cuda"):
        potential(execution_mode="umas_fast_gpu", precision="float32")


def test_the_choice_is_explained() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", EdgewiseWarning)
        text = str(fast().describe())
    assert "mode        umas_fast_gpu: asked for" in text
    assert "operation   gate: Triton kernels" in text
    assert "float32" in text
    assert potential(precision=None).describe().mode_reason == "chosen on cpu"
    assert "compiled for calls" in str(fast(compile=True).describe())
