"""Times the written-out message against the reference, forward and backward, after checking that both agree.

    python benchmarks/ops/edge_message.py [--threads 2] [--edges 300 2500 20000]

Prints one JSON row for each size: best and median seconds of both, their ratio, and the error of the written-out form in
float32 beside that of the reference, both against the reference in float64.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from sizes import CHANNELS
from torch import Tensor

from edgewise import so3
from edgewise.ops import REFERENCE, WRITTEN_OUT, EdgeSegment, MessageShape, MessageWeights, SO2Weights, Workspace

SHAPE = MessageShape(lmax=2, mmax=2, channels=CHANNELS, hidden=CHANNELS)
EDGE_CHANNELS = CHANNELS
NEIGHBOURS = 78
ROUNDS = 7


def random_problem(n_edges: int) -> tuple[list[Tensor], Tensor, MessageWeights, Tensor]:
    """Return inputs, edge index, weights and a cotangent for copper-like neighbourhoods, float64."""
    generator = torch.Generator().manual_seed(n_edges)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, dtype=torch.float64, generator=generator)

    n_atoms = max(1, n_edges // NEIGHBOURS)
    target = torch.arange(n_edges) * n_atoms // max(1, n_edges)
    edge_index = torch.stack([torch.randint(0, n_atoms, (n_edges,), generator=generator), target])
    rotations = so3.edge_rotations(torch.nn.functional.normalize(normal(n_edges, 3), dim=1), SHAPE.lmax, SHAPE.mmax)
    nodes = normal(n_atoms, (SHAPE.lmax + 1) ** 2, SHAPE.channels)
    inputs = [nodes, rotations, 0.5 * rotations, normal(n_edges, EDGE_CHANNELS)]
    maps: list[SO2Weights] = []
    for n_in, n_out, extra in (
        (2 * SHAPE.channels, SHAPE.hidden, SHAPE.lmax * SHAPE.hidden),
        (SHAPE.hidden, SHAPE.channels, 0),
    ):
        blocks = []
        for m, size in enumerate(SHAPE.sizes):
            rows, columns = (1 if m == 0 else 2) * size * n_out, (1 if m == 0 else 2) * size * n_in
            blocks.append(normal(rows + (extra if m == 0 else 0), columns) / columns**0.5)
        maps.append(SO2Weights(tuple(blocks), normal(blocks[0].shape[0])))
    n_radial = 2 * SHAPE.channels * sum(SHAPE.sizes)
    weights = MessageWeights(maps[0], maps[1], normal(n_radial, EDGE_CHANNELS) / EDGE_CHANNELS**0.5, normal(n_radial))
    return inputs, edge_index, weights, normal(*nodes.shape)


def converted(weights: MessageWeights, dtype: torch.dtype) -> MessageWeights:
    """Return the weights in another type."""

    def convolution(item: SO2Weights) -> SO2Weights:
        return SO2Weights(tuple(block.to(dtype) for block in item.blocks), item.bias.to(dtype))

    return MessageWeights(
        convolution(weights.conv_1),
        convolution(weights.conv_2),
        weights.radial.to(dtype),
        weights.radial_bias.to(dtype),
    )


def runner(op: Callable[..., Tensor], problem: tuple[Any, ...], dtype: torch.dtype) -> Callable[[], list[Tensor]]:
    """Return a function that runs the op forward and backward once."""
    inputs, edge_index, weights, cotangent = problem
    leaves = [item.to(dtype).requires_grad_() for item in inputs]
    weights, cotangent = converted(weights, dtype), cotangent.to(dtype)
    segments = (EdgeSegment(0, edge_index.shape[1], 0),)
    workspace = Workspace()

    def run() -> list[Tensor]:
        with workspace.active():
            nodes, rotations, envelope_rotations, hidden = leaves
            result = op(nodes, edge_index, rotations, envelope_rotations, hidden, [weights], segments, SHAPE)
            return [result.detach(), *torch.autograd.grad(result, leaves, cotangent)]

    return run


def relative_error(given: list[Tensor], exact: list[Tensor]) -> float:
    """Return the largest relative L2 error among values and gradients."""
    return max(float((a.double() - b).norm() / b.norm()) for a, b in zip(given, exact, strict=True))


def main() -> None:
    """Check, then time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--edges", type=int, nargs="+", default=[300, 2500, 20000])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for n_edges in arguments.edges:
        problem = random_problem(n_edges)
        exact = runner(REFERENCE.edge_message, problem, torch.float64)()
        operations = {"reference": REFERENCE.edge_message, "written_out": WRITTEN_OUT.edge_message}
        runs = {name: runner(op, problem, torch.float32) for name, op in operations.items()}
        errors = {name: relative_error(run(), exact) for name, run in runs.items()}
        if errors["written_out"] > 2 * errors["reference"] + 1e-7:
            message = f"the written-out form is off by {errors['written_out']:.2e}; nothing was timed"
            raise SystemExit(message)
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(ROUNDS):
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)
        row = {
            "op": "edge_message",
            "edges": n_edges,
            "threads": arguments.threads,
            "machine": platform.processor() or platform.machine(),
            "torch": torch.__version__,
            "best_s": {name: round(min(values), 5) for name, values in seconds.items()},
            "median_s": {name: round(statistics.median(values), 5) for name, values in seconds.items()},
            "ratio": round(min(seconds["reference"]) / min(seconds["written_out"]), 3),
            "error": {name: float(f"{value:.3g}") for name, value in errors.items()},
        }
        print(json.dumps(row))


if __name__ == "__main__":
    main()
