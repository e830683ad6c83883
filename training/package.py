"""Turns a trained state into a checkpoint: the file that ships, or one to evaluate.

python training/package.py --state run/state.pt --model emt-mini --out emt-mini.safetensors
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from models import MODELS, Recipe, tasks_config

from edgewise.weights import Checkpoint, write_safetensors


def checkpoint_from_state(state: dict[str, Any], recipe: Recipe, card: dict[str, Any]) -> Checkpoint:
    """Return the averaged weights of a run as a checkpoint.

    Args:
        state: What the trainer saved.
        recipe: The student.
        card: What people should know; its "elements" are enforced.
    """
    weights = {name: value.to("cpu", torch.float32) for name, value in state["averaged"].items()}
    for quantity in ("charge", "spin"):
        # Only the rows of charge 0 and spin 0 are ever read under a task without charge and spin.
        table = weights[f"backbone.{quantity}_embedding.rand_emb.weight"]
        used = 100 if quantity == "charge" else 0
        row = table[used].clone()
        table.zero_()
        table[used] = row
    references = [round(float(value), 8) for value in state["references"]]
    return Checkpoint(
        model_config=recipe.model_config,
        tasks_config=tasks_config(recipe.task, float(state["scale"]), references),
        weights=weights,
        name=recipe.name,
        card=card,
    )


def main() -> None:
    """Write a checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, required=True, help="state.pt of a run")
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--card", type=Path, help="JSON card, for example made by evaluate_emt.py")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    recipe = MODELS[arguments.model]
    state = torch.load(arguments.state, map_location="cpu", weights_only=True)
    card = json.loads(arguments.card.read_text()) if arguments.card else {"elements": list(recipe.elements)}
    write_safetensors(checkpoint_from_state(state, recipe, card), arguments.out)
    print(f"{arguments.out}: {arguments.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
