"""Cards of models as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

SHOWN = (
    ("description", ""),
    ("teacher", "teacher"),
    ("elements", "elements"),
    ("task", "task"),
    ("cutoff", "cutoff (Å)"),
    ("data", "data"),
    ("held_out", "held out"),
    ("not_for", "not for"),
    ("trained", "trained"),
    ("licence", "licence"),
    ("credit", "credit"),
    ("script", "script"),
)
WIDTH = 100


def card_text(card: Mapping[str, Any]) -> str:
    """Return a card as lines of text."""
    lines = [str(card.get("name", "unnamed"))]
    for key, label in SHOWN:
        if card.get(key):
            text = f"{label}: {_phrase(card[key])}" if label else _phrase(card[key])
            lines += textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")
    for key in ("errors", "physical"):
        rows = card.get(key)
        if isinstance(rows, Mapping):
            lines.append(f"  {key}:")
            lines += [f"    {name}: {_phrase(values)}" for name, values in rows.items()]
    return "\n".join(lines) + "\n"


def _phrase(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_phrase(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(_phrase(item) for item in value)
    return str(value)
