"""Expert weights of each system: mixed once, kept, and found again when the same kind of system comes back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import replace

import torch

from edgewise.model.backbone import ModelWeights
from edgewise.model.network import Network
from edgewise.systems import SystemBatch, reduced_composition

DEFAULT_LIMIT_BYTES = 2 * 1024**3
"""Memory that kept weights may take; the least recently used go first."""


class Mixtures:
    """The weights of systems.

    What a mixture depends on (MODEL.md sections 6 and 14): the composition in lowest terms (the exact counts for the
    composition rule of UMA-S-1.2), charge, spin and task. Changing any of them never reads a file.

    Attributes:
        n_mixed: How many times weights were mixed, for tests and `describe()`.
    """

    def __init__(self, network: Network, *, keep: bool, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        """Make a store.

        Args:
            network: The network whose experts are mixed.
            keep: Keep mixed weights for later calls.
            limit_bytes: Bound on the memory of kept weights; the latest one is kept whatever its size.
        """
        self._network = network
        self._keep = keep
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[Hashable, ModelWeights] = OrderedDict()
        self.n_mixed = 0

    @property
    def n_kept(self) -> int:
        """Number of mixtures in memory."""
        return len(self._kept)

    @property
    def n_bytes(self) -> int:
        """Memory of the mixtures that are kept."""
        return sum(map(_n_bytes, self._kept.values()))

    def for_batch(self, batch: SystemBatch) -> tuple[list[ModelWeights], list[int]]:
        """Return the distinct weights of a batch and, for each system, the number of those it uses.

        Args:
            batch: The structures, best on the CPU: only new kinds of systems need the device.
        """
        keys = self._keys(batch)
        distinct = list(dict.fromkeys(keys))
        found = {key: self._kept[key] for key in distinct if key in self._kept}
        if len(found) < len(distinct):
            for key in distinct:
                if key not in found:
                    found[key] = self._mixed(batch, keys.index(key))
                    self.n_mixed += 1
        if self._keep or not self._network.config.n_experts:
            self._store(found)
        return [found[key] for key in distinct], [distinct.index(key) for key in keys]

    def _mixed(self, batch: SystemBatch, number: int) -> ModelWeights:
        """Mix the weights of one system: of what its key says and of nothing else, so that the bits do not depend on it."""
        backbone = self._network.backbone
        if not self._network.config.n_experts:
            return backbone.mixed_weights(None)
        composition = self._compositions(batch)[number]
        numbers = torch.tensor([element for element, count in composition for _ in range(count)])
        alone = replace(
            batch,
            positions=batch.positions.new_zeros(len(numbers), 3),
            cell=batch.cell[number : number + 1],
            pbc=batch.pbc[number : number + 1],
            atomic_numbers=numbers,
            system_idx=torch.zeros_like(numbers),
            n_atoms=torch.tensor([len(numbers)]),
            charge=batch.charge[number : number + 1],
            spin=batch.spin[number : number + 1],
            tasks=batch.tasks[number : number + 1],
        )
        coefficients = backbone.mixture_coefficients(alone.to(next(self._network.parameters()).device))
        assert coefficients is not None
        return backbone.mixed_weights(coefficients[0])

    def _compositions(self, batch: SystemBatch) -> list[tuple[tuple[int, int], ...]]:
        """Return the composition of each system as far as its mixture depends on it."""
        compositions = batch.compositions()
        if self._network.config.composition_counts_extra_zero:
            return compositions
        return [reduced_composition(composition) for composition in compositions]

    def _keys(self, batch: SystemBatch) -> list[Hashable]:
        if not self._network.config.n_experts:
            return [()] * batch.n_systems
        compositions = self._compositions(batch)
        rest = zip(batch.charge.tolist(), batch.spin.tolist(), batch.tasks, strict=True)
        return [(composition, *item) for composition, item in zip(compositions, rest, strict=True)]

    def _store(self, weights: dict[Hashable, ModelWeights]) -> None:
        for key, value in weights.items():
            self._kept[key] = value
            self._kept.move_to_end(key)
        while len(self._kept) > 1 and self.n_bytes > self._limit_bytes:
            self._kept.popitem(last=False)


def _n_bytes(weights: ModelWeights) -> int:
    tensors: list[torch.Tensor] = []
    for layer in weights:
        tensors += [*layer.message.tensors(), *layer.radial[:-1], *layer.feed_forward]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
