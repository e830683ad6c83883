"""What a command leaves behind: a JSON summary with units and versions, and pictures."""

from __future__ import annotations

import enum
import importlib.metadata
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


class Status(enum.IntEnum):
    """How a command ended; the numbers are exit codes."""

    DONE = 0
    INPUT_ERROR = 1
    USAGE_ERROR = 2
    NOT_CONVERGED = 3
    RUN_FAILED = 4
    INTERRUPTED = 130


@dataclass
class Summary:
    """Collects what the JSON summary of one command says.

    Attributes:
        command: Name of the command.
        model: Name of the model.
        settings: Everything that was asked for.
        units: Unit of each result.
        results: Results by name.
        started: When the command began.
    """

    command: str
    model: str
    settings: Mapping[str, Any]
    units: Mapping[str, str]
    results: dict[str, Any] = field(default_factory=dict)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    def write(self, path: Path, status: Status) -> None:
        """Write the summary whole or not at all.

        Args:
            path: Target file.
            status: How the command ended.
        """
        finished = datetime.now(UTC)
        values = {
            "command": self.command,
            "status": status.name.lower(),
            "model": self.model,
            "settings": dict(self.settings),
            "units": dict(self.units),
            "results": self.results,
            "started": self.started.isoformat(timespec="seconds"),
            "finished": finished.isoformat(timespec="seconds"),
            "wall_seconds": round((finished - self.started).total_seconds(), 3),
            "versions": {name: importlib.metadata.version(name) for name in ("edgewise", "torch", "ase", "numpy")},
        }
        write_text_whole(path, json.dumps(values, indent=2, default=plain, ensure_ascii=False) + "\n")


def plain(value: Any) -> Any:
    """Turn numpy values and paths into what JSON can hold; NaN becomes null."""
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value]
    if isinstance(value, np.floating):
        return float(value) if np.isfinite(value) else None
    if isinstance(value, np.generic):
        return value.item()
    return str(value)


def write_text_whole(path: Path, text: str) -> None:
    """Write a text file aside, in the same folder, and rename it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    aside = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.chmod(0o644)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def draw_curves(path: Path, x: Sequence[float], x_label: str, curves: Mapping[str, Sequence[float]]) -> None:
    """Draw curves over one axis, each in a panel of its own.

    Args:
        path: PNG file.
        x: [n].
        x_label: Label with unit.
        curves: Label with unit, and [n] values, for each panel.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.6 * len(curves)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = np.atleast_1d(figure.subplots(len(curves), 1, sharex=True))
    for panel, (label, values) in zip(panels, curves.items(), strict=True):
        panel.plot(x, values, linewidth=1.2)
        panel.set_ylabel(label)
        panel.grid(alpha=0.3)
    panels[-1].set_xlabel(x_label)
    figure.savefig(path, dpi=120)


def draw_fit(
    path: Path,
    points: tuple[ArrayLike, ArrayLike],
    fit: tuple[ArrayLike, ArrayLike],
    title: str,
) -> None:
    """Draw energies over volumes with the fitted curve.

    Args:
        path: PNG file.
        points: Volumes in Å^3 and energies in eV.
        fit: The same for the curve.
        title: Heading.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    panel.plot(*fit, linewidth=1.2, label="fit")
    panel.plot(*points, "o", markersize=4, label="computed")
    panel.set_xlabel("volume (Å$^3$)")
    panel.set_ylabel("energy (eV)")
    panel.set_title(title, fontsize=10)
    panel.legend()
    figure.savefig(path, dpi=120)
