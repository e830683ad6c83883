"""The report's part on whole steps beside fairchem-core's: the page's section, the README's table and the picture's bars."""

from __future__ import annotations

from typing import NamedTuple

from records import Row
from report_tables import GPU, UnfitResultsError, latest, listed, source, table

RESULTS = GPU / "beside_fairchem.jsonl"
IN_README = 1000
"""Atoms of the case that README.md shows."""


class Bar(NamedTuple):
    """One engine in the picture."""

    label: str
    busy_ms: float
    wall_ms: float


def cases() -> dict[int, list[Row]]:
    """Return the rows of each case, by its number of atoms."""
    found: dict[int, list[Row]] = {}
    for row in sorted(latest(RESULTS), key=lambda row: row["atoms"]):
        found.setdefault(row["atoms"], []).append(row)
    for atoms, rows in found.items():
        names = [row["engine"] for row in rows]
        if len(set(names)) != len(names) or not timed(rows):
            message = f"{RESULTS.name}: the case of {atoms} atoms needs one row for each engine, and one time at least"
            raise UnfitResultsError(message)
    return found


def timed(rows: list[Row]) -> list[Row]:
    """Return the rows that have times."""
    return [row for row in rows if "unavailable" not in row]


def _of_readme() -> list[Row]:
    found = cases()
    return found.get(IN_README) or found[max(found)]


def energy_errors() -> list[float]:
    """Return the energy errors of the section, meV/atom."""
    every = [row for rows in cases().values() for row in timed(rows)]
    return [row["error_against_float64"]["energy_meV_per_atom"] for row in every]


def peer_busy() -> float:
    """Return how long the GPU is busy in a step of fairchem's umas_fast_gpu on the frame that README.md shows, ms."""
    (row,) = (row for row in timed(_of_readme()) if row["engine"] == "fairchem:umas_fast_gpu")
    return row["busy_ms"]


def edges() -> str:
    """Return the number of edges of the section's frames, in words."""
    return listed([f"{rows[0]['edges']:,} ({atoms:,} atoms)" for atoms, rows in cases().items()])


def section() -> str:
    """Return the page's section."""
    text = "## Beside fairchem-core on the same GPU\n\n"
    text += (
        "Each engine runs in a process of its own. All load, compile and warm up side by side, and are timed one after the "
        "other, every call by itself. fairchem's input is made before its clock starts, ours of ASE's atoms within it. "
        "Errors are against float64. `umas_fast_gpu` is compiled and in TF32 on both sides; `benchmarks/competitors.py` has "
        "the settings of every engine.\n"
    )
    for atoms, rows in cases().items():
        first = rows[0]
        text += f"\n### {atoms:,} atoms\n\n"
        text += f"{first['case']}, {first['edges']:,} edges, weights: {first['weights']}. "
        text += f"Exact values by {first['reference']}. {_protocol(timed(rows)[0])}\n\n"
        columns = (
            ("wall, best, ms", "wall_min_ms"),
            ("wall, median, ms", "wall_median_ms"),
            ("between events, median, ms", "gpu_median_ms"),
            ("GPU busy, ms", "busy_ms"),
            ("launches", "launches"),
            ("peak allocated, GiB", "whole_peak_allocated_GiB"),
            ("peak reserved, GiB", "whole_peak_reserved_GiB"),
            ("in timed calls, allocated, GiB", "peak_allocated_GiB"),
            ("loaded, s", "load_s"),
            ("first prediction, s", "first_s"),
        )
        errors = (
            ("energy error, meV/atom", "energy_meV_per_atom"),
            ("forces error, relative L2", "forces_relative"),
            ("stress error, relative L2", "stress_relative"),
        )
        text += table(
            ("engine", *(title for title, _ in (*columns, *errors))),
            [
                (
                    row["engine"],
                    *(row.get(name, "") for _, name in columns),
                    *(row["error_against_float64"][name] for _, name in errors),
                )
                for row in timed(rows)
            ],
        )
        for row in rows:
            if "unavailable" in row:
                text += f"\nNot timed: {row['engine']}: {row['unavailable'].splitlines()[-1]}\n"
        text += _runs(rows)
        text += f"\n{listed(sorted({row['version'] for row in timed(rows)}))}; {source(first | {'kernels': None})}\n"
    return text + "\nWhat captured CUDA graphs hold counts as reserved, not as allocated.\n"


def _protocol(row: Row) -> str:
    return (
        f"{row['warm_up']} predictions to warm up, then {row['blocks']} blocks of {row['block']}. The first prediction, with "
        f"compilation, is of {row['first_s_atoms']:,} atoms."
    )


def _runs(rows: list[Row]) -> str:
    """Say which engines were not measured in the run of the first."""
    others = [row["engine"] for row in rows if row["run"] != rows[0]["run"]]
    return f"\nIn another run than {rows[0]['engine']}: {listed(others)}.\n" if others else ""


def readme() -> str:
    """Return README.md's paragraph and table."""
    head = ("engine", "best, ms", "median, ms", "GPU busy, ms", "energy, meV/atom", "forces (relative L2)")
    head = (*head, "stress (relative L2)")
    rows = timed(_of_readme())
    text = f"One energy, forces and stress step on an {rows[0]['gpu']}: {rows[0]['case']}, {rows[0]['edges']:,} edges, "
    text += f"weights: {rows[0]['weights']}, one process for each engine; umas_fast_gpu compiled and in TF32 on both sides. Errors are against float64.\n\n"
    names = ("wall_min_ms", "wall_median_ms", "busy_ms")
    lines = [
        (row["engine"], *(row.get(name, "") for name in names), *row["error_against_float64"].values()) for row in rows
    ]
    return text + table(head, lines)


def bars() -> list[Bar]:
    """Return the engines of the case that README.md shows."""
    return [Bar(row["engine"], row["busy_ms"], row["wall_min_ms"]) for row in timed(_of_readme())]
