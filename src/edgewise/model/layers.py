"""Layers that act on nodes or on scalars: norms, feed-forward networks and the radial network.

Parameters carry the names of the checkpoint format (MODEL.md section 13.1), so that a state dict fits as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgewise.model.config import ModelConfig
from edgewise.model.edge_inputs import EdgeInputs
from edgewise.model.experts import ExpertLinear, mixed_layers
from edgewise.ops.reference.feed_forward import (
    FeedForwardWeights,
    GridWeights,
    SpectralWeights,
    feed_forward,
    so3_linear,
)
from edgewise.ops.reference.norm import EPSILON, NormWeights, groups, norm
from edgewise.ops.reference.radial_network import EPSILON as RADIAL_EPSILON
from edgewise.ops.reference.radial_network import HiddenWeights, hidden
from edgewise.so3 import block_sizes, degree_index, grid_matrices


class RadialMLP(nn.Module):
    """Radial network of one user: 3 linear layers with layer norm and SiLU between them (MODEL.md section 5).

    Its first layer reads [gaussians | source embedding | target embedding]; the two embeddings are multiplied per atom
    and only then gathered, so that the joined input of every edge never exists.
    """

    def __init__(self, config: ModelConfig, n_out: int, n_experts: int = 0) -> None:
        """Make a network with `n_out` outputs per edge."""
        super().__init__()
        width = config.edge_channels
        self.net = nn.Sequential(
            ExpertLinear(config.n_basis + 2 * width, width, n_experts, bias=True),
            nn.LayerNorm(width, eps=RADIAL_EPSILON),
            nn.SiLU(),
            ExpertLinear(width, width, n_experts, bias=True),
            nn.LayerNorm(width, eps=RADIAL_EPSILON),
            nn.SiLU(),
            ExpertLinear(width, n_out, n_experts, bias=True),
        )
        self._splits = [config.n_basis, width, width]
        self._has_experts = n_experts > 0

    def mixed(self, coefficients: Tensor | None) -> tuple[Tensor, ...]:
        """Return the weights of the linear layers for mixture coefficients [n_experts]."""
        return mixed_layers(self.net, coefficients)

    @property
    def last_bias(self) -> Tensor:
        """Bias of the last layer."""
        return bias_of(self.net[6])

    def split_first(self, weights: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the parts of the first layer that read the gaussians, the source and the target."""
        basis, source, target = torch.split(weights[0], self._splits, dim=1)
        return basis, source, target

    @property
    def first_bias(self) -> Tensor:
        """Bias of the first layer."""
        return bias_of(self.net[0])

    def hidden_weights(self, weights: Sequence[Tensor]) -> HiddenWeights:
        """Return the weights between the first layer and the last, for the linear layers of one mixture."""
        first, second = self.net[1], self.net[4]
        assert isinstance(first, nn.LayerNorm)
        assert isinstance(second, nn.LayerNorm)
        return HiddenWeights(
            first_scale=first.weight,
            first_shift=first.bias,
            linear=weights[1],
            bias=bias_of(self.net[3]),
            second_scale=second.weight,
            second_shift=second.bias,
        )

    def forward(self, edges: EdgeInputs) -> Tensor:
        """Evaluate a network without experts.

        Args:
            edges: The edges, with the embeddings of their atoms.

        Returns:
            [n_edges, n_out].
        """
        weights = self.mixed(None)
        return functional.linear(self._hidden(edges, weights), weights[-1], self.last_bias)

    def hidden(self, edges: EdgeInputs, weights: Sequence[Sequence[Tensor]]) -> Tensor:
        """Evaluate all layers but the last.

        Args:
            edges: The edges, with the embeddings of their atoms.
            weights: Weights of the linear layers, one set per distinct mixture; without experts all are the same.

        Returns:
            [n_edges, edge_channels].
        """
        if not self._has_experts or len(edges.segments) == 1:
            return self._hidden(edges, weights[edges.segments[0].weights])
        parts = [self._hidden(edges.between(item.start, item.stop), weights[item.weights]) for item in edges.segments]
        return torch.cat(parts)

    def _hidden(self, edges: EdgeInputs, weights: Sequence[Tensor]) -> Tensor:
        basis, source, target = self.split_first(weights)
        at_source = functional.linear(edges.source, source).index_select(0, edges.edge_index[0])
        at_target = functional.linear(edges.target, target, self.first_bias).index_select(0, edges.edge_index[1])
        first = at_source + at_target + functional.linear(edges.geometry.gaussians, basis)
        return hidden(first, self.hidden_weights(weights))


class EquivariantNorm(nn.Module):
    """A norm of node features: "rms_norm_sh", "layer_norm" or "layer_norm_sh" (MODEL.md section 8.1)."""

    degrees: Tensor
    balance: Tensor

    def __init__(self, config: ModelConfig) -> None:
        """Make a norm for the widths of `config`."""
        super().__init__()
        lmax, channels = config.lmax, config.channels
        if config.norm_type == "layer_norm_sh":
            self.norm_l0: nn.LayerNorm | None = nn.LayerNorm(channels, eps=EPSILON)
            self.affine_weight = nn.Parameter(torch.ones(lmax, channels))
        else:
            self.norm_l0 = None
            self.affine_weight = nn.Parameter(torch.ones(lmax + 1, channels))
            self.affine_bias = nn.Parameter(torch.zeros(channels))
        self._bounds, balance = groups(config.norm_type, lmax)
        self.register_buffer("balance", balance, persistent=False)
        self.register_buffer("degrees", degree_index(lmax), persistent=False)

    def weights(self) -> NormWeights:
        """Return what the operation reads."""
        weight = self.affine_weight
        if self.norm_l0 is not None:
            weight = torch.cat([self.norm_l0.weight[None], weight])
        bias = self.affine_bias if self.norm_l0 is None else self.norm_l0.bias
        return NormWeights(bounds=self._bounds, balance=self.balance, weight=weight[self.degrees], bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [n_atoms, n_coefficients, channels]."""
        return norm(x, self.weights())


class SO3Linear(nn.Module):
    """A linear map of channels for each degree, with a bias on l = 0 only (MODEL.md section 8.2)."""

    degrees: Tensor

    def __init__(self, n_in: int, n_out: int, lmax: int) -> None:
        """Make a map from `n_in` to `n_out` channels."""
        super().__init__()
        self.weight = nn.Parameter(torch.randn(lmax + 1, n_out, n_in) / n_in**0.5)
        self.bias = nn.Parameter(torch.zeros(n_out))
        self.register_buffer("degrees", degree_index(lmax), persistent=False)

    def expanded(self) -> Tensor:
        """Return the weights of each coefficient, [n_coefficients, n_out, n_in]."""
        return self.weight[self.degrees]

    def forward(self, x: Tensor) -> Tensor:
        """Map [n_atoms, n_coefficients, n_in] to [n_atoms, n_coefficients, n_out]."""
        return so3_linear(x, self.expanded(), self.bias)


class FeedForward(nn.Module, ABC):
    """Base of the feed-forward networks: which parameters they have; the operation is `ops.reference.feed_forward`."""

    @abstractmethod
    def mixed(self, coefficients: Tensor | None) -> tuple[Tensor, ...]:
        """Return the weights of the linear layers that can have experts, for mixture coefficients [n_experts]."""

    @abstractmethod
    def weights(self, mixed: Sequence[Tensor]) -> FeedForwardWeights:
        """Return what the operation reads, for the weights of one mixture."""

    def forward(self, x: Tensor, mixed: Sequence[Tensor]) -> Tensor:
        """Transform [n_atoms, n_coefficients, channels] with the weights of one mixture."""
        return feed_forward(x, self.weights(mixed))


class SpectralFeedForward(FeedForward):
    """Feed-forward "spectral": two SO3Linear maps with a gate between them (MODEL.md section 8.2)."""

    degrees: Tensor

    def __init__(self, config: ModelConfig, n_experts: int = 0) -> None:
        """Make a network for the widths of `config`; experts can be in the gate only."""
        super().__init__()
        lmax, hidden = config.lmax, config.hidden_channels
        self.scalar_mlp = nn.Sequential(ExpertLinear(config.channels, lmax * hidden, n_experts, bias=True), nn.SiLU())
        self.so3_linear_1 = SO3Linear(config.channels, hidden, lmax)
        self.so3_linear_2 = SO3Linear(hidden, config.channels, lmax)
        self.register_buffer("degrees", degree_index(lmax)[1:] - 1, persistent=False)

    def mixed(self, coefficients: Tensor | None) -> tuple[Tensor, ...]:
        """Return the weight of the gate for mixture coefficients [n_experts]."""
        return mixed_layers(self.scalar_mlp, coefficients)

    def weights(self, mixed: Sequence[Tensor]) -> FeedForwardWeights:
        """Return what the operation reads, for the weights of one mixture."""
        return SpectralWeights(
            gate=mixed[0],
            gate_bias=bias_of(self.scalar_mlp[0]),
            first=self.so3_linear_1.expanded(),
            first_bias=self.so3_linear_1.bias,
            second=self.so3_linear_2.expanded(),
            second_bias=self.so3_linear_2.bias,
            degrees=self.degrees,
        )


class GridFeedForward(FeedForward):
    """Feed-forward "grid": a pointwise network on a grid of the sphere (MODEL.md section 8.2)."""

    to_grid: Tensor
    from_grid: Tensor

    def __init__(self, config: ModelConfig, n_experts: int = 0) -> None:
        """Make a network for the widths of `config`."""
        super().__init__()
        channels, hidden = config.channels, config.hidden_channels
        self.grid_mlp = nn.Sequential(
            ExpertLinear(channels, hidden, n_experts, bias=False),
            nn.SiLU(),
            ExpertLinear(hidden, hidden, n_experts, bias=False),
            nn.SiLU(),
            ExpertLinear(hidden, channels, n_experts, bias=False),
        )
        to_grid, from_grid = grid_matrices(config.lmax, config.lmax, config.grid_resolution)
        self.register_buffer("to_grid", to_grid, persistent=False)
        self.register_buffer("from_grid", from_grid, persistent=False)

    def mixed(self, coefficients: Tensor | None) -> tuple[Tensor, ...]:
        """Return the weights of the three layers for mixture coefficients [n_experts]."""
        return mixed_layers(self.grid_mlp, coefficients)

    def weights(self, mixed: Sequence[Tensor]) -> FeedForwardWeights:
        """Return what the operation reads, for the weights of one mixture."""
        dtype = mixed[0].dtype
        return GridWeights(to_grid=self.to_grid.to(dtype), from_grid=self.from_grid.to(dtype), layers=tuple(mixed))


def radial_width(config: ModelConfig) -> int:
    """Return the number of radial factors of one block: 2 C for each (l, m >= 0) kept on edges."""
    return 2 * config.channels * sum(block_sizes(config.lmax, config.mmax))


def bias_of(layer: nn.Module) -> Tensor:
    """Return the bias of a linear layer that has one."""
    assert isinstance(layer, ExpertLinear)
    assert layer.bias is not None
    return layer.bias
