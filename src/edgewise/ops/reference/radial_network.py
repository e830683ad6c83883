"""Radial networks: all layers but the last, as values alone or together with their slopes (MODEL.md section 5).

Every value depends on one number, the distance d of an edge. Carrying d/dd along with the values costs one more product a
layer and makes a backward pass through the network unnecessary: with r = W h and r' = W h', dE/dd is <dE/dr, r'>.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from edgewise.ops.reference.feed_forward import silu_slope

EPSILON = 1e-5
"""Of the layer norms."""


@dataclass(frozen=True)
class HiddenWeights:
    """Weights between the first linear layer and the last: layer norm, SiLU, linear, layer norm, SiLU.

    Attributes:
        first_scale: [width], of the first layer norm.
        first_shift: [width].
        linear: [width, width].
        bias: [width].
        second_scale: [width], of the second layer norm.
        second_shift: [width].
    """

    first_scale: Tensor
    first_shift: Tensor
    linear: Tensor
    bias: Tensor
    second_scale: Tensor
    second_shift: Tensor


def hidden(first: Tensor, weights: HiddenWeights) -> Tensor:
    """Return the input of the last layer for the output of the first, both [n_edges, width]."""
    width = (first.shape[-1],)
    x = functional.silu(functional.layer_norm(first, width, weights.first_scale, weights.first_shift, EPSILON))
    x = functional.linear(x, weights.linear, weights.bias)
    return functional.silu(functional.layer_norm(x, width, weights.second_scale, weights.second_shift, EPSILON))


def hidden_with_slope(first: Tensor, first_slope: Tensor, weights: HiddenWeights) -> tuple[Tensor, Tensor]:
    """Return the input of the last layer and its derivative with respect to the distance.

    Args:
        first: [n_edges, width], output of the first layer.
        first_slope: [n_edges, width], its derivative with respect to the distance, 1/Å.
        weights: The layers between.
    """
    x, slope = _layer_norm_and_silu(first, first_slope, weights.first_scale, weights.first_shift)
    x, slope = functional.linear(x, weights.linear, weights.bias), functional.linear(slope, weights.linear)
    return _layer_norm_and_silu(x, slope, weights.second_scale, weights.second_shift)


def _layer_norm_and_silu(x: Tensor, slope: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    centred, slope = x - x.mean(-1, keepdim=True), slope - slope.mean(-1, keepdim=True)
    inverse = (centred.square().mean(-1, keepdim=True) + EPSILON).rsqrt()
    normed = centred * inverse
    slope = (slope - normed * (normed * slope).mean(-1, keepdim=True)) * inverse * scale
    y = normed * scale + shift
    return functional.silu(y), slope * silu_slope(y)
