"""What a checkpoint holds once it is read: plain data, whatever file it came from.

This module is where readers and writers meet; it must not know files, formats or networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import torch


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """One model as it is stored: two configurations, the averaged weights and a card.

    Attributes:
        model_config: The network's configuration: dicts, lists, strings, numbers, booleans and None.
        tasks_config: One configuration per task, of the same kinds of values.
        weights: Averaged weights under the names of the format, without "module." and "n_averaged", on the CPU in the
            precision in which they were stored.
        name: Short name for messages.
        source: The file that was read; None for an embedded model.
        card: What is known about the model besides: {} for a file of fairchem.
    """

    model_config: dict[str, Any]
    tasks_config: list[dict[str, Any]]
    weights: dict[str, torch.Tensor]
    name: str
    source: Path | None
    card: dict[str, Any]
