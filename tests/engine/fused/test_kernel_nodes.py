"""What kernels do on nodes inside a step: how many launches it takes, that the host is asked for nothing, mixed batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime.interpreter import GridExecutor

from edgewise.engine.fused import kernel_nodes
from edgewise.engine.fused.edges import PlainEdges
from edgewise.engine.fused.kernel_nodes import KernelNodes
from edgewise.engine.fused.nodes import TILE, StepNodes, atom_plan, energy_weights
from edgewise.engine.fused.step import Step, StepInputs
from edgewise.engine.fused.weights import prepare
from edgewise.ops import EdgeSegment
from edgewise.ops.fused import energy_head
from edgewise.ops.fused.row_format import plain_format
from edgewise.potential import Potential
from edgewise.systems import SystemBatch, batch_from_atoms
from tests.cases import ARCHITECTURES, potential, water
from tests.model.test_options import open_variant
from tests.ops.kernel_problems import DEVICE

pytestmark = [pytest.mark.kernels, pytest.mark.filterwarnings("ignore::edgewise.errors.EdgewiseWarning")]

OPTIONS = [
    *("norm_layer_norm", "norm_layer_norm_sh", "ff_grid_l3m2", "l1m1", "l4m2", "single_head", "charge_balance_offset"),
    *("spin_balance", "both_balances", "unequal_widths", "moe_type_all", "moe_type_all_grid", "experts_0_moe_head"),
    *("direct", "direct_linear_energy", "direct_moe_wrapper", "reduce_mean"),
]
"""Those that change what nodes do."""

WITHOUT_LAUNCH = {
    *(
        "view",
        "_unsafe_view",
        "slice",
        "select",
        "unsqueeze",
        "squeeze",
        "transpose",
        "t",
        "permute",
        "expand",
        "split",
    ),
    *("unflatten", "alias", "detach", "as_strided", "reshape", "unbind", "empty", "empty_like", "new_empty"),
}

METHODS = ("embed", "norm", "norm_of_sum", "norm_adjoint", "feed_forward", "feed_forward_adjoint", "balance", "balance_adjoint", "energy")  # fmt: skip


class Launches(TorchDispatchMode):
    """Counts what PyTorch would launch, by the names of the operations."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in WITHOUT_LAUNCH:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count launches of PyTorch and of kernels; what the interpreter does for a kernel is none of them."""
    mode, real = Launches(), GridExecutor.__call__

    def call(self: Any, *arguments: Any, **options: Any) -> None:
        mode.counts[f"kernel {self.fn.__name__}"] += 1
        with _disable_current_modes():
            real(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(GridExecutor, "__call__", call)
        with mode:
            yield mode.counts


def step_of(model: Potential, tasks: list[str], nodes: StepNodes) -> tuple[Step, StepInputs]:
    """Return a step with plain edges for as many water molecules as there are tasks."""
    structures = [water() for _ in tasks]
    for number, atoms in enumerate(structures):
        atoms.rattle(0.05, seed=number)
    runner, batch = model._runner, batch_from_atoms(structures, tasks)
    edges = runner._edges(batch).to(runner.device)
    mixed, of_system = runner.mixtures.for_batch(batch)
    step = Step(runner.network, PlainEdges, nodes)
    row_format = plain_format(next(runner.network.parameters()).dtype)
    weights = [prepare(runner.network.backbone, item, row_format) for item in mixed]
    return step, step.inputs(batch.to(runner.device), edges, weights, of_system)


def single(architecture: str = "uma-s-tiny") -> Potential:
    return potential(architecture, device=DEVICE, precision="float32", execution_mode="general")


@pytest.mark.skipif(DEVICE == "cuda", reason="counts the interpreter's launches")
def test_a_layer_takes_nine_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four forward: two norms, the feed-forward network, balance. Five adjoint: balance, three for the network's and a norm's."""

    class Counted(KernelNodes):
        """Counts inside its own methods alone."""

    found: Counter[str] = Counter()

    def wrap(method: Any) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            with counted(monkeypatch) as counts:
                result = method(*arguments, **options)
            found.update(counts)
            return result

        return wrapped

    for name in METHODS:
        monkeypatch.setattr(Counted, name, wrap(getattr(KernelNodes, name)))
    model = single()
    step, inputs = step_of(model, ["omol", "omol"], Counted())
    step.evaluate(inputs)
    found.clear()
    step.evaluate(inputs)
    n_layers = model.config.n_layers
    once = Counter({"kernel _embed": 1, "kernel _norm": 1, "kernel _energy_head": 1, "kernel _norm_adjoint": 1})
    layer = Counter(
        {
            "kernel _norm": 2,
            "kernel _feed_forward": 1,
            "kernel _balance": 2,
            "kernel _feed_forward_adjoint": 1,
            "kernel _gates_adjoint": 1,
            "kernel _norm_adjoint": 2,
        }
    )
    expected = once + Counter({name: n_layers * count for name, count in layer.items()})
    assert found == expected


@pytest.mark.parametrize("nodes", [StepNodes, KernelNodes])
def test_a_step_of_several_tasks_asks_the_host_for_nothing(
    nodes: type[StepNodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a number read from the device nor a tensor made of the host's: what a captured graph cannot hold."""
    model = single()
    tasks = [model.tasks[0], model.tasks[-1], model.tasks[0]]
    assert len(set(tasks)) == 2
    step, inputs = step_of(model, tasks, nodes())
    assert len(inputs.plan.energy_runs) == 3
    step.evaluate(inputs)
    with counted(monkeypatch) as counts:
        step.evaluate(inputs)
    assert set(counts) & {"_local_scalar_dense", "nonzero", "lift_fresh", "is_nonzero", "item"} == set()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nodes_on_kernels_equal_plain_ones(architecture: str) -> None:
    model = single(architecture)
    assert_nodes_agree(model, [model.tasks[0], model.tasks[-1]])


@pytest.mark.parametrize("name", OPTIONS)
def test_options_equal_plain_nodes(name: str) -> None:
    model = open_variant(name, DEVICE, execution_mode="general", precision="float32")
    assert_nodes_agree(model, [model.tasks[0], model.tasks[-1]])


def assert_nodes_agree(model: Potential, tasks: list[str]) -> None:
    """Compare node energies and edge gradients."""
    runs = [step_of(model, tasks, nodes) for nodes in (StepNodes(), KernelNodes())]
    (expected, gradient), (found, own) = (step.evaluate(inputs) for step, inputs in runs)
    torch.testing.assert_close(found.node_energy, expected.node_energy, rtol=1e-5, atol=1e-5)
    if gradient is not None:
        assert own is not None
        scale = float(gradient.abs().max())
        torch.testing.assert_close(own / scale, gradient / scale, rtol=0, atol=5e-5)


def test_tiles_are_as_long_as_the_kernel_takes_and_hold_one_set_each() -> None:
    assert TILE == energy_head.ATOMS
    weights = energy_weights(single()._runner.network)
    names = {number: name for name, number in weights.sets.items()}
    tasks = tuple(names[number] for number in (0, 0, 1, 0))
    counts = [TILE - 1, 3, 2 * TILE, 1]
    plan = atom_plan(batch(counts, tasks), counts, weights)
    stop = sum(counts)
    assert plan.starts.tolist() == [0, 15, 18, 50, 51]
    assert plan.energy_runs == (EdgeSegment(0, 18, 0), EdgeSegment(18, 50, 1), EdgeSegment(50, stop, 0))
    assert plan.energy_tiles.tolist() == [[0, 16, 0], [16, 18, 0], [18, 34, 1], [34, 50, 1], [50, 51, 0]]


def batch(counts: list[int], tasks: tuple[str, ...]) -> SystemBatch:
    """Return a batch of which the number of atoms and the tasks are known."""
    nothing = Tensor()
    n_atoms = torch.tensor(counts)
    return SystemBatch(nothing, nothing, nothing, nothing, nothing, n_atoms, nothing, nothing, tasks)


def test_wide_networks_run_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit on a multiprocessor takes the plain path, with the same numbers."""
    monkeypatch.setattr(kernel_nodes, "WIDEST", 3)
    assert_nodes_agree(single(), ["omol"])
