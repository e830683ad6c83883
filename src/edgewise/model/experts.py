"""Weights of the SO(2) maps, mixed from experts per system, and the routing that decides the mixture.

The mixture depends on composition, charge, spin and dataset only (MODEL.md sections 6 and 14), never on positions, so
it can be computed once and kept. Where a map has no experts its plain weights are used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from edgewise.model.config import ModelConfig
from edgewise.ops import SO2Weights
from edgewise.so3 import block_sizes

ROUTING_FLOOR = 0.005
"""Added to every softmax coefficient (MODEL.md section 6)."""


class ExpertLinear(nn.Module):
    """Weights of a linear map: `weights` [n_experts, n_out, n_in], or `weight` [n_out, n_in] without experts."""

    def __init__(self, n_in: int, n_out: int, n_experts: int, *, bias: bool) -> None:
        """Make the weights of a map from `n_in` to `n_out`; all experts share one bias."""
        super().__init__()
        scale = 1 / math.sqrt(n_in)
        if n_experts:
            self.weights = nn.Parameter(torch.randn(n_experts, n_out, n_in) * scale)
        else:
            self.weight = nn.Parameter(torch.randn(n_out, n_in) * scale)
        self.has_experts = n_experts > 0
        self.bias = nn.Parameter(torch.zeros(n_out)) if bias else None

    def mixed(self, coefficients: Tensor | None) -> Tensor:
        """Return the weights [n_out, n_in] for mixture coefficients [n_experts]; None where there are no experts."""
        if not self.has_experts:
            return self.weight
        if coefficients is None:
            message = "coefficients are needed where a map has experts"
            raise ValueError(message)
        # One matrix-vector product reads every expert once, without a product of their size in memory.
        return (coefficients @ self.weights.flatten(1)).reshape(self.weights.shape[1:])


def mixed_layers(network: nn.Sequential, coefficients: Tensor | None) -> tuple[Tensor, ...]:
    """Return the weights of every linear layer of a network, in order, for mixture coefficients [n_experts]."""
    return tuple(layer.mixed(coefficients) for layer in network if isinstance(layer, ExpertLinear))


class ComplexLinear(nn.Module):
    """Holder of the weights of order m >= 1, rows [W1 ; W2] of the complex map W1 + i W2 (MODEL.md section 8)."""

    def __init__(self, n_in: int, n_out: int, n_experts: int) -> None:
        """Make the weights of a complex map from `n_in` to `n_out`."""
        super().__init__()
        self.fc = ExpertLinear(n_in, 2 * n_out, n_experts, bias=False)

    def mixed(self, coefficients: Tensor | None) -> Tensor:
        """Return the real block matrix [[W1, -W2], [W2, W1]], [2 n_out, 2 n_in]."""
        w1, w2 = self.fc.mixed(coefficients).chunk(2, dim=0)
        return torch.cat([torch.cat([w1, -w2], dim=1), torch.cat([w2, w1], dim=1)], dim=0)


class SO2Convolution(nn.Module):
    """Holder of the weights of one SO(2) convolution; the product itself is the op `so2_linear`."""

    def __init__(self, config: ModelConfig, n_in: int, n_out: int, n_experts: int, *, extra_scalars: int = 0) -> None:
        """Make the weights for `n_in` to `n_out` channels; block m = 0 begins with `extra_scalars` more outputs."""
        super().__init__()
        sizes = block_sizes(config.lmax, config.mmax)
        self.fc_m0 = ExpertLinear(sizes[0] * n_in, extra_scalars + sizes[0] * n_out, n_experts, bias=True)
        self.so2_m_conv = nn.ModuleList([ComplexLinear(size * n_in, size * n_out, n_experts) for size in sizes[1:]])

    def mixed(self, coefficients: Tensor | None) -> SO2Weights:
        """Return the weights for mixture coefficients [n_experts]."""
        blocks = [self.fc_m0.mixed(coefficients)]
        for convolution in self.so2_m_conv:
            assert isinstance(convolution, ComplexLinear)
            blocks.append(convolution.mixed(coefficients))
        bias = self.fc_m0.bias
        assert bias is not None
        return SO2Weights(blocks=tuple(blocks), bias=bias)


class DatasetEmbedding(nn.Module):
    """One vector per dataset; a mapping may send several names to one vector."""

    def __init__(self, config: ModelConfig) -> None:
        """Make the table; only the values of the mapping are ever read, but a file holds one entry per key."""
        super().__init__()
        self.mapping = dict(config.dataset_mapping)
        self.dataset_emb_dict = nn.ModuleDict({name: nn.Embedding(1, config.channels) for name in self.mapping})

    def forward(self, tasks: Sequence[str]) -> Tensor:
        """Return [n_systems, channels]."""
        first = torch.zeros(1, dtype=torch.int64, device=next(self.parameters()).device)
        rows = [self.dataset_emb_dict[self.mapping[task]](first) for task in tasks]
        return torch.cat(rows)


class TableEmbedding(nn.Module):
    """Embedding "rand_emb" of charge or spin: a table of vectors."""

    def __init__(self, channels: int, *, lowest: int, highest: int) -> None:
        """Make a table for the numbers lowest..highest."""
        super().__init__()
        self.lowest = lowest
        self.rand_emb = nn.Embedding(highest - lowest + 1, channels)

    def forward(self, numbers: Tensor) -> Tensor:
        """Embed [n_systems] integers as [n_systems, channels]."""
        return self.rand_emb(numbers - self.lowest)


class FourierEmbedding(nn.Module):
    """Embedding "pos_emb" of charge or spin: sines and cosines of fixed frequencies."""

    def __init__(self, channels: int, *, zero_is_missing: bool) -> None:
        """Make the frequencies; `zero_is_missing` gives zeros for the number 0."""
        super().__init__()
        self.zero_is_missing = zero_is_missing
        self.W = nn.Parameter(torch.randn(channels // 2), requires_grad=False)

    def forward(self, numbers: Tensor) -> Tensor:
        """Embed [n_systems] integers as [n_systems, channels]."""
        phase = numbers.to(self.W.dtype)[:, None] * self.W * (2 * math.pi)
        embedded = torch.cat([torch.sin(phase), torch.cos(phase)], dim=-1)
        return torch.where((numbers == 0)[:, None], 0.0, embedded) if self.zero_is_missing else embedded


class LinearEmbedding(nn.Module):
    """Embedding "lin_emb" of charge or spin: a linear map of the number."""

    MISSING_SPIN = -100

    def __init__(self, channels: int, *, zero_is_missing: bool) -> None:
        """Make the map; `zero_is_missing` reads the number 0 as -100."""
        super().__init__()
        self.zero_is_missing = zero_is_missing
        self.lin_emb = nn.Linear(1, channels)

    def forward(self, numbers: Tensor) -> Tensor:
        """Embed [n_systems] integers as [n_systems, channels]."""
        if self.zero_is_missing:
            numbers = torch.where(numbers == 0, self.MISSING_SPIN, numbers)
        return self.lin_emb(numbers.to(self.lin_emb.weight.dtype)[:, None])


def charge_spin_embedding(config: ModelConfig, quantity: str) -> nn.Module:
    """Make the embedding of "charge" or "spin" (MODEL.md section 6)."""
    is_spin = quantity == "spin"
    if config.charge_spin_embedding == "rand_emb":
        return TableEmbedding(config.channels, lowest=0 if is_spin else -100, highest=100)
    if config.charge_spin_embedding == "pos_emb":
        return FourierEmbedding(config.channels, zero_is_missing=is_spin)
    return LinearEmbedding(config.channels, zero_is_missing=is_spin)


def routing_network(config: ModelConfig) -> nn.Sequential:
    """Make the network that maps a system to logits of its experts; the last SiLU is part of the format."""
    n_in = config.channels * (2 if config.use_composition_embedding else 1)
    n = config.n_experts
    return nn.Sequential(
        nn.Linear(n_in, 2 * n), nn.SiLU(), nn.Linear(2 * n, 2 * n), nn.SiLU(), nn.Linear(2 * n, n), nn.SiLU()
    )


def routing_coefficients(logits: Tensor, norm: str) -> Tensor:
    """Turn logits [n_systems, n_experts] into mixture coefficients of the same shape.

    The norm "pnorm" adds 2 / B with B the number of systems in a batch as the field's engine does it. Here every
    system is a batch of its own, B = 1, so that no result depends on what else is in the call.
    """
    if norm == "softmax":
        return torch.softmax(logits, dim=-1) + ROUTING_FLOOR
    shifted = logits.abs() + 2
    return shifted / shifted.sum(-1, keepdim=True)
