"""Output heads: node energies, direct forces and direct stresses, normalised (MODEL.md sections 9 and 12)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgewise.errors import UnknownTaskError
from edgewise.model.config import HeadConfig, ModelConfig
from edgewise.model.experts import ExpertLinear
from edgewise.model.layers import SO3Linear
from edgewise.systems import SystemBatch


def _scalar_network(n_in: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(n_in, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1)
    )


class EnergyHead(nn.Module):
    """Node energies from the scalars: a small network, or one linear map for Linear_Energy_Head."""

    def __init__(self, config: ModelConfig, kind: str) -> None:
        """Make the head."""
        super().__init__()
        if kind == "Linear_Energy_Head":
            self.energy_block: nn.Module = nn.Linear(config.channels, 1)
        else:
            self.energy_block = _scalar_network(config.channels, config.hidden_channels)

    def forward(self, x: Tensor, batch: SystemBatch) -> Tensor:
        """Return node energies [n_atoms]; `batch` is not read."""
        del batch
        return self.energy_block(x[:, 0])[:, 0]


class SharedHead(nn.Module):
    """One head for all datasets, under the parameter name that its wrapper has in the format."""

    def __init__(self, config: ModelConfig, kind: str) -> None:
        """Make the head."""
        super().__init__()
        self.head = EnergyHead(config, kind)

    def forward(self, x: Tensor, batch: SystemBatch) -> Tensor:
        """Return node energies [n_atoms]."""
        return self.head(x, batch)


class _ExpertNetwork(nn.Module):
    """The scalar network with one set of weights per dataset and shared biases."""

    def __init__(self, config: ModelConfig, n_datasets: int) -> None:
        super().__init__()
        channels, hidden = config.channels, config.hidden_channels
        self.energy_block = nn.ModuleList(
            [
                ExpertLinear(channels, hidden, n_datasets, bias=True),
                nn.SiLU(),
                ExpertLinear(hidden, hidden, n_datasets, bias=True),
                nn.SiLU(),
                ExpertLinear(hidden, 1, n_datasets, bias=True),
            ]
        )

    def forward(self, scalars: Tensor, dataset: int) -> Tensor:
        for layer in self.energy_block:
            if isinstance(layer, ExpertLinear):
                scalars = functional.linear(scalars, layer.weights[dataset], layer.bias)
            else:
                scalars = layer(scalars)
        return scalars[:, 0]


class PerDatasetHead(nn.Module):
    """One set of weights per dataset; several names may share one set (MODEL.md section 9)."""

    def __init__(self, config: ModelConfig, head: HeadConfig) -> None:
        """Make the head: as many sets as the mapping has keys, numbered by the sorted values."""
        super().__init__()
        self.head = _ExpertNetwork(config, len(head.datasets))
        numbers = {name: number for number, name in enumerate(sorted(set(head.datasets.values())))}
        self.number_of = {name: numbers[value] for name, value in head.datasets.items()}

    def forward(self, x: Tensor, batch: SystemBatch) -> Tensor:
        """Return node energies [n_atoms]."""
        numbers = [self.number_of[task] for task in batch.tasks]
        if len(set(numbers)) == 1:
            return self.head(x[:, 0], numbers[0])
        number_of_atom = torch.tensor(numbers, device=x.device)[batch.system_idx]
        energies = x.new_zeros(x.shape[0])
        for number in sorted(set(numbers)):
            atoms = torch.nonzero(number_of_atom == number)[:, 0]
            energies = energies.index_copy(0, atoms, self.head(x[atoms, 0], number))
        return energies


class ForceHead(nn.Module):
    """Direct forces: the l = 1 part of a linear map of the features (MODEL.md section 12)."""

    def __init__(self, config: ModelConfig) -> None:
        """Make the head."""
        super().__init__()
        self.linear = SO3Linear(config.channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return forces [n_atoms, 3]."""
        return self.linear(x[:, :4])[:, 1:4, 0]


class StressHead(nn.Module):
    """Direct stress: trace from the scalars, the rest from l = 2 (MODEL.md section 12)."""

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
        summed = per_atom.new_zeros(batch.n_systems, 6).index_add(0, batch.system_idx, per_atom)
        if self.reduce == "mean":
            summed = summed / batch.n_atoms[:, None]
        identity = torch.eye(3, dtype=x.dtype, device=x.device) / math.sqrt(3)
        return summed[:, 0, None, None] * identity + torch.einsum("nk,kab->nab", summed[:, 1:], self.tensors.to(x.dtype))


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
    """Make one head with the parameter names of the format."""
    if head.wrapper == "per_dataset":
        return PerDatasetHead(config, head)
    if head.wrapper == "shared":
        return SharedHead(config, head.kind)
    if head.kind == "Linear_Force_Head":
        return ForceHead(config)
    if head.kind == "MLP_Stress_Head":
        return StressHead(config, head.reduce)
    return EnergyHead(config, head.kind)


def check_tasks_known(tasks: Sequence[str], known: Sequence[str]) -> None:
    """Raise `UnknownTaskError` with the valid names for a task that is not known."""
    for task in tasks:
        if task not in known:
            message = f"task {task!r} is not one of this checkpoint's tasks: {', '.join(known)}"
            raise UnknownTaskError(message)
