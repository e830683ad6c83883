"""Output heads: node energies, direct forces and direct stresses, normalised (MODEL.md sections 9 and 12)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from edgewise.errors import UnsupportedModelError
from edgewise.model.config import HeadConfig, ModelConfig
from edgewise.model.experts import ExpertLinear
from edgewise.model.layers import SO3Linear
from edgewise.ops.reference.feed_forward import scalar_network
from edgewise.systems import SystemBatch


def _scalar_network(n_in: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(n_in, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1))


class EnergyHead(nn.Module):
    """Node energies from the scalars: a small network, or one linear map for Linear_Energy_Head."""

    def __init__(self, config: ModelConfig, kind: str) -> None:
        """Make the head."""
        super().__init__()
        if kind == "Linear_Energy_Head":
            self.energy_block: nn.Module = nn.Linear(config.channels, 1)
        else:
            self.energy_block = _scalar_network(config.channels, config.hidden_channels)

    def layers(self) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return the weights and biases of the linear layers."""
        linear = [layer for layer in self.energy_block.modules() if isinstance(layer, nn.Linear)]
        return [layer.weight for layer in linear], [layer.bias for layer in linear]

    def forward(self, x: Tensor, batch: SystemBatch) -> Tensor:
        """Return node energies [n_atoms]; `batch` is not read."""
        del batch
        return scalar_network(x[:, 0], *self.layers())[:, 0]


class WrappedHead(nn.Module):
    """A head that all datasets share, under the parameter name that its wrapper has in the format."""

    def __init__(self, head: nn.Module) -> None:
        """Wrap a head."""
        super().__init__()
        self.head = head

    def forward(self, x: Tensor, batch: SystemBatch) -> Tensor:
        """Return what the head returns."""
        return self.head(x, batch)


class _ExpertEnergyHead(nn.Module):
    """Node energies with one set of weights per dataset and shared biases."""

    def __init__(self, config: ModelConfig, kind: str, n_datasets: int) -> None:
        super().__init__()
        channels, hidden = config.channels, config.hidden_channels
        if kind == "Linear_Energy_Head":
            self.energy_block: nn.Module = ExpertLinear(channels, 1, n_datasets, bias=True)
        else:
            self.energy_block = nn.Sequential(
                ExpertLinear(channels, hidden, n_datasets, bias=True),
                nn.SiLU(),
                ExpertLinear(hidden, hidden, n_datasets, bias=True),
                nn.SiLU(),
                ExpertLinear(hidden, 1, n_datasets, bias=True),
            )

    def layers(self, dataset: int) -> tuple[list[Tensor], list[Tensor | None]]:
        linear = [layer for layer in self.energy_block.modules() if isinstance(layer, ExpertLinear)]
        return [layer.weights[dataset] for layer in linear], [layer.bias for layer in linear]


class PerDatasetHead(nn.Module):
    """One set of weights per dataset; several names may share one set (MODEL.md section 9)."""

    def __init__(self, config: ModelConfig, head: HeadConfig) -> None:
        """Make the head: as many sets as the mapping has keys, numbered by the sorted values."""
        super().__init__()
        self.head = _ExpertEnergyHead(config, head.kind, len(head.datasets))
        numbers = {name: number for number, name in enumerate(sorted(set(head.datasets.values())))}
        self.number_of = {name: numbers[value] for name, value in head.datasets.items()}

    def forward(self, x: Tensor, batch: SystemBatch) -> Tensor:
        """Return node energies [n_atoms]."""
        return self._for_each_dataset(
            x[:, 0], batch, lambda scalars, number: scalar_network(scalars, *self.head.layers(number))[:, 0]
        )

    def _for_each_dataset(
        self, scalars: Tensor, batch: SystemBatch, function: Callable[[Tensor, int], Tensor]
    ) -> Tensor:
        numbers = [self.number_of[task] for task in batch.tasks]
        if len(set(numbers)) == 1:
            return function(scalars, numbers[0])
        number_of_atom = torch.tensor(numbers, device=scalars.device)[batch.system_idx]
        atoms = [torch.nonzero(number_of_atom == number)[:, 0] for number in sorted(set(numbers))]
        parts = [function(scalars[rows], number) for rows, number in zip(atoms, sorted(set(numbers)), strict=True)]
        found = parts[0].new_zeros(scalars.shape[0], *parts[0].shape[1:])
        return found.index_copy(0, torch.cat(atoms), torch.cat(parts))


class ForceHead(nn.Module):
    """Direct forces: the l = 1 part of a linear map of the features (MODEL.md section 12)."""

    def __init__(self, config: ModelConfig) -> None:
        """Make the head."""
        super().__init__()
        self.linear = SO3Linear(config.channels, 1, 1)

    def forward(self, x: Tensor, batch: SystemBatch) -> Tensor:
        """Return forces [n_atoms, 3]; `batch` is not read."""
        del batch
        return self.linear(x[:, :4])[:, 1:4, 0]


class StressHead(nn.Module):
    """Direct stress: trace from the scalars, the rest from l = 2 (MODEL.md section 12)."""

    tensors: Tensor

    def __init__(self, config: ModelConfig, reduce: str) -> None:
        """Make the head; `reduce` is "sum" or "mean" over atoms."""
        super().__init__()
        self.reduce = reduce
        self.scalar_block = _scalar_network(config.channels, config.hidden_channels)
        self.l2_linear = SO3Linear(config.channels, 1, 2)
        self.register_buffer("tensors", _traceless_tensors(), persistent=False)

    def forward(self, x: Tensor, batch: SystemBatch) -> Tensor:
        """Return stresses [n_systems, 3, 3]."""
        per_atom = torch.cat([self.scalar_block(x[:, 0]), self.l2_linear(x[:, :9])[:, 4:9, 0]], dim=1)
        # Atom after atom, unlike `index_add` on GPUs, which gives other bits each time.
        summed = torch.segment_reduce(per_atom.double(), "sum", lengths=batch.n_atoms, unsafe=True).to(per_atom)
        if self.reduce == "mean":
            summed = summed / batch.n_atoms[:, None]
        identity = torch.eye(3, dtype=x.dtype, device=x.device) / math.sqrt(3)
        return summed[:, 0, None, None] * identity + torch.einsum(
            "nk,kab->nab", summed[:, 1:], self.tensors.to(x.dtype)
        )


def _traceless_tensors() -> Tensor:
    """Return the orthonormal symmetric traceless tensors of l = 2, m = -2..2, [5, 3, 3] float64."""
    tensors = torch.zeros(5, 3, 3, dtype=torch.float64, device="cpu")
    x, y, z = 0, 1, 2
    for row, (a, b) in ((0, (x, z)), (1, (x, y)), (3, (y, z))):
        tensors[row, a, b] = tensors[row, b, a] = 1 / math.sqrt(2)
    tensors[2] = torch.diag(torch.tensor([-1.0, 2.0, -1.0], dtype=torch.float64, device="cpu")) / math.sqrt(6)
    tensors[4] = torch.diag(torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64, device="cpu")) / math.sqrt(2)
    return tensors


def make_head(config: ModelConfig, head: HeadConfig) -> nn.Module:
    """Make one head with the parameter names of the format.

    Raises:
        UnsupportedModelError: A direct stress head with weights per dataset.
    """
    if head.kind == "Linear_Force_Head":
        made: nn.Module = ForceHead(config)
    elif head.kind == "MLP_Stress_Head":
        if head.wrapper == "per_dataset":
            message = f"head {head.name!r} predicts stress with weights per dataset; supported is one head for all"
            raise UnsupportedModelError(message)
        made = StressHead(config, head.reduce)
    elif head.wrapper == "per_dataset":
        return PerDatasetHead(config, head)
    else:
        made = EnergyHead(config, head.kind)
    return made if head.wrapper is None else WrappedHead(made)
