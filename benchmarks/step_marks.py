"""Marks between the parts of a step: each launches a kernel of its own kind, so that a profile says which part is at work.

A part's function is replaced by one that sets a mark, does the work and sets the mark of what goes on around it; a step that is
recorded then has the marks in its recording. While marks are set nothing runs side by side, so the n-th mark of a profile is the
n-th that was set, and no name of a kernel has to be known but that of the marks themselves. Without a GPU, where nothing is
recorded, marks note the time of the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from unittest import mock

import step_counts as counts
import torch
from step_counts import Count

from edgewise.engine.fused import edges, step, system_steps
from edgewise.engine.fused.kernel_edges import KernelEdges
from edgewise.engine.fused.kernel_nodes import KernelNodes
from edgewise.engine.fused.recorded import Recorded
from edgewise.engine.fused.weights import StepWeights
from edgewise.ops.fused.streams import one_after_the_other

MARK = "spin_kernel"
"""In the name of the kernel of a mark: one that waits for a cycle, and that nothing else uses."""

NEIGHBOURS, GEOMETRY, HIDDEN = "neighbour list", "geometry and order", "radial networks, hidden layers"
LAST, LAST_ADJOINT = "radial networks, last layers", "radial networks, last layers, for the adjoint"
FIRST, SECOND, GATE_AND_SECOND = "first products", "second products", "gate and second products"
NODES, FORCES, ELSE = "nodes", "forces and stress", "everything else"

Part = str | Callable[["Marks", tuple[Any, ...]], str]
"""The name of a part, or what tells it from the arguments."""


@dataclass(frozen=True)
class Switch:
    """Work of another part begins.

    Attributes:
        part: Which.
        seconds: When, by the clock of the host.
        count: What the part that ends has had to do; None where it ends for another one inside it.
        of: Which part that is.
    """

    part: str
    seconds: float
    count: Count | None = None
    of: str = ""


class Marks:
    """Sets marks, and knows those of what was played.

    Attributes:
        played: The switches of all recordings that were played since the list was last cleared, in their order.
        in_adjoint: The step is on its way back.
        products: Names of SO(2) maps, by their identity.
    """

    def __init__(self, device: torch.device) -> None:
        """Begin outside of all parts."""
        self._on_gpu = device.type == "cuda"
        self.played: list[Switch] = []
        self.in_adjoint = False
        self.products: dict[int, str] = {}
        self._set: list[Switch] = []
        self._around = [ELSE]

    def recorded(
        self, work: Callable[[], Any], device: torch.device, workspace: Any = None, **named: Any
    ) -> Recorded[Any]:
        """Make a recording with marks, in place of `Recorded`."""
        return _Marked(self, work, device, workspace, **named)

    def restart(self) -> None:
        """Forget the switches that were set."""
        self._set, self._around, self.in_adjoint = [], [ELSE], False

    def take(self) -> list[Switch]:
        """Return the switches that were set since `restart`."""
        return list(self._set)

    def during(
        self, part: str, function: Callable[..., Any], count: Callable[..., Count], *given: Any, **named: Any
    ) -> Any:
        """Do the work of a part."""
        self._around.append(part)
        self._switch(part)
        result = function(*given, **named)
        self._around.pop()
        self._switch(self._around[-1], count(*given, **named, result=result), part)
        return result

    def _switch(self, part: str, count: Count | None = None, of: str = "") -> None:
        if self._on_gpu:
            torch.cuda._sleep(1)  # noqa: SLF001, there is no public kernel that does nothing
        self._set.append(Switch(part, time.perf_counter(), count, of))


class _Marked(Recorded[Any]):
    """A recording that tells which marks it plays."""

    def __init__(
        self, marks: Marks, work: Callable[[], Any], device: torch.device, workspace: Any, **named: Any
    ) -> None:
        self._marks = marks

        def marked() -> Any:
            marks.restart()
            return work()

        super().__init__(marked, device, workspace, **named)
        self._switches: list[Switch] = []

    def __call__(self) -> Any:
        was_recorded = self.is_recorded
        result = super().__call__()
        if not was_recorded:
            # The work was done, or recorded, just now.
            self._switches = self._marks.take()
        self._marks.played += self._switches
        return result


def _of_products(marks: Marks, given: tuple[Any, ...]) -> str:
    return marks.products[id(given[1][0])]


def _of_adjoint_products(marks: Marks, given: tuple[Any, ...]) -> str:
    return f"{_of_products(marks, given)}, adjoint"


def _of_last_layers(marks: Marks, given: tuple[Any, ...]) -> str:
    del given
    return LAST_ADJOINT if marks.in_adjoint else LAST


PLACES: tuple[tuple[Any, str, Part, Callable[..., Count]], ...] = (
    (system_steps, "count_edges", NEIGHBOURS, counts.count_edges),
    (system_steps, "fill_edges", NEIGHBOURS, counts.fill_edges),
    (KernelEdges, "found", GEOMETRY, counts.found),
    (KernelEdges, "hidden", HIDDEN, counts.hidden),
    (step.Step, "_last_layer", _of_last_layers, counts.last_layer),
    (KernelEdges, "embed", "degree embedding", counts.embed_edges),
    (KernelEdges, "gather_rotate", "gather_rotate", counts.gather_rotate),
    (step, "so2_linear", _of_products, counts.products),
    (KernelEdges, "gate_and_multiply", GATE_AND_SECOND, counts.gate_and_multiply),
    # Where one kernel cannot do both.
    (KernelEdges, "gate", "gate", counts.gate),
    (edges, "so2_linear", _of_products, counts.products),
    (KernelEdges, "rotate_sum", "rotate_sum", counts.rotate_sum),
    (KernelNodes, "embed", NODES, counts.embed),
    (KernelNodes, "norm", NODES, counts.norm),
    (KernelNodes, "norm_of_sum", NODES, counts.norm_of_sum),
    (KernelNodes, "feed_forward", NODES, counts.feed_forward),
    (KernelNodes, "balance", NODES, counts.balance),
    (KernelNodes, "energy", "energy head with its adjoint", counts.energy),
    (KernelNodes, "norm_adjoint", f"{NODES}, adjoint", counts.norm_adjoint),
    (KernelNodes, "feed_forward_adjoint", f"{NODES}, adjoint", counts.feed_forward_adjoint),
    (KernelNodes, "balance_adjoint", f"{NODES}, adjoint", counts.balance),
    (KernelEdges, "rotate_sum_adjoint", "rotate_sum, adjoint", counts.rotate_sum_adjoint),
    (step, "so2_linear_adjoint", _of_adjoint_products, counts.products),
    (KernelEdges, "gate_adjoint", "gate, adjoint", counts.gate_adjoint),
    (KernelEdges, "gather_rotate_adjoint", "gather_rotate, adjoint", counts.gather_rotate_adjoint),
    (KernelEdges, "embed_adjoint", "degree embedding, adjoint", counts.embed_edges_adjoint),
    (KernelEdges, "begin", FORCES, counts.begin),
    (KernelEdges, "edge_gradient", FORCES, counts.edge_gradient),
    (system_steps, "forces_and_virial", FORCES, counts.forces_and_virial),
    (system_steps, "sum_of_systems", FORCES, counts.sum_of_systems),
)
"""Whose attribute does which part, and what counts it."""

ORDER = (
    NEIGHBOURS,
    GEOMETRY,
    HIDDEN,
    LAST,
    "degree embedding",
    "gather_rotate",
    FIRST,
    GATE_AND_SECOND,
    "gate",
    SECOND,
    "rotate_sum",
    NODES,
    "energy head with its adjoint",
    f"{NODES}, adjoint",
    "rotate_sum, adjoint",
    f"{SECOND}, adjoint",
    "gate, adjoint",
    f"{FIRST}, adjoint",
    LAST_ADJOINT,
    "gather_rotate, adjoint",
    "degree embedding, adjoint",
    FORCES,
    ELSE,
)
"""The parts in the order in which a step comes to them."""


@contextmanager
def marked(marks: Marks) -> Iterator[None]:
    """Let every step that is recorded set marks."""
    with ExitStack() as stack:
        for owner, name, part, count in PLACES:
            function = getattr(owner, name)
            # A method of the class takes no further argument in front; any other function takes all that it is given.
            replacement = _replacement(marks, function, part, count)
            is_bound = getattr(function, "__self__", None) is owner
            stack.enter_context(mock.patch.object(owner, name, staticmethod(replacement) if is_bound else replacement))
        stack.enter_context(mock.patch.object(system_steps, "Recorded", marks.recorded))
        stack.enter_context(one_after_the_other())
        yield


def _replacement(
    marks: Marks, function: Callable[..., Any], part: Part, count: Callable[..., Count]
) -> Callable[..., Any]:
    def replacement(*given: Any, **named: Any) -> Any:
        for item in given:
            if isinstance(item, StepWeights):
                marks.products |= {id(block.conv_1): FIRST for block in item.blocks}
                marks.products |= {id(block.conv_2): SECOND for block in item.blocks}
        name = part if isinstance(part, str) else part(marks, given)
        result = marks.during(name, function, count, *given, **named)
        if function.__name__ == "energy":
            marks.in_adjoint = True
        return result

    return replacement


@dataclass(frozen=True)
class Piece:
    """A kernel, a copy or a filling with zeros.

    Attributes:
        part: To which it belongs.
        name: Its name.
        milliseconds: How long it took.
    """

    part: str
    name: str
    milliseconds: float


class UnfitProfileError(RuntimeError):
    """A profile does not have the marks that were set."""


def attributed(events: Sequence[tuple[str, float]], switches: Sequence[str]) -> list[Piece]:
    """Give every piece of a profile to a part.

    Args:
        events: Name and ms of everything that kept the GPU busy, marks among it, in the order of time.
        switches: The parts that begin with each mark. What is in front of the first belongs to `ELSE`.

    Raises:
        UnfitProfileError: Another number of marks.
    """
    n_marks = sum(MARK in name for name, _ in events)
    if n_marks != len(switches):
        message = f"{n_marks} marks are in the profile, and {len(switches)} were set"
        raise UnfitProfileError(message)
    following, part, found = iter(switches), ELSE, []
    for name, milliseconds in events:
        if MARK in name:
            part = next(following)
        else:
            found.append(Piece(part, name, milliseconds))
    return found


def on_host(switches: Sequence[Switch]) -> list[Piece]:
    """Return the time of the host between each mark and the next, for trying a table out without a GPU."""
    return [Piece(now.part, "host", 1000 * (then.seconds - now.seconds)) for now, then in pairwise(switches)]


def counted(switches: Sequence[Switch]) -> dict[str, Count]:
    """Add up what each part has had to do."""
    found: dict[str, Count] = {}
    for item in switches:
        if item.count is not None:
            found[item.of] = found[item.of] + item.count if item.of in found else item.count
    return found
