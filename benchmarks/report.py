"""Writes docs/benchmarks.md and its picture from the committed results; nothing on that page is typed in by hand.

python benchmarks/report.py            write the page and the picture
python benchmarks/report.py --check    say whether they are what the results give
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import report_beside
import report_stages
from records import Row
from report_beside import Bar
from report_tables import (
    CPU,
    GPU,
    PUBLISHED,
    change,
    kernel_name,
    latest,
    mean,
    mev_per_atom,
    n_atoms,
    need,
    percent,
    source,
    table,
)
from sizes import CHANNELS, CUTOFF, REFERENCE_EDGES

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
PICTURE = PAGE.with_suffix(".svg")
README = HERE.parent / "README.md"
BEGIN, END = "<!-- measured: begin (by benchmarks/report.py) -->", "<!-- measured: end -->"

BITWISE = "rotation_and_radial_gradients_bitwise"

OPERATIONS = 15
"""Rows of the operations' table for each graph."""

TITLES = {
    "blocks_kept": "m-blocks kept as they are",
    "gate_kernel": "one gate kernel",
    "programs_follow_edges": "programs follow the edges",
    "gradients_to_atoms": "gradients straight to atoms",
    "sum_in_kernel": "summed in the kernel",
    "packed_rotations": "packed rotations",
}


def step_rows() -> list[Row]:
    """Return the four rows of whole steps."""
    path = GPU / "six_steps.jsonl"
    rows = latest(path, 4)
    need(path, "variants", [row["variant"] for row in rows], ["base", "head", "head", "base"])
    return rows


def steps() -> str:
    """Return the section on whole steps."""
    rows = step_rows()
    base, head = ([row for row in rows if row["variant"] == name] for name in ("base", "head"))
    text = "## The six optimizations of `umas_fast_gpu` together\n\n"
    text += (
        "Base has the kernels that the six build on and none of the six. Each process has compile caches of its own, 24 "
        "predictions to warm up and eight blocks of 100 over five frames of the same crystal; order base, head, head, base. "
        f"{rows[0]['case']}.\n\n"
    )
    measured = (
        ("GPU busy, ms", "busy_ms"),
        ("between events, median, ms", "gpu_median_ms"),
        ("between events, best, ms", "gpu_min_ms"),
        ("wall, median, ms", "wall_median_ms"),
        ("wall, best, ms", "wall_min_ms"),
        ("predictions a second (of the median)", "queries_per_second"),
        ("peak memory, MiB", "peak_MiB"),
        ("steady peak memory, MiB", "steady_peak_MiB"),
        ("reserved after warm-up, MiB", "reserved_MiB"),
        ("kernel launches", "launches"),
        ("first call with compilation, s", "first_s"),
        ("recompiled in timed blocks", "recompiled"),
    )
    text += table(
        ("", "base", "head", "head", "base", "head against base"),
        [
            (
                title,
                *(row[name] for row in rows),
                percent(change(mean(head, name), mean(base, name))) if mean(base, name) else "",
            )
            for title, name in measured
        ],
    )
    text += "\nThe kernels that take most of the GPU's time, ms a step:\n\n"
    text += table(
        ("base", "ms", "calls", "head", "ms", "calls"),
        [
            (kernel_name(a[0]), a[1], a[2], kernel_name(b[0]), b[1], b[2])
            for a, b in zip(base[0]["kernels"], head[0]["kernels"], strict=True)
        ],
    )
    busy_base, busy_head = mean(base, "busy_ms"), mean(head, "busy_ms")
    rate_base, rate_head = mean(base, "queries_per_second"), mean(head, "queries_per_second")
    together = PUBLISHED["together"]
    slow, fast = together["queries_per_second"]
    text += (
        f"\nOn average the GPU is busy for {busy_base:.2f} ms a step in base and for {busy_head:.2f} ms in head "
        f"({percent(change(busy_head, busy_base))}; as steps in a second of busy time "
        f"{percent(change(busy_base, busy_head))}). {PUBLISHED['released_in']} has the original of the six, so it is head that "
        f"stands beside its {report_beside.peer_busy():.2f} ms above; what base spends beyond head is the table of one "
        f"switched off at a time. The same beside what the original work reports ({PUBLISHED['source']}):\n\n"
    )
    text += table(
        ("", "here", "published"),
        [
            (
                "predictions a second",
                f"{rate_base:.2f} → {rate_head:.2f}, {percent(change(rate_head, rate_base))}",
                f"{slow} → {fast}, {percent(together['queries_percent'], 2)}",
            ),
            *(
                (title, percent(change(mean(head, name), mean(base, name))), percent(together[published], 2))
                for title, name, published in (
                    ("peak memory", "peak_MiB", "peak_memory_percent"),
                    ("steady peak memory", "steady_peak_MiB", "steady_memory_percent"),
                )
            ),
        ],
    )
    text += "\nLargest and relative L2 differences over the five frames:\n\n"
    quantities = [f"{name}_{kind}" for name in ("energy", "forces", "stress") for kind in ("max", "relative")]
    head_row = ("", *(item.replace("_max", ", largest").replace("_relative", ", relative") for item in quantities))
    lines: list[Sequence[object]] = []
    for number, row in enumerate(rows):
        label = f"{row['variant']} {number + 1}"
        for column, against in (("error_against_float64", "float64"), ("difference_from_first_base", "base 1")):
            if column in row:
                values = {**row[column], "energy_max": mev_per_atom(row, row[column]["energy_max"])}
                lines.append((f"{label} against {against}", *(values[item] for item in quantities)))
    text += table(head_row, lines)
    return text + f"\nLargest differences: energies in meV/atom, forces in eV/Å, stresses in eV/Å³. {source(rows[0])}\n"


def each() -> str:
    """Return the section on one optimization at a time."""
    text = "### One switched off at a time\n\n"
    path = GPU / "six_each.jsonl"
    rows = latest(path)
    head = rows[0]
    need(path, "the first row and the others", [head["variant"], len(rows) > 1], ["head", True])
    need(path, "rows of one variant", len(rows) - len({row["variant"] for row in rows}), 0)
    lines = [
        (
            TITLES[row["variant"].removeprefix("without ")],
            head["busy_ms"],
            row["busy_ms"],
            percent(change(head["busy_ms"], row["busy_ms"])),
            f"{head['wall_min_ms']} / {row['wall_min_ms']}",
            f"{head['steady_peak_MiB'] - row['steady_peak_MiB']:+.0f}",
            row["error_against_float64"]["forces_relative"],
        )
        for row in rows[1:]
    ]
    text += table(
        (
            "optimization",
            "busy with it, ms",
            "without, ms",
            "change",
            "best wall with / without, ms",
            "steady peak, MiB",
            "forces error without it",
        ),
        lines,
    )
    missing = [title for name, title in TITLES.items() if f"without {name}" not in {row["variant"] for row in rows}]
    if missing:
        text += f"\nNot measured: {', '.join(missing)}.\n"
    return text + f"\nThe column with it is head, measured in the same stage. {source(head)}\n"


def ops() -> str:
    """Return the section on operations."""
    path = GPU / "six_ops.jsonl"
    rows = latest(path, 2 * OPERATIONS)
    names = {
        graph: [(row["op"], row["row"]) for row in rows if row["graph"] == graph] for graph in ("copper", "random")
    }
    need(path, "operations on the random graph", names["random"], names["copper"])
    need(path, "different operations", len(set(names["copper"])), OPERATIONS)
    published = {(item["op"], item["row"]): as_published(item) for item in PUBLISHED["operations"]}
    text = "## Operations, fused against what they replace\n\n"
    text += (
        f"{rows[0].get('edges', REFERENCE_EDGES):,} edges, {rows[0].get('channels', CHANNELS)} channels, float32; medians with "
        "caches flushed. Copper is a rattled crystal of 1000 atoms whose cutoff is tuned to this number of edges, random a "
        f"graph of as many edges between atoms at random. Published: {PUBLISHED['source']}.\n\n"
    )
    lines: list[Sequence[object]] = []
    for row in rows:
        memory = f"{row['MiB_replaced']} → {row['MiB']}"
        if "MiB_a_tensor" in row:
            memory = f"{row['MiB_a_tensor_replaced']} → {row['MiB_a_tensor']} a tensor"
        lines.append(
            (
                row["op"],
                row["row"],
                row["graph"],
                f"{row['ms_replaced']} → {row['ms']}",
                memory,
                "bitwise" if row["bitwise"] else f"{row['relative_difference']:.2e}",
                published.get((row["op"], row["row"]), "") if row["graph"] == "copper" else "",
            )
        )
    text += table(("operation", "what", "graph", "ms", "MiB", "difference", "published"), lines)
    follow = [row for row in rows if row["graph"] == "copper" and row["row"].endswith("programs follow edges")]
    fixed, following = sum(row["ms_replaced"] for row in follow), sum(row["ms"] for row in follow)
    before, after = PUBLISHED["programs_follow_edges"]["ms"]
    bitwise = [row[BITWISE] for row in rows if BITWISE in row]
    text += (
        f"\nOn the copper graph all kernels together take {fixed:.3f} ms with a fixed number of programs and {following:.3f} ms "
        f"with one for each edge, {percent(change(following, fixed))} (published: {before} → {after} ms, "
        f"{percent(change(after, before))}). Gradients of rotations and radial factors "
        f"{'are' if bitwise and all(bitwise) else 'are not everywhere'} bitwise those of the path that keeps everything.\n"
    )
    return text + f"\n{source(rows[0])}\n"


def as_published(item: dict[str, Any]) -> str:
    """Return what the original work reports for an operation, in words."""
    parts: list[str] = []
    if "ms" in item:
        parts.append("{} → {} ms".format(*item["ms"]))
    if "MiB" in item:
        parts.append(f"{item['MiB']} MiB")
    if "MiB_a_tensor" in item:
        parts.append(f"{item['MiB_a_tensor']} MiB a tensor")
    if "difference" in item:
        parts.append(f"{item['difference']:.2e}")
    return ", ".join(parts)


def cpu() -> str:
    """Return the section on CPUs."""
    rows = latest(CPU / "cpu_step.jsonl", 2)
    text = f"## On a CPU\n\n{rows[0]['case']}, {rows[0]['machine']}, {rows[0]['threads']} threads, both in one run.\n\n"
    lines = []
    for row in rows:
        error = row["error_against_float64"]
        lines.append(
            (
                row["version"],
                row["best_s"],
                row["median_s"],
                error["energy_meV_per_atom"],
                error["forces_relative"],
                error["stress_relative"],
            )
        )
    head = (
        "",
        "best, s",
        "median, s",
        "energy error, meV/atom",
        "forces error, relative L2",
        "stress error, relative L2",
    )
    text += table(head, lines)
    return text + f"\nCommit {rows[0]['commit']}: `{rows[0]['command']}`\n"


def readme() -> str:
    """Return the section of README.md between its two marks."""
    text = report_beside.readme()
    rows = latest(CPU / "cpu_step.jsonl", 2)
    text += f"\nOn a CPU ({rows[0]['machine']}): {rows[0]['case']}, UMA-S size, mode `general`.\n\n"
    text += table(
        ("engine", "best, s", "median, s", "energy, meV/atom", "forces (relative L2)", "stress (relative L2)"),
        [(row["version"], row["best_s"], row["median_s"], *row["error_against_float64"].values()) for row in rows],
    )
    return text + "\nMore, with commands and commits: [docs/benchmarks.md](docs/benchmarks.md).\n"


def readme_with_section() -> str:
    """Return README.md with the section filled in."""
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{readme()}{END}{rest.partition(END)[2]}"


def page() -> str:
    """Return the whole page."""
    six = step_rows()
    six_errors = [mev_per_atom(row, row["error_against_float64"]["energy_max"]) for row in six]
    peer_errors = report_beside.energy_errors()
    head = (
        "# Benchmarks\n\n"
        "Every figure is read from `benchmarks/results` by `benchmarks/report.py`, and stands beside its error. How to "
        "measure again: `python benchmarks/run.py six` and `python benchmarks/run.py fused` on a machine with a GPU.\n\n"
        "Sections are not to be compared with one another: they have different seeds of random weights and different frames. "
        "The size of an energy error follows from the weights as much as from the precision: beside fairchem-core it is "
        f"{between(peer_errors)} meV/atom, for the six optimizations {between(six_errors)} meV/atom "
        f"({between([error * n_atoms(six[0]) / 1000 for error in six_errors])} eV for {n_atoms(six[0])} atoms). Whole steps see "
        f"all edges within {CUTOFF:g} Å, {report_beside.edges()} in the section beside fairchem-core; operations are timed on "
        f"{REFERENCE_EDGES:,}, by a cutoff tuned to this number.\n\n"
        f"![GPU busy time and best wall time of a step]({PICTURE.name})\n"
    )
    return f"{head}\n{report_beside.section()}\n{report_stages.section()}{steps()}\n{each()}\n{ops()}\n{cpu()}"


def between(values: Sequence[float]) -> str:
    """Return the range of values, in words."""
    low, high = (f"{value:.3g}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def draw() -> None:
    """Draw busy and best wall time of a step by engine."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams["svg.hashsalt"] = "edgewise"
    bars = report_beside.bars()
    rows = step_rows()
    for name, label in (("base", "Edgewise, none of the six"), ("head", "Edgewise, all six")):
        chosen = [row for row in rows if row["variant"] == name]
        bars.append(Bar(label, mean(chosen, "busy_ms"), min(row["wall_min_ms"] for row in chosen)))
    figure, axes = plt.subplots(figsize=(8, 1 + 0.4 * len(bars)), layout="constrained")
    for number, (label, busy, wall) in enumerate(bars):
        axes.barh(number, wall, color="#c5cae9", label="best wall time" if number == 0 else None)
        axes.barh(number, busy, color="#3949ab", label="GPU busy" if number == 0 else None)
        axes.text(wall + 0.3, number, f"{busy:.1f} / {wall:.1f} ms", va="center")
        axes.text(0.3, number, label, va="center", color="white")
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.4 * max(bar.wall_ms for bar in bars))
    axes.set_xlabel(f"ms a step, {rows[0]['gpu']}; Edgewise with and without the six: {rows[0]['case']}")
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail where the page is not up to date")
    arguments = parser.parse_args()
    texts = {PAGE: page(), README: readme_with_section()}
    if arguments.check:
        for path, text in texts.items():
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                sys.exit(f"{path.name} is not what the results give; run python benchmarks/report.py")
        return
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    draw()


if __name__ == "__main__":
    main()
