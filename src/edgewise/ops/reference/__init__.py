"""Every operation in plain PyTorch: any shape, any device. The definitions, and the oracles of all kernels.

`edges` has the operations on edges, which autograd differentiates; `edge_steps` the same with their adjoints written out,
for mode fused; the other files are operations on nodes, with their adjoints.
"""

from edgewise.ops.reference.edges import (
    EdgeGeometry,
    EdgeSegment,
    MessageShape,
    MessageWeights,
    SO2Weights,
    edge_geometry,
    edge_message,
    gate,
    gather_rotate,
    grid_activation,
    radial_factors,
    rotate_scatter,
    so2_linear,
)

__all__ = [
    "EdgeGeometry",
    "EdgeSegment",
    "MessageShape",
    "MessageWeights",
    "SO2Weights",
    "edge_geometry",
    "edge_message",
    "gate",
    "gather_rotate",
    "grid_activation",
    "radial_factors",
    "rotate_scatter",
    "so2_linear",
]
