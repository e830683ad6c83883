"""Files of results: one JSON row a line, written whole or not at all, so that an interrupted stage leaves no rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """Return the rows of a file, or none where there is no file."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def of_latest_commit(rows: list[Row]) -> list[Row]:
    """Return the rows of the commit that was measured last."""
    return [row for row in rows if row["commit"] == rows[-1]["commit"]]


def is_finished(path: Path, stage: str, commit: str) -> bool:
    """Tell whether a file has the rows of a stage at a commit; a changed tree is never taken for measured."""
    if commit.endswith("+") or commit == "unknown":
        return False
    return any(row["commit"] == commit and row.get("stage", stage) == stage for row in read(path))


def write_stage(path: Path, rows: Iterable[Row], replaces: Callable[[Row, list[Row]], bool]) -> None:
    """Run a stage to its end, then add its rows to a file in one move.

    Args:
        path: The file.
        rows: The rows, measured one after the other as they are asked for.
        replaces: Tells of a row that is there, given the new ones, whether they take its place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.unfinished")
    new: list[Row] = []
    with temporary.open("w", encoding="utf-8") as target:
        for row in rows:
            new.append(row)
            target.write(json.dumps(row, ensure_ascii=False) + "\n")
            target.flush()
    kept = [row for row in read(path) if not replaces(row, new)]
    temporary.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in [*kept, *new]), encoding="utf-8")
    temporary.replace(path)
