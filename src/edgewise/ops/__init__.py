"""The hot operations. An `Ops` record holds the implementations that one engine runs; it is chosen once, at load time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from edgewise.ops import reference
from edgewise.ops.reference import EdgeGeometry, EdgeSegment, SO2Weights

__all__ = ["REFERENCE", "EdgeGeometry", "EdgeSegment", "Ops", "SO2Weights"]


@dataclass(frozen=True)
class Ops:
    """One implementation of each operation; `edgewise.ops.reference` defines what each has to compute."""

    edge_geometry: Callable[..., EdgeGeometry]
    gather_rotate: Callable[..., list[Tensor]]
    so2_linear: Callable[..., list[Tensor]]
    gate: Callable[..., list[Tensor]]
    grid_activation: Callable[..., list[Tensor]]
    rotate_scatter: Callable[..., Tensor]


REFERENCE = Ops(
    edge_geometry=reference.edge_geometry,
    gather_rotate=reference.gather_rotate,
    so2_linear=reference.so2_linear,
    gate=reference.gate,
    grid_activation=reference.grid_activation,
    rotate_scatter=reference.rotate_scatter,
)
"""Plain PyTorch for every operation."""
