"""What every section of the report needs: results of one commit each, checked in number, and tables of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import records
from records import Row

RESULTS = Path(__file__).parent / "results"
GPU = RESULTS / "nvidia-h200"
CPU = RESULTS / "cpu-xeon-2-cores"
PUBLISHED = json.loads((RESULTS / "published.json").read_text(encoding="utf-8"))
"""What the original work reports for the same changes, and where."""


class UnfitResultsError(ValueError):
    """A file of results does not have the rows that a table is made of."""


def latest(path: Path, count: int | None = None) -> list[Row]:
    """Return the rows of the commit that a file was last measured at.

    Args:
        path: The file.
        count: Number of rows that a table needs; None takes any but none.

    Raises:
        UnfitResultsError: Another number.
    """
    rows = records.read(path)
    rows = records.of_latest_commit(rows) if rows else []
    if not rows or (count is not None and len(rows) != count):
        at = f" of commit {rows[-1]['commit']}" if rows else ""
        message = f"{path.name} has {len(rows)} rows{at}; the table needs {count or 'some'}"
        raise UnfitResultsError(message)
    return rows


def need(path: Path, what: str, found: object, wanted: object) -> None:
    """Raise unless a file holds what is wanted.

    Raises:
        UnfitResultsError: It does not.
    """
    if found != wanted:
        message = f"{path.name}: {what} are {found}, wanted are {wanted}"
        raise UnfitResultsError(message)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [" | ".join(head), "|".join("---" for _ in head), *(" | ".join(map(str, row)) for row in rows)]
    return "\n".join(f"| {line} |" if "---" not in line else f"|{line}|" for line in lines) + "\n"


def change(new: float, old: float) -> float:
    """Return the change from old to new in percent."""
    return 100 * (new / old - 1)


def percent(value: float, digits: int = 1) -> str:
    """Return a change in percent, with its sign."""
    return f"{value:+.{digits}f} %"


def mean(rows: Iterable[Row], name: str) -> float:
    """Return the mean of a column."""
    return statistics.mean(row[name] for row in rows)


def source(row: Row) -> str:
    """Return where a row was measured."""
    versions = f"torch {row['torch']}" + (f", Triton {row['triton']}" if "triton" in row else "")
    kernels = f", kernels {row['kernels']}" if isinstance(row.get("kernels"), str) else ""
    return f"{row['gpu']}, {versions}, commit {row['commit']}{kernels}: `{row['command']}`"


def kernel_name(name: str) -> str:
    """Return a kernel's name short enough for a table."""
    short = name.replace("void ", "").replace("at::native::", "").replace("(anonymous namespace)::", "")
    return f"`{short.split('<')[0][:60]}`"


def n_atoms(row: Row) -> int:
    """Return the number of atoms of a row's frame: older rows say it in the name of the case alone."""
    return row.get("atoms") or int(row["case"].split()[0])


def mev_per_atom(row: Row, energy: float) -> float:
    """Return an energy difference of a row's frame, given in eV, in meV/atom."""
    return float(f"{1000 * energy / n_atoms(row):.3g}")


def listed(names: Sequence[str]) -> str:
    """Return names as words of a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
