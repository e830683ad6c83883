"""Layers that act on nodes or on scalars: norms, feed-forward networks and the radial network.

Parameters carry the names of the checkpoint format (MODEL.md section 13.1), so that a state dict fits as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgewise.model.config import ModelConfig
from edgewise.model.edge_inputs import EdgeInputs
from edgewise.model.experts import ExpertLinear, mixed_layers, run_layers
from edgewise.so3 import block_sizes, degree_index, grid_matrices

NORM_EPSILON = 1e-5


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
            nn.LayerNorm(width, eps=NORM_EPSILON),
            nn.SiLU(),
            ExpertLinear(width, width, n_experts, bias=True),
            nn.LayerNorm(width, eps=NORM_EPSILON),
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
        return _bias_of(self.net[6])

    def forward(self, edges: EdgeInputs) -> Tensor:
        """Evaluate a network without experts.

        Args:
            edges: The edges, with the embeddings of their atoms.

        Returns:
            [n_edges, n_out].
        """
        weights = self.mixed(None)
        hidden = self._hidden(edges, weights)
        return functional.linear(hidden, weights[-1], self.last_bias)

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
        basis, source, target = torch.split(weights[0], self._splits, dim=1)
        at_source = functional.linear(edges.source, source).index_select(0, edges.edge_index[0])
        at_target = functional.linear(edges.target, target, _bias_of(self.net[0])).index_select(0, edges.edge_index[1])
        first = at_source + at_target + functional.linear(edges.geometry.gaussians, basis)
        return run_layers(list(self.net)[1:6], first, weights[1:2])


def _weighted_square(x: Tensor, weights: Tensor) -> Tensor:
    """Return the mean over channels of the weighted sum of squares of coefficients, [n_atoms].

    Plain sums: as a contraction it would be a batch of products with a single column, which is slow on GPUs.
    """
    return (x.square() * weights.to(x.dtype)[:, None]).sum((1, 2)) / x.shape[-1]


class RMSNormSH(nn.Module):
    """Norm "rms_norm_sh": one scale for all degrees, each degree weighted equally (MODEL.md section 8.1)."""

    degrees: Tensor
    balance: Tensor

    def __init__(self, config: ModelConfig) -> None:
        """Make a norm for the widths of `config`."""
        super().__init__()
        lmax, channels = config.lmax, config.channels
        self.affine_weight = nn.Parameter(torch.ones(lmax + 1, channels))
        self.affine_bias = nn.Parameter(torch.zeros(channels))
        degrees = degree_index(lmax)
        balance = 1 / ((2 * degrees.to(torch.float64) + 1) * (lmax + 1))
        self.register_buffer("degrees", degrees, persistent=False)
        self.register_buffer("balance", balance, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [n_atoms, n_coefficients, channels]."""
        scalars = x[:, :1] - x[:, :1].mean(-1, keepdim=True)
        x = torch.cat([scalars, x[:, 1:]], dim=1)
        variance = _weighted_square(x, self.balance)
        y = x * (variance + NORM_EPSILON).rsqrt()[:, None, None] * self.affine_weight[self.degrees]
        return _add_to_scalars(y, self.affine_bias)


class LayerNormPerDegree(nn.Module):
    """Norm "layer_norm": every degree on its own scale (MODEL.md section 8.1)."""

    def __init__(self, config: ModelConfig) -> None:
        """Make a norm for the widths of `config`."""
        super().__init__()
        self.lmax = config.lmax
        self.affine_weight = nn.Parameter(torch.ones(config.lmax + 1, config.channels))
        self.affine_bias = nn.Parameter(torch.zeros(config.channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [n_atoms, n_coefficients, channels]."""
        parts: list[Tensor] = []
        for degree in range(self.lmax + 1):
            part = x[:, degree**2 : (degree + 1) ** 2]
            if degree == 0:
                part = part - part.mean(-1, keepdim=True)
            variance = part.square().mean((1, 2), keepdim=True)
            parts.append(part * (variance + NORM_EPSILON).rsqrt() * self.affine_weight[degree])
        return _add_to_scalars(torch.cat(parts, dim=1), self.affine_bias)


class LayerNormSH(nn.Module):
    """Norm "layer_norm_sh": ordinary layer norm for l = 0, one shared scale for l >= 1 (MODEL.md section 8.1)."""

    degrees: Tensor
    balance: Tensor

    def __init__(self, config: ModelConfig) -> None:
        """Make a norm for the widths of `config`."""
        super().__init__()
        lmax, channels = config.lmax, config.channels
        self.norm_l0 = nn.LayerNorm(channels, eps=NORM_EPSILON)
        self.affine_weight = nn.Parameter(torch.ones(lmax, channels))
        degrees = degree_index(lmax)[1:]
        balance = 1 / ((2 * degrees.to(torch.float64) + 1) * lmax)
        self.register_buffer("degrees", degrees, persistent=False)
        self.register_buffer("balance", balance, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [n_atoms, n_coefficients, channels]."""
        scalars, rest = self.norm_l0(x[:, :1]), x[:, 1:]
        variance = _weighted_square(rest, self.balance)
        scale = (variance + NORM_EPSILON).rsqrt()[:, None, None]
        return torch.cat([scalars, rest * scale * self.affine_weight[self.degrees - 1]], dim=1)


NORMS: dict[str, type[nn.Module]] = {
    "rms_norm_sh": RMSNormSH,
    "layer_norm": LayerNormPerDegree,
    "layer_norm_sh": LayerNormSH,
}


class SO3Linear(nn.Module):
    """A linear map of channels for each degree, with a bias on l = 0 only (MODEL.md section 8.2)."""

    degrees: Tensor

    def __init__(self, n_in: int, n_out: int, lmax: int) -> None:
        """Make a map from `n_in` to `n_out` channels."""
        super().__init__()
        self.weight = nn.Parameter(torch.randn(lmax + 1, n_out, n_in) / n_in**0.5)
        self.bias = nn.Parameter(torch.zeros(n_out))
        self.register_buffer("degrees", degree_index(lmax), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [n_atoms, n_coefficients, n_in] to [n_atoms, n_coefficients, n_out]."""
        y = torch.bmm(x.transpose(0, 1), self.weight[self.degrees].mT).transpose(0, 1)
        return _add_to_scalars(y, self.bias)


class SpectralFeedForward(nn.Module):
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
        """Return the weights of the linear layers for mixture coefficients [n_experts]."""
        return mixed_layers(self.scalar_mlp, coefficients)

    def forward(self, x: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """Transform [n_atoms, n_coefficients, channels] with the weights of one mixture."""
        hidden = self.so3_linear_1(x)
        scalars = run_layers(self.scalar_mlp, x[:, 0], weights)
        gates = torch.sigmoid(scalars).unflatten(1, (-1, hidden.shape[-1]))
        gated = hidden[:, 1:] * gates[:, self.degrees]
        return self.so3_linear_2(torch.cat([functional.silu(hidden[:, :1]), gated], dim=1))


class GridFeedForward(nn.Module):
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
        """Return the weights of the linear layers for mixture coefficients [n_experts]."""
        return mixed_layers(self.grid_mlp, coefficients)

    def forward(self, x: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """Transform [n_atoms, n_coefficients, channels] with the weights of one mixture."""
        values = run_layers(self.grid_mlp, self.to_grid.to(x.dtype) @ x, weights)
        return self.from_grid.to(x.dtype).T @ values


def radial_width(config: ModelConfig) -> int:
    """Return the number of radial factors of one block: 2 C for each (l, m >= 0) kept on edges."""
    return 2 * config.channels * sum(block_sizes(config.lmax, config.mmax))


def _add_to_scalars(x: Tensor, bias: Tensor) -> Tensor:
    return torch.cat([x[:, :1] + bias, x[:, 1:]], dim=1)


def _bias_of(layer: nn.Module) -> Tensor:
    assert isinstance(layer, ExpertLinear)
    assert layer.bias is not None
    return layer.bias
