"""Write ``plain.pt`` and ``omegaconf.pt``: small genuine checkpoints with the peer's numbers.

Run it in the peer's environment, like ``make_option_goldens.py`` beside it:

    python tests/golden/make_file_goldens.py

Both are what the peer itself saves and loads. The training weights in them are 1.01 times the
averaged ones, so a reader that takes the wrong set shows. ``omegaconf.pt`` holds its
configurations as OmegaConf containers, ``plain.pt`` as dicts and lists.
"""

from __future__ import annotations

import json

import numpy as np
import torch
from make_option_goldens import HERE, checkpoint, evaluate, predictor, random_weights
from omegaconf import OmegaConf
from option_variants import VARIANTS, configs

FILES = {"plain": "base", "omegaconf": "dataset_list"}
CASES = ("mgo", "slab_ttf", "ch2f_minus")


def main() -> None:
    """Write each checkpoint and, beside it, its outputs in float64."""
    for stem, variant in FILES.items():
        model_config, tasks_config = json.loads(json.dumps(configs(VARIANTS[variant])))
        weights = random_weights(model_config)
        if stem == "omegaconf":
            model_config, tasks_config = map(OmegaConf.create, (model_config, tasks_config))
        path = HERE / f"{stem}.pt"
        torch.save(checkpoint(model_config, tasks_config, weights), path)
        unit = predictor(path, torch.float64)
        arrays = {
            f"{case}/{key}": value for case in CASES for key, value in evaluate(unit, (case,), torch.float64).items()
        }
        np.savez_compressed(HERE / f"{stem}.npz", allow_pickle=False, **arrays)
        print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main()
