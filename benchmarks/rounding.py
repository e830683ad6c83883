"""Says which rounding to float16 costs how much of the accuracy of mode fused, in emulation.

    python benchmarks/rounding.py [--repeat 2 4 4] [--device cpu] [--without hidden degree ...]

The step runs in plain PyTorch and float64, where everything that the mode keeps or multiplies in float16, or could, is rounded
to nearest: alone, all together, and all but what `--without` names. What the mode has in better formats is what that names
unless it is given: the operand of the last radial layers on the way forth, and all of the degree embedding.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from checks import errors
from models import uma_s
from structures import copper
from torch import Tensor

import edgewise
from edgewise.engine.fused.edges import Hidden, PlainEdges
from edgewise.engine.fused.step import Step, StepInputs
from edgewise.engine.fused.weights import RadialWeights, StepWeights, prepare
from edgewise.ops.fused.gradient_scales import LARGEST_EXPONENT
from edgewise.ops.fused.row_format import FLOAT64
from edgewise.ops.fused.so2_linear import SO2Map
from edgewise.systems import batch_from_atoms

PLACES = {
    "hidden": "operand of the last radial layer",
    "hidden_again": "the same on the way back",
    "slopes": "its derivative",
    "last": "weights of the last radial layers",
    "biases": "their biases",
    "embedding": "weights of the embedding's last radial layer",
    "embedding_bias": "its bias",
    "radial": "radial factors, stored",
    "radial_slope": "their derivatives, stored",
    "packed": "operands of the first SO(2) map",
    "maps": "weights of the SO(2) maps",
    "before_gate": "values before the gate, stored",
    "gated": "operands of the second SO(2) map",
    "convolved": "values after the second map, stored",
    "degree": "features of the embedding, stored",
    "degree_slope": "their derivatives, stored",
    "to_packed": "gradients of the first map's operands",
    "to_before_gate": "gradients before the gate",
    "to_gated": "gradients behind the gate",
    "to_convolved": "gradients of messages",
}


def float16(x: Tensor) -> Tensor:
    """Round to float16."""
    return x.to(torch.float16).to(x.dtype)


EXACT = ("hidden", "embedding", "embedding_bias", "degree", "degree_slope")
"""What mode fused has in better formats than float16."""


class RoundedStep(Step):
    """A step whose way back reads a rounded operand where that is chosen."""

    def _begin_factors(self, hidden: Hidden, network: int, inputs: StepInputs) -> Tensor:
        if "hidden_again" in RoundedEdges.chosen and network:
            hidden = float16(hidden[0]), hidden[1]
        return super()._begin_factors(hidden, network, inputs)


class RoundedEdges(PlainEdges):
    """Plain PyTorch with roundings at the chosen places."""

    chosen: frozenset[str] = frozenset()
    scale = 1.0

    def at(self, place: str, x: Tensor) -> Tensor:
        """Round values where the place is chosen."""
        return float16(x) if place in self.chosen else x

    def gradient_at(self, place: str, x: Tensor) -> Tensor:
        """Round gradients, which carry a power of two."""
        return float16(x * self.scale) / self.scale if place in self.chosen else x

    def hidden(self, numbers: Tensor, weights: StepWeights, number: int) -> Hidden:
        """See `StepEdges`."""
        value, slope = super().hidden(numbers, weights, number)
        return self.at("hidden", value), self.at("slopes", slope)

    def gather_rotate(self, nodes: Tensor, radial: Tensor) -> Tensor:
        """See `StepEdges`."""
        return self.at("packed", super().gather_rotate(nodes, self.at("radial", radial)))

    def gather_rotate_adjoint(self, gradient: Tensor, nodes: Tensor, radial: Tensor, radial_slope: Tensor) -> Tensor:
        """See `StepEdges`."""
        factors = self.at("radial", radial), self.at("radial_slope", radial_slope)
        return super().gather_rotate_adjoint(self.gradient_at("to_packed", gradient), nodes, *factors)

    def gate(self, before: Tensor, bias: Tensor) -> Tensor:
        """See `StepEdges`."""
        return self.at("gated", super().gate(self.at("before_gate", before), bias))

    def gate_adjoint(self, gradient: Tensor, before: Tensor, bias: Tensor) -> Tensor:
        """See `StepEdges`."""
        gradient = self.gradient_at("to_gated", gradient)
        return self.gradient_at("to_before_gate", super().gate_adjoint(gradient, self.at("before_gate", before), bias))

    def rotate_sum(self, features: Tensor, bias: Tensor) -> Tensor:
        """See `StepEdges`."""
        return super().rotate_sum(self.at("convolved", features), bias)

    def rotate_sum_adjoint(self, gradient: Tensor, features: Tensor, bias: Tensor) -> Tensor:
        """See `StepEdges`."""
        _, exponent = torch.frexp(gradient.abs().max())
        self.scale = 2.0 ** (LARGEST_EXPONENT - int(exponent))
        found = super().rotate_sum_adjoint(gradient, self.at("convolved", features), bias)
        return self.gradient_at("to_convolved", found)

    def embed(self, features: Tensor) -> Tensor:
        """See `StepEdges`."""
        return super().embed(self.at("degree", features))

    def embed_adjoint(self, gradient: Tensor, features: Tensor, features_slope: Tensor) -> None:
        """See `StepEdges`."""
        super().embed_adjoint(gradient, self.at("degree", features), self.at("degree_slope", features_slope))


def rounded_weights(weights: StepWeights, chosen: frozenset[str]) -> StepWeights:
    """Round the weights at the chosen places."""

    def so2_map(item: SO2Map) -> SO2Map:
        if "maps" not in chosen:
            return item
        return replace(item, blocks=tuple(map(float16, item.blocks)), transposed=tuple(map(float16, item.transposed)))

    def radial(item: RadialWeights, matrix: str, bias: str) -> RadialWeights:
        last = float16(item.last) if matrix in chosen else item.last
        return replace(item, last=last, last_bias=float16(item.last_bias) if bias in chosen else item.last_bias)

    blocks = [
        replace(
            block,
            conv_1=so2_map(block.conv_1),
            conv_2=so2_map(block.conv_2),
            radial=radial(block.radial, "last", "biases"),
        )
        for block in weights.blocks
    ]
    return replace(weights, degree=radial(weights.degree, "embedding", "embedding_bias"), blocks=tuple(blocks))


def evaluator(repeat: tuple[int, int, int], device: str) -> tuple[Callable[[frozenset[str]], dict[str, Tensor]], int]:
    """Return what evaluates a crystal with roundings at given places, and its number of atoms."""
    atoms = copper(repeat)
    settings = edgewise.InferenceSettings(execution_mode="general", precision="float64")
    runner = edgewise.Potential(uma_s(n_experts=8), task="omat", device=device, settings=settings)._runner  # noqa: SLF001
    batch = batch_from_atoms([atoms], ["omat"])
    edges, (mixed, of_system) = runner._edges(batch), runner.mixtures.for_batch(batch)  # noqa: SLF001
    scales = runner._scales.of(batch, runner.device)  # noqa: SLF001
    batch, edges = batch.to(device), edges.to(device)
    weights = [prepare(runner.network.backbone, item, FLOAT64) for item in mixed]

    def evaluate(chosen: frozenset[str]) -> dict[str, Tensor]:
        RoundedEdges.chosen = chosen
        given = [rounded_weights(item, chosen) for item in weights]
        output, gradient = RoundedStep(runner.network, RoundedEdges)(batch, edges, given, of_system)
        assert gradient is not None
        found = runner._conservative_outputs(batch, edges, output.node_energy, gradient, scales)  # noqa: SLF001
        return {key: getattr(found, key).cpu() for key in ("energy", "forces", "stress")}

    return evaluate, len(atoms)


def cases(without: list[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield titles and places."""
    yield "everything", frozenset(PLACES)
    if without:
        yield f"everything but {', '.join(without)}", frozenset(PLACES) - frozenset(without)
    for place, title in PLACES.items():
        yield title, frozenset([place])


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, nargs=3, default=(2, 4, 4), help="of the primitive cell of copper")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--without", nargs="+", choices=PLACES, default=list(EXACT), metavar="PLACE")
    arguments = parser.parse_args()
    evaluate, n_atoms = evaluator(tuple(arguments.repeat), arguments.device)
    exact = evaluate(frozenset())
    for title, chosen in cases(arguments.without):
        found = errors(evaluate(chosen), exact, n_atoms)
        print(
            f"{title:48s} {found['energy_meV_per_atom']:8.4f} meV/atom, forces {found['forces_relative']:.2e}, "
            f"stress {found['stress_relative']:.2e} (relative L2)",
            flush=True,
        )


if __name__ == "__main__":
    main()
