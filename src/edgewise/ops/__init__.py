"""The hot operations. An `Ops` record holds the implementations that one engine runs; it is chosen once, at load time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from edgewise.ops import edge_message, reference
from edgewise.ops.reference import EdgeGeometry, EdgeSegment, MessageShape, MessageWeights, SO2Weights
from edgewise.ops.workspace import Workspace

__all__ = [
    "REFERENCE",
    "WRITTEN_OUT",
    "EdgeGeometry",
    "EdgeSegment",
    "MessageShape",
    "MessageWeights",
    "Ops",
    "SO2Weights",
    "Workspace",
]


@dataclass(frozen=True)
class Ops:
    """One implementation of each operation; `edgewise.ops.reference` defines what each has to compute."""

    edge_geometry: Callable[..., EdgeGeometry]
    gather_rotate: Callable[..., list[Tensor]]
    so2_linear: Callable[..., list[Tensor]]
    gate: Callable[..., list[Tensor]]
    grid_activation: Callable[..., list[Tensor]]
    rotate_scatter: Callable[..., Tensor]
    radial_factors: Callable[..., Tensor]
    edge_message: Callable[..., Tensor]


REFERENCE = Ops(
    edge_geometry=reference.edge_geometry,
    gather_rotate=reference.gather_rotate,
    so2_linear=reference.so2_linear,
    gate=reference.gate,
    grid_activation=reference.grid_activation,
    rotate_scatter=reference.rotate_scatter,
    radial_factors=reference.radial_factors,
    edge_message=reference.edge_message,
)
"""Plain PyTorch for every operation."""

WRITTEN_OUT = replace(REFERENCE, edge_message=edge_message.edge_message)
"""Plain PyTorch, with the backward pass of the messages written out: faster on CPUs."""
