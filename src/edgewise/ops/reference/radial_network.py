"""Radial networks: all layers but the last, as values alone or together with their slopes (MODEL.md section 5).

Every value depends on one number, the distance d of an edge. Carrying d/dd along with the values costs one more product a
layer and makes a backward pass through the network unnecessary: with r = W h and r' = W h', dE/dd is <dE/dr, r'>.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
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


def two_parts(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an operand for products in a type.

    In float16 it is [high | low], whose sum is x to 22 bits: the network amplifies the rounding of its radial factors more
    than any other, and the product that makes them waits for memory, so twice the sum costs it little. The matrix stands
    twice beside itself (`twice`). In other types it is x.
    """
    if dtype != torch.float16:
        return x.to(dtype)
    high = x.to(dtype)
    return torch.cat([high, (x - high.to(x.dtype)).to(dtype)], dim=-1)


def twice(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Return [n_out, n_in] in a type, beside itself where operands are in two parts."""
    rounded = matrix.to(dtype)
    return torch.cat([rounded, rounded], dim=1) if dtype == torch.float16 else rounded


def _layer_norm_and_silu(x: Tensor, slope: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    centred, slope = x - x.mean(-1, keepdim=True), slope - slope.mean(-1, keepdim=True)
    inverse = (centred.square().mean(-1, keepdim=True) + EPSILON).rsqrt()
    normed = centred * inverse
    slope = (slope - normed * (normed * slope).mean(-1, keepdim=True)) * inverse * scale
    y = normed * scale + shift
    return functional.silu(y), slope * silu_slope(y)
