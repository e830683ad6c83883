"""Writes docs/benchmarks.md and its picture from the committed results; nothing on that page is typed in by hand.

python benchmarks/report.py            write the page and the picture
python benchmarks/report.py --check    say whether they are what the results give
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
PICTURE = PAGE.with_suffix(".svg")
README = HERE.parent / "README.md"
BEGIN, END = "<!-- measured: begin (by benchmarks/report.py) -->", "<!-- measured: end -->"
GPU = HERE / "results" / "nvidia-h200"
CPU = HERE / "results" / "cpu-xeon-2-cores"

Row = dict[str, Any]

PUBLISHED = {
    ("gather_rotate", "backward straight to atoms"): "2.361 → 0.935 ms, -693.1 MiB, 2.97e-7",
    ("rotate_scatter", "forward, summed in the kernel"): "0.565 → 0.201 ms, 2.15e-7",
    ("edge_message", "blocks kept"): "-346.5 MiB",
    ("edge_geometry", "packed rotations made"): "-13.8 MiB a tensor",
}
"""What the original work reports for the same change on an H100."""

TITLES = {
    "blocks_kept": "m-blocks kept as they are",
    "gate_kernel": "one gate kernel",
    "programs_follow_edges": "programs follow the edges",
    "gradients_to_atoms": "gradients straight to atoms",
    "sum_in_kernel": "summed in the kernel",
    "packed_rotations": "packed rotations",
}


def read(path: Path) -> list[Row]:
    """Return the rows of a file of results, or none where it has not been made."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [" | ".join(head), "|".join("---" for _ in head), *(" | ".join(map(str, row)) for row in rows)]
    return "\n".join(f"| {line} |" if "---" not in line else f"|{line}|" for line in lines) + "\n"


def percent(new: float, old: float) -> str:
    """Return the change from old to new."""
    return f"{100 * (new / old - 1):+.1f} %"


def source(row: Row) -> str:
    """Return where a row was measured."""
    versions = f"torch {row['torch']}" + (f", Triton {row['triton']}" if "triton" in row else "")
    return f"{row['gpu']}, {versions}, commit {row['commit']}: `{row['command']}`"


def kernel_name(name: str) -> str:
    """Return a kernel's name short enough for a table."""
    short = name.replace("void ", "").replace("at::native::", "").replace("(anonymous namespace)::", "")
    return f"`{short.split('<')[0][:60]}`"


def mean(rows: Iterable[Row], name: str) -> float:
    """Return the mean of a column."""
    return statistics.mean(row[name] for row in rows)


def peer() -> str:
    """Return the section beside fairchem."""
    rows = read(GPU / "peer_step.jsonl")
    text = "## Beside fairchem-core on the same GPU, in one run\n\n"
    text += f"{rows[0]['case']}. Random weights; errors are against float64.\n\n"
    text += table(
        ("", *(row["engine"] for row in rows)),
        [
            (title, *(row[name] for row in rows))
            for title, name in (
                ("GPU busy, ms", "busy_ms"),
                ("wall, best, ms", "wall_ms_min"),
                ("wall, median, ms", "wall_ms_median"),
                ("kernel launches", "launches"),
                ("peak memory, GiB", "peak_alloc_GiB"),
                ("first predictions with compilation, s", "first_predictions_s"),
                ("energy error, meV/atom", "dE_meV_per_atom"),
                ("forces error, relative L2", "forces_relL2"),
                ("stress error, relative L2", "stress_relL2"),
            )
        ],
    )
    text += (
        "\nEdgewise keeps all experts on the GPU, 1.09 GiB of its peak, so that another composition needs no file.\n"
    )
    return text + f"\n{source(rows[0])}\n"


def steps() -> str:
    """Return the section on whole steps."""
    rows = read(GPU / "six_steps.jsonl")
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
                percent(mean(head, name), mean(base, name)) if mean(base, name) else "",
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
    speed = mean(base, "busy_ms") / mean(head, "busy_ms")
    text += (
        "\nWhat base spends beyond head is joining and splitting blocks (`CatArrayBatchedCopy`), sums after the kernels "
        "(`index_add`) and the gate in pieces (`cat`, `mul`, `silu`); the products are the same. "
        f"In the GPU's busy time head is {100 * (speed - 1):.1f} % faster than base; the original reports 31.2 % on an H100, "
        "where the host is not the limit, and -11.0 % and -11.2 % of memory. Largest and relative L2 differences over the "
        "five frames:\n\n"
    )
    quantities = [f"{name}_{kind}" for name in ("energy", "forces", "stress") for kind in ("max", "relative")]
    head_row = ("", *(item.replace("_max", ", largest").replace("_relative", ", relative") for item in quantities))
    lines: list[Sequence[object]] = []
    for number, row in enumerate(rows):
        label = f"{row['variant']} {number + 1}"
        lines.append((f"{label} against float64", *(row["error_against_float64"][item] for item in quantities)))
        if "difference_from_first_base" in row:
            lines.append((f"{label} against base 1", *(row["difference_from_first_base"][item] for item in quantities)))
    text += table(head_row, lines)
    return text + f"\nEnergies in eV, forces in eV/Å, stresses in eV/Å³. {source(rows[0])}\n"


def each() -> str:
    """Return the section on one optimization at a time."""
    text = "### One switched off at a time\n\n"
    rows = read(GPU / "six_each.jsonl")
    head = rows[0]
    lines = [
        (
            TITLES[row["variant"].removeprefix("without ")],
            head["busy_ms"],
            row["busy_ms"],
            percent(head["busy_ms"], row["busy_ms"]),
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
    rows = read(GPU / "six_ops.jsonl")
    text = "## Operations, fused against what they replace\n\n"
    text += (
        "78,848 edges, 128 channels, float32; medians with caches flushed. Copper is a rattled crystal of 1000 atoms, random "
        "a graph of as many edges between atoms at random.\n\n"
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
                PUBLISHED.get((row["op"], row["row"]), "") if row["graph"] == "copper" else "",
            )
        )
    text += table(("operation", "what", "graph", "ms", "MiB", "difference", "published (H100)"), lines)
    follow = [row for row in rows if row["graph"] == "copper" and row["row"].endswith("programs follow edges")]
    fixed, following = sum(row["ms_replaced"] for row in follow), sum(row["ms"] for row in follow)
    text += (
        f"\nA launch grid that follows the edges does not show here: all kernels together take {fixed:.3f} ms with 16,384 "
        f"programs and {following:.3f} ms with one for each edge (published: 2.820 → 2.711 ms). On this GPU fewer programs "
        "that each take several edges pay the start of a program less often, except in the gate, where the rows are widest. "
        "Gradients of rotations and radial factors are bitwise those of the path that keeps everything.\n"
    )
    return text + f"\n{source(rows[0])}\n"


def cpu() -> str:
    """Return the section on CPUs."""
    rows = read(CPU / "cpu_step.jsonl")
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
    rows = read(GPU / "peer_step.jsonl")
    text = f"One energy, forces and stress step on an {rows[0]['gpu']}: {rows[0]['case']}, random weights, both engines in one "
    text += "run. Errors are against float64.\n\n"
    columns = ("wall_ms_min", "wall_ms_median", "busy_ms", "dE_meV_per_atom", "forces_relL2", "stress_relL2")
    text += table(
        (
            "engine",
            "best, ms",
            "median, ms",
            "GPU busy, ms",
            "energy, meV/atom",
            "forces (relative L2)",
            "stress (relative L2)",
        ),
        [(row["engine"], *(row[name] for name in columns)) for row in rows],
    )
    rows = read(CPU / "cpu_step.jsonl")
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
    head = (
        "# Benchmarks\n\n"
        "Every figure is read from `benchmarks/results` by `benchmarks/report.py`, and stands beside its error. How to "
        "measure again: `python benchmarks/run.py six` on a machine with a GPU.\n\n"
        f"![GPU busy time and best wall time of a step]({PICTURE.name})\n"
    )
    return f"{head}\n{peer()}\n{steps()}\n{each()}\n{ops()}\n{cpu()}"


def draw() -> None:
    """Draw busy and best wall time of a step by engine."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams["svg.hashsalt"] = "edgewise"
    bars = [
        (f"{row['engine']}, umas_fast_gpu", row["busy_ms"], row["wall_ms_min"]) for row in read(GPU / "peer_step.jsonl")
    ]
    rows = read(GPU / "six_steps.jsonl")
    for name, label in (("base", "Edgewise, none of the six"), ("head", "Edgewise, all six")):
        chosen = [row for row in rows if row["variant"] == name]
        bars.append((label, mean(chosen, "busy_ms"), min(row["wall_min_ms"] for row in chosen)))
    figure, axes = plt.subplots(figsize=(8, 2.6), layout="constrained")
    for number, (label, busy, wall) in enumerate(bars):
        axes.barh(number, wall, color="#c5cae9", label="best wall time" if number == 0 else None)
        axes.barh(number, busy, color="#3949ab", label="GPU busy" if number == 0 else None)
        axes.text(wall + 0.3, number, f"{busy:.1f} / {wall:.1f} ms", va="center")
        axes.text(0.3, number, label, va="center", color="white")
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.4 * max(bar[2] for bar in bars))
    axes.set_xlabel("ms a step: 1000 Cu atoms, UMA-S size, energy + forces + stress, TF32, H200")
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
