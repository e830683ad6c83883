"""Trains a student on a labelled data set, through the same network code that runs every checkpoint.

    python training/train.py --data emt.npz --model emt-mini --out run --minutes 8

The loss is L1 in the energy per atom, the length of the force error, and L1 in the stress times volume per atom; beyond
`LARGE_FORCE` errors count relative to the force. Checkpoints hold everything that a later leg needs: starting again with
the same `--out` takes the very steps that a run without a break would have taken.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dataset import Dataset
from models import MODELS, Recipe
from torch import Tensor

from edgewise.model.config import parse_model_config
from edgewise.model.network import Network
from edgewise.neighbors import EdgeList, build_edges
from edgewise.ops import REFERENCE
from edgewise.systems import SystemBatch

CHECKPOINT_SECONDS = 90
MEASURED_STEPS = 150
"""Steps after which a schedule that fits the time is chosen; fewer than the warm-up."""

SCHEDULE_SHARE = 0.97
"""Share of the time that the chosen schedule may take; the first steps are slower than the rest, so this is safe."""


LARGE_FORCE = 10.0
"""eV/Å; atoms and structures with a larger force count less in the loss, by the ratio."""

CLOSE_PAIRS = "close pair"
"""Class of structures that says nothing about sizes of energies and forces in general."""


@dataclass(frozen=True)
class Options:
    """How to train.

    Attributes:
        steps: Optimiser steps of the whole schedule; 0 takes as many as fit into the time of the first leg.
        edges: Directed edges of a batch, about.
        rate: Peak learning rate.
        last_rate: Learning rate at the end of the cosine.
        warm_up: Steps of linear rise.
        average: Decay of the averaged weights.
        clip: Largest norm of a gradient.
        seed: Seed of weights and order.
    """

    steps: int
    edges: int = 60_000
    rate: float = 2e-3
    last_rate: float = 1e-5
    warm_up: int = 200
    average: float = 0.999
    clip: float = 10.0
    seed: int = 0

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step."""
        if step < self.warm_up:
            return self.rate * (step + 1) / self.warm_up
        progress = min(1.0, (step - self.warm_up) / max(1, self.steps - self.warm_up))
        return self.last_rate + (self.rate - self.last_rate) * 0.5 * (1 + math.cos(math.pi * progress))


def split(data: Dataset, recipe: Recipe, seed: int = 1) -> dict[str, list[int]]:
    """Return the structures for training, of held-out compositions, and of known compositions held out at random."""
    held = [frozenset(item) for item in recipe.held_out]
    rng = np.random.default_rng(seed)
    parts: dict[str, list[int]] = {"train": [], "held-out compositions": [], "known compositions": []}
    for number, elements in enumerate(data.elements()):
        if elements in held:
            parts["held-out compositions"].append(number)
        else:
            parts["known compositions" if rng.random() < 0.04 else "train"].append(number)
    return parts


def reference_energies(data: Dataset, n_elements: int) -> np.ndarray:
    """Return the energy of each element by least squares over the structures, [n_elements], eV.

    Args:
        data: Structures in equilibrium or near it.
        n_elements: Length of the table; elements that do not occur have 0.
    """
    counts = np.zeros((len(data), n_elements))
    bounds = data.offsets
    for row in range(len(data)):
        np.add.at(counts[row], data.numbers[bounds[row] : bounds[row + 1]], 1)
    present = np.flatnonzero(counts.any(axis=0))
    solved = np.linalg.lstsq(counts[:, present] / data.n_atoms[:, None], data.energy / data.n_atoms, rcond=None)[0]
    table = np.zeros(n_elements)
    table[present] = solved
    return table


class Batches:
    """A data set with its edges on one device, cut into batches by their number."""

    def __init__(self, data: Dataset, cutoff: float, task: str, device: torch.device) -> None:
        """Find all edges once."""
        self.data, self.task, self.device = data, task, device
        edges = build_edges(_whole_batch(data, task), cutoff)
        counts = np.array(edges.edges_per_system)
        bounds = data.offsets
        first_atom = torch.from_numpy(np.repeat(bounds[:-1], counts))
        self.local_index = (edges.edge_index - first_atom).to(device)
        self.edge_vec = edges.edge_vec.to(device)
        self.shifts = edges.shifts.to(device)
        self.edge_bounds = np.concatenate([[0], np.cumsum(counts)])
        self.counts = counts
        self.atoms = {
            "numbers": torch.from_numpy(data.numbers).to(device),
            "positions": torch.from_numpy(data.positions).to(device),
            "forces": torch.from_numpy(data.forces).to(device),
        }
        self.cell, self.pbc = torch.from_numpy(data.cell).to(device), torch.from_numpy(data.pbc).to(device)
        self.energy, self.stress = torch.from_numpy(data.energy).to(device), torch.from_numpy(data.stress).to(device)

    def epoch(self, edges: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Yield the structures of each batch of one pass, in random order.

        Args:
            edges: Directed edges of a batch, about; what is left over at the end of the pass is not used.
            rng: Decides the order.
        """
        order = rng.permutation(len(self.data))
        total, start = 0, 0
        for position, number in enumerate(order):
            total += int(self.counts[number])
            if total >= edges:
                yield order[start : position + 1]
                total, start = 0, position + 1

    def gather(self, chosen: np.ndarray) -> tuple[SystemBatch, EdgeList, dict[str, Tensor]]:
        """Return the batch, its edges and its labels."""
        bounds, device = self.data.offsets, self.device
        n_atoms = self.data.n_atoms[chosen]
        atoms = torch.from_numpy(np.concatenate([np.arange(bounds[i], bounds[i + 1]) for i in chosen])).to(device)
        edges = np.concatenate([np.arange(self.edge_bounds[i], self.edge_bounds[i + 1]) for i in chosen])
        rows = torch.from_numpy(edges).to(device)
        starts = np.concatenate([[0], np.cumsum(n_atoms)])[:-1]
        first_atom = torch.from_numpy(np.repeat(starts, self.counts[chosen])).to(device)
        systems = torch.from_numpy(np.asarray(chosen)).to(device)
        zeros = torch.zeros(len(chosen), dtype=torch.int64, device=device)
        batch = SystemBatch(
            positions=self.atoms["positions"][atoms],
            cell=self.cell[systems],
            pbc=self.pbc[systems],
            atomic_numbers=self.atoms["numbers"][atoms],
            system_idx=torch.from_numpy(np.repeat(np.arange(len(chosen)), n_atoms)).to(device),
            n_atoms=torch.from_numpy(n_atoms).to(device),
            charge=zeros,
            spin=zeros,
            tasks=(self.task,) * len(chosen),
        )
        edge_list = EdgeList(
            edge_index=self.local_index[:, rows] + first_atom,
            shifts=self.shifts[rows],
            edge_vec=self.edge_vec[rows],
            edges_per_system=tuple(self.counts[chosen].tolist()),
            n_capped=0,
        )
        labels = {
            "energy": self.energy[systems],
            "forces": self.atoms["forces"][atoms],
            "stress": self.stress[systems],
        }
        return batch, edge_list, labels


def _whole_batch(data: Dataset, task: str) -> SystemBatch:
    zeros = torch.zeros(len(data), dtype=torch.int64)
    return SystemBatch(
        positions=torch.from_numpy(data.positions),
        cell=torch.from_numpy(data.cell),
        pbc=torch.from_numpy(data.pbc),
        atomic_numbers=torch.from_numpy(data.numbers),
        system_idx=torch.from_numpy(np.repeat(np.arange(len(data)), data.n_atoms)),
        n_atoms=torch.from_numpy(data.n_atoms),
        charge=zeros,
        spin=zeros,
        tasks=(task,) * len(data),
    )


def predictions(
    network: Network, batch: SystemBatch, edges: EdgeList, scale: float, references: Tensor, *, training: bool
) -> dict[str, Tensor]:
    """Return energy [n] eV, forces [n_atoms, 3] eV/Å and virial [n, 3, 3] eV, differentiable in training.

    Args:
        network: The student.
        batch: Structures on the student's device.
        edges: Their edges.
        scale: The normaliser, eV and eV/Å.
        references: Energy of each element by atomic number, eV.
        training: Keep what a second derivative needs.
    """
    edge_vec = edges.edge_vec.clone().requires_grad_()
    weights = [network.backbone.mixed_weights(None)]
    output = network(batch, edges, edge_vec, weights, [0] * batch.n_systems)
    (gradient,) = torch.autograd.grad(output.node_energy.sum(), edge_vec, create_graph=training)
    energy = torch.zeros(batch.n_systems, dtype=torch.float64, device=edge_vec.device)
    energy = energy.index_add(
        0, batch.system_idx, output.node_energy.double() * scale + references[batch.atomic_numbers]
    )
    zeros = torch.zeros_like(batch.positions)
    forces = zeros.index_add(0, edges.edge_index[1], gradient).index_add(0, edges.edge_index[0], -gradient) * scale
    outer = gradient[:, :, None] * edges.edge_vec[:, None, :] * scale
    virial = torch.zeros(batch.n_systems, 3, 3, dtype=torch.float64, device=edge_vec.device)
    virial = virial.index_add(0, batch.system_idx[edges.edge_index[1]], outer)
    return {"energy": energy, "forces": forces, "virial": (virial + virial.mT) / 2}


def loss_terms(predicted: dict[str, Tensor], labels: dict[str, Tensor], batch: SystemBatch) -> dict[str, Tensor]:
    """Return the three parts of the loss, in eV per atom and eV/Å.

    Args:
        predicted: What `predictions` returned.
        labels: "energy" [n] eV, "forces" [n_atoms, 3] eV/Å, "stress" [n, 3, 3] eV/Å^3 with NaN where there is none.
        batch: The structures.
    """
    size = torch.linalg.vector_norm(labels["forces"], dim=1)
    of_atom = LARGE_FORCE / size.clamp_min(LARGE_FORCE)
    of_system = torch.ones_like(labels["energy"]).scatter_reduce(0, batch.system_idx, of_atom, "amin")
    per_atom = ((predicted["energy"] - labels["energy"]) / batch.n_atoms).abs() * of_system
    force = torch.linalg.vector_norm(predicted["forces"] - labels["forces"], dim=1) * of_atom
    volume = torch.linalg.det(batch.cell).abs()
    known = torch.isfinite(labels["stress"]).all(dim=2).all(dim=1)
    target = torch.where(known[:, None, None], labels["stress"], 0.0) * volume[:, None, None]
    virial = ((predicted["virial"] - target) / batch.n_atoms[:, None, None]).abs().mean((1, 2)) * of_system
    return {
        "energy": per_atom.mean(),
        "forces": force.mean(),
        "virial": (virial * known).sum() / known.sum().clamp_min(1),
    }


class Trainer:
    """The state of a training run, saved and resumed as a whole."""

    def __init__(self, recipe: Recipe, data: Dataset, options: Options, out: Path, device: torch.device) -> None:
        """Start a run, or resume the one in `out`."""
        self.recipe, self.options, self.out, self.device = recipe, options, out, device
        self.config = parse_model_config(recipe.model_config)
        training = data.select(split(data, recipe)["train"])
        usual = training.select(np.flatnonzero(training.kind != CLOSE_PAIRS).tolist())
        self.references = torch.from_numpy(reference_energies(usual, self.config.max_elements)).to(device)
        self.scale = float(np.sqrt((usual.forces**2).mean()))
        torch.manual_seed(options.seed)
        self.network = Network(self.config, REFERENCE).to(device)
        self.averaged = {name: value.detach().clone() for name, value in self.network.state_dict().items()}
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=options.rate, weight_decay=1e-4)
        self.step, self.epoch, self.batch, self.seconds = 0, 0, 0, 0.0
        self.earlier_steps = 0
        self.batches = Batches(training, self.config.cutoff, recipe.task, device)
        self._resume()

    @property
    def checkpoint(self) -> Path:
        """Where the state is kept."""
        return self.out / "state.pt"

    def _resume(self) -> None:
        if self.checkpoint.is_file():
            state = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
            self.network.load_state_dict(state["network"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.averaged = state["averaged"]
            self.scale, self.references = state["scale"], state["references"]
            self.step, self.seconds = state["step"], state["seconds"]
            self.earlier_steps = state["earlier_steps"]
            self.epoch, self.batch = state["epoch"], state["batch"]
            self.options = Options(**state["options"])
            print(f"resumed at step {self.step}")

    def start_from(self, state: dict[str, Any]) -> None:
        """Take over the averaged weights of a run, with the sizes that they were made for."""
        self.network.load_state_dict(state["averaged"])
        self.averaged = {name: value.detach().clone() for name, value in state["averaged"].items()}
        self.scale, self.references = state["scale"], state["references"]
        self.earlier_steps = state["step"] + state.get("earlier_steps", 0)

    def save(self) -> None:
        """Write the state aside and rename it."""
        self.out.mkdir(parents=True, exist_ok=True)
        aside = self.checkpoint.with_suffix(".part")
        state: dict[str, Any] = {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "averaged": self.averaged,
            "step": self.step,
            "earlier_steps": self.earlier_steps,
            "epoch": self.epoch,
            "batch": self.batch,
            "seconds": self.seconds,
            "scale": self.scale,
            "references": self.references,
            "options": asdict(self.options),
            "model": self.recipe.name,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "device": torch.cuda.get_device_name() if self.device.type == "cuda" else "CPU",
        }
        torch.save(state, aside)
        aside.replace(self.checkpoint)

    def train(self, minutes: float, last_step: int | None = None) -> None:
        """Train until the schedule, the time or a given step ends, and save.

        Args:
            minutes: Time of this leg.
            last_step: Stop after this many steps of the whole run, though the schedule goes on.
        """
        begin = last_save = last_print = time.monotonic()
        first_step, sums = self.step, {}
        while not self._is_over(last_step) and time.monotonic() - begin < 60 * minutes:
            rng = np.random.default_rng((self.options.seed, self.epoch))
            batches = self.batches.epoch(self.options.edges, rng)
            for chosen in islice(batches, self.batch, None):
                terms = self._one_step(chosen)
                sums = {
                    name: sums.get(name, 0.0) * 0.95 + 0.05 * float(value.detach()) for name, value in terms.items()
                }
                now = time.monotonic()
                if not self.options.steps and self.step == MEASURED_STEPS:
                    self._fit_schedule(MEASURED_STEPS / (now - begin), minutes)
                if now - last_print > 10:
                    last_print = now
                    rate = (self.step - first_step) / (now - begin)
                    left = max(0, self.options.steps - self.step) / rate
                    text = ", ".join(f"{name} {value:.4f}" for name, value in sums.items())
                    print(f"step {self.step}, {rate:.1f} a second, {left:.0f} s left: {text}", flush=True)
                if now - last_save > CHECKPOINT_SECONDS:
                    last_save = now
                    self.save()
                if self._is_over(last_step) or now - begin > 60 * minutes:
                    break
            else:
                self.epoch, self.batch = self.epoch + 1, 0
        self.seconds += time.monotonic() - begin
        self.save()

    def _is_over(self, last_step: int | None) -> bool:
        ends = [end for end in (self.options.steps, last_step) if end]
        return bool(ends) and self.step >= min(ends)

    def _fit_schedule(self, rate: float, minutes: float) -> None:
        """Choose the number of steps that fits; the warm-up, which is not over yet, does not depend on it."""
        self.options = replace(self.options, steps=int(rate * 60 * minutes * SCHEDULE_SHARE))
        print(f"{rate:.1f} steps a second: a schedule of {self.options.steps} steps", flush=True)

    def _one_step(self, chosen: np.ndarray) -> dict[str, Tensor]:
        batch, edges, labels = self.batches.gather(chosen)
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.rate_at(self.step)
        predicted = predictions(self.network, batch, edges, self.scale, self.references, training=True)
        terms = loss_terms(predicted, labels, batch)
        total = 4 * terms["energy"] + 10 * terms["forces"] + 4 * terms["virial"]
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.options.clip)
        self.optimizer.step()
        decay = min(self.options.average, (1 + self.step) / (10 + self.step))
        for name, value in self.network.state_dict().items():
            self.averaged[name].lerp_(value.detach(), 1 - decay)
        self.step += 1
        self.batch += 1
        return terms


def main() -> None:
    """Train a student."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="file made by a labeller")
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--steps", type=int, default=0, help="0: as many as fit into the minutes")
    parser.add_argument("--start", type=Path, help="state.pt of another run, whose averaged weights are taken over")
    parser.add_argument("--rate", type=float, default=Options.rate, help="peak learning rate")
    parser.add_argument("--edges", type=int, default=60_000, help="directed edges of a batch")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    options = Options(steps=arguments.steps, edges=arguments.edges, rate=arguments.rate)
    start = time.monotonic()
    trainer = Trainer(
        MODELS[arguments.model], Dataset.load(arguments.data), options, arguments.out, torch.device(arguments.device)
    )
    print(f"{len(trainer.batches.data)} structures ready after {time.monotonic() - start:.0f} s", flush=True)
    if arguments.start and not trainer.step:
        trainer.start_from(torch.load(arguments.start, map_location=trainer.device, weights_only=True))
    trainer.train(arguments.minutes)
    print(json.dumps({"step": trainer.step, "epoch": trainer.epoch, "seconds": trainer.seconds}))


if __name__ == "__main__":
    main()
