"""Steps captured in CUDA graphs: the work of a step is recorded once, and done again with what stands in its inputs.

A captured step serves every call with the same numbers of atoms, the same weights and the same capacity. Capturing takes as
long as a few steps, so the latest few are kept. Their work shares one pool of memory: they never run side by side.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from edgewise.engine.fused.kernel_edges import KernelEdges
from edgewise.engine.fused.step import Step, StepInputs
from edgewise.model.network import NetworkOutput

MOST_KEPT = 16
"""Captured steps that are kept; what they hold on to is their inputs and outputs, the rest is shared."""

WARM_UPS = 1
"""Steps before the capture: kernels are compiled and libraries make their handles then."""


@dataclass(frozen=True)
class _Captured:
    """A captured step: the graph, what it reads and what it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: StepInputs
    output: NetworkOutput
    gradient: Tensor | None

    def replay(self, inputs: StepInputs) -> tuple[NetworkOutput, Tensor | None]:
        """Do the step for other inputs of the same sizes."""
        if inputs is not self.inputs:
            _copy(self.inputs, inputs)
        self.graph.replay()
        return self.output, self.gradient


@dataclass
class CapturedSteps:
    """The captured steps of one network.

    Attributes:
        step: What is captured.
        n_captured: How many times a step was captured, for tests and `describe()`.
    """

    step: Step
    n_captured: int = 0
    _kept: OrderedDict[Hashable, _Captured] = field(default_factory=OrderedDict)
    _pool: Any = None  # a handle, of a type that torch does not name

    def __call__(self, key: Hashable, inputs: StepInputs) -> tuple[NetworkOutput, Tensor | None]:
        """Do a step; what it returns stays valid until the next one.

        Args:
            key: Everything that a captured step takes for given: numbers of atoms, capacity, weights.
            inputs: What the step reads.
        """
        found = self._kept.get(key)
        if found is None:
            # Out with the oldest before memory is taken for another.
            while len(self._kept) >= MOST_KEPT:
                self._kept.popitem(last=False)
            found = self._kept[key] = self._capture(inputs)
        self._kept.move_to_end(key)
        return found.replay(inputs)

    def forget(self) -> None:
        """Give back the memory of all captured steps."""
        self._kept.clear()
        self._pool = None

    def _capture(self, inputs: StepInputs) -> _Captured:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self.step.evaluate(inputs)
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output, gradient = self.step.evaluate(inputs)
        self.n_captured += 1
        return _Captured(graph, inputs, output, gradient)


def _copy(to: StepInputs, given: StepInputs) -> None:
    """Put other inputs where a captured step reads its own."""
    for name in ("atomic_numbers", "charge", "spin"):
        getattr(to.batch, name).copy_(getattr(given.batch, name))
    to.at_atoms.copy_(given.at_atoms)
    assert isinstance(to.edges, KernelEdges)
    assert isinstance(given.edges, KernelEdges)
    to.edges.copy_(given.edges)
