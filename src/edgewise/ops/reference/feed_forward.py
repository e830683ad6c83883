"""Feed-forward networks of the nodes, "spectral" and "grid", and their adjoints (MODEL.md section 8.2).

An adjoint computes again what it needs of the forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class SpectralWeights:
    """Two linear maps for each degree, with a gate between them.

    Attributes:
        gate: [lmax * hidden, channels].
        gate_bias: [lmax * hidden].
        first: [n_coefficients, hidden, channels]; the coefficients of a degree have the same.
        first_bias: [hidden], for the scalars.
        second: [n_coefficients, channels, hidden].
        second_bias: [channels], for the scalars.
        degrees: [n_coefficients - 1], which gate each coefficient above the scalars takes.
    """

    gate: Tensor
    gate_bias: Tensor
    first: Tensor
    first_bias: Tensor
    second: Tensor
    second_bias: Tensor
    degrees: Tensor


@dataclass(frozen=True, eq=False)
class GridWeights:
    """A network of three layers at every point of a grid on the sphere.

    Attributes:
        to_grid: [n_points, n_coefficients].
        from_grid: [n_points, n_coefficients].
        layers: [hidden, channels], [hidden, hidden] and [channels, hidden].
    """

    to_grid: Tensor
    from_grid: Tensor
    layers: tuple[Tensor, ...]


FeedForwardWeights = SpectralWeights | GridWeights


def silu_slope(x: Tensor) -> Tensor:
    """Return the derivative of SiLU."""
    s = torch.sigmoid(x)
    return s * (1 + x * (1 - s))


def so3_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Map the channels of each coefficient.

    Args:
        x: [n_atoms, n_coefficients, n_in].
        weight: [n_coefficients, n_out, n_in].
        bias: [n_out], for the scalars.

    Returns:
        [n_atoms, n_coefficients, n_out].
    """
    y = torch.bmm(x.transpose(0, 1), weight.mT).transpose(0, 1)
    return y if bias is None else torch.cat([y[:, :1] + bias, y[:, 1:]], dim=1)


def scalar_network(x: Tensor, layers: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Tensor:
    """Apply linear layers with SiLU between them to [..., n_in]."""
    for number, (weight, bias) in enumerate(zip(layers, biases, strict=True)):
        x = functional.linear(functional.silu(x) if number else x, weight, bias)
    return x


def scalar_network_adjoint(
    x: Tensor, layers: Sequence[Tensor], biases: Sequence[Tensor | None], gradient: Tensor
) -> Tensor:
    """Return the gradient of the input of `scalar_network` for the gradient of its output."""
    inputs: list[Tensor] = []
    for weight, bias in zip(layers, biases, strict=True):
        inputs.append(x)
        x = functional.linear(functional.silu(x) if len(inputs) > 1 else x, weight, bias)
    for number in reversed(range(len(layers))):
        gradient = gradient @ layers[number]
        if number:
            gradient = gradient * silu_slope(inputs[number])
    return gradient


def feed_forward(x: Tensor, weights: FeedForwardWeights) -> Tensor:
    """Apply a feed-forward network.

    Args:
        x: [n_atoms, n_coefficients, channels].
        weights: Its weights, which tell the kind.

    Returns:
        The same shape.
    """
    if isinstance(weights, GridWeights):
        values = scalar_network(weights.to_grid @ x, weights.layers, (None,) * len(weights.layers))
        return weights.from_grid.T @ values
    hidden = so3_linear(x, weights.first, weights.first_bias)
    gates = _gates(functional.linear(x[:, 0], weights.gate, weights.gate_bias), weights)
    gated = torch.cat([functional.silu(hidden[:, :1]), hidden[:, 1:] * gates], dim=1)
    return so3_linear(gated, weights.second, weights.second_bias)


def feed_forward_adjoint(x: Tensor, weights: FeedForwardWeights, gradient: Tensor) -> Tensor:
    """Return the gradient of the input, [n_atoms, n_coefficients, channels], for the gradient of the output."""
    if isinstance(weights, GridWeights):
        to_values = weights.from_grid @ gradient
        found = scalar_network_adjoint(weights.to_grid @ x, weights.layers, (None,) * len(weights.layers), to_values)
        return weights.to_grid.T @ found
    hidden = so3_linear(x, weights.first, weights.first_bias)
    before_gate = functional.linear(x[:, 0], weights.gate, weights.gate_bias)
    gates = _gates(before_gate, weights)
    to_gated = so3_linear(gradient, weights.second.mT)
    to_hidden = torch.cat([to_gated[:, :1] * silu_slope(hidden[:, :1]), to_gated[:, 1:] * gates], dim=1)
    to_gates = to_gated[:, 1:] * hidden[:, 1:] * gates * (1 - gates)
    n_degrees = before_gate.shape[1] // hidden.shape[2]
    of_degrees = to_gates.split([2 * degree + 1 for degree in range(1, n_degrees + 1)], dim=1)
    per_degree = torch.cat([part.sum(1) for part in of_degrees], dim=1)
    to_scalars = (per_degree * silu_slope(before_gate)) @ weights.gate
    found = so3_linear(to_hidden, weights.first.mT)
    return torch.cat([found[:, :1] + to_scalars[:, None], found[:, 1:]], dim=1)


def _gates(before_gate: Tensor, weights: SpectralWeights) -> Tensor:
    """Return the gate of each coefficient above the scalars: a sigmoid of a SiLU."""
    gates = torch.sigmoid(functional.silu(before_gate)).unflatten(1, (-1, weights.first.shape[1]))
    return gates[:, weights.degrees]
