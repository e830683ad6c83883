"""The report's part on where the time of a step goes; it is there as soon as there are results of it."""

from __future__ import annotations

from collections.abc import Sequence

import records
from records import Row
from report_tables import GPU, latest, need, source, table

PRECISIONS = ("fast", "tf32", "float32")

HEAD = ("part", "ms", "share of the time", "launches", "MB", "GFLOP", "TB/s", "TFLOP/s", "share of the ceiling")


def section() -> str:
    """Return the page's section; nothing where no table was measured."""
    texts = [_of_precision(precision) for precision in PRECISIONS]
    if not any(texts):
        return ""
    text = "## Where the time of a step goes\n\n"
    text += (
        "One recorded step of mode `fused` from positions to forces and stress, each part with what it has to do at least: "
        "bytes through the memory of the GPU, and multiplications and additions of matrix products and rotations, both "
        "counted from the tensors. The ceiling is the one that is nearer.\n"
    )
    return f"{text}{''.join(texts)}\n"


def _of_precision(precision: str) -> str:
    path = GPU / f"stage_table_{precision}.jsonl"
    if not records.read(path):
        return ""
    rows = latest(path)
    whole = rows[-1]
    need(path, "the last row and those of the whole", [whole["part"], _wholes(rows)], ["whole", 1])
    ceilings = whole["ceilings"]
    found = whole["error_against_float64"]
    text = f"\n### Precision `{precision}`\n\n"
    text += f"{whole['case']}, {whole['edges']:,} edges. Without marks between the parts the GPU is busy for "
    text += (
        f"{whole['busy_without_marks_ms']} ms. Errors against float64: energy {found['energy_meV_per_atom']} meV/atom, "
    )
    text += f"forces {found['forces_relative']}, stress {found['stress_relative']} (relative L2)."
    if ceilings:
        text += (
            f" Ceilings: {ceilings['bytes_per_second'] / 1e12:g} TB/s, {ceilings['flops_per_second'] / 1e12:g} TFLOP/s "
        )
        text += f"({ceilings['source']})."
    return f"{text}\n\n{as_table(rows)}\n{source(whole)}\n"


def _wholes(rows: Sequence[Row]) -> int:
    return sum(row["part"] == "whole" for row in rows)


def as_table(rows: Sequence[Row]) -> str:
    """Return rows of a step's parts, that of the whole last, as a Markdown table."""
    whole = rows[-1]["ms"]
    return table(HEAD, [_line(row, whole) for row in rows])


def _line(row: Row, whole: float) -> tuple[object, ...]:
    share = f"{100 * row['share']:.0f} % ({row['ceiling']})" if "share" in row else ""
    return (
        row["part"],
        f"{row['ms']:.3f}",
        f"{100 * row['ms'] / whole:.1f} %",
        f"{row['launches']:g}",
        f"{row['bytes'] / 1e6:.1f}" if "bytes" in row else "",
        f"{row['flops'] / 1e9:.2f}" if row.get("flops") else "",
        f"{row['TB_per_s']:.2f}" if "TB_per_s" in row else "",
        f"{row['TFLOP_per_s']:.1f}" if row.get("TFLOP_per_s") else "",
        share,
    )
