"""What runs, and why, as text for people and as plain data for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Description:
    """The state of a potential.

    Attributes:
        model: Name of the model.
        architecture: Sizes and options in one line.
        tasks: Task names.
        task: The task that calls without one use; None if they have to name it.
        mode: Execution mode.
        mode_reason: Why this mode.
        precision: Precision that runs.
        device: Device that it runs on.
        operations: For each operation, which implementation runs and why.
        merging: How expert weights are handled, with the counts so far.
        neighbors: Cutoff, cap, and whether the cap was binding in the last call.
        notes: Everything else that a user should know.
    """

    model: str
    architecture: str
    tasks: tuple[str, ...]
    task: str | None
    mode: str
    mode_reason: str
    precision: str
    device: str
    operations: Mapping[str, str]
    merging: str
    neighbors: str
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
        values = asdict(self)
        values["tasks"], values["notes"] = list(self.tasks), list(self.notes)
        return values

    def __str__(self) -> str:
        """Return one line per fact."""
        lines = [
            f"model       {self.model}",
            f"            {self.architecture}",
            f"tasks       {', '.join(self.tasks)}" + (f" (default {self.task})" if self.task else ""),
            f"mode        {self.mode}: {self.mode_reason}",
            f"precision   {self.precision}",
            f"device      {self.device}",
            f"experts     {self.merging}",
            f"neighbours  {self.neighbors}",
        ]
        lines += [f"operation   {name}: {text}" for name, text in self.operations.items()]
        lines += [f"note        {note}" for note in self.notes]
        return "\n".join(lines)
