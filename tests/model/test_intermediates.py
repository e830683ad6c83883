"""Values inside the network against those stored from the peer: they say where an error is, not only that there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from edgewise.neighbors import build_edges
from edgewise.systems import batch_from_atoms
from tests.cases import GOLDEN, MANIFEST, golden_atoms, potential

CASES = (("uma-s-tiny", "si2"), ("uma-s-tiny", "oh_minus"), ("uma-m-tiny", "h2o"))


def recorded(architecture: str, case: str) -> dict[str, Tensor]:
    """Run one structure and return values under the names of the stored ones."""
    network = potential(architecture)._runner.network
    backbone = network.backbone
    config = network.config
    batch = batch_from_atoms([golden_atoms(case)], [MANIFEST["cases"][case]["task"]])
    edges = build_edges(batch, config.cutoff, config.max_neighbors)
    values: dict[str, Tensor] = {"csd_embedding": backbone.system_embedding(batch)}
    coefficients = backbone.mixture_coefficients(batch)
    assert coefficients is not None
    values["mole_coefficients"] = coefficients

    def keep(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            values[name] = output

        return hook

    hooks = [backbone.norm.register_forward_hook(keep("node_embedding"))]
    for number, block in enumerate(backbone.blocks):
        parts = {
            "norm_1": block.norm_1,
            "edge_wise": block.edge_wise,
            "norm_2": block.norm_2,
            "atom_wise": block.atom_wise,
        }
        hooks += [part.register_forward_hook(keep(f"block{number}.{name}")) for name, part in parts.items()]
        hooks.append(block.register_forward_hook(keep(f"block{number}.out")))
    try:
        with torch.no_grad():
            weights = [backbone.mixed_weights(coefficients[0])]
            output = network(batch, edges, edges.edge_vec, weights, [0])
    finally:
        for hook in hooks:
            hook.remove()
    values["node_energy_normalized"] = output.node_energy[:, None]
    return values


@pytest.mark.parametrize(("architecture", "case"), CASES)
def test_values_inside_the_network(architecture: str, case: str) -> None:
    values = recorded(architecture, case)
    with np.load(GOLDEN / f"intermediates_{architecture}_{case}.npz") as archive:
        stored = dict(archive)
    shared = sorted(set(values) & set(stored))
    assert {"csd_embedding", "mole_coefficients", "block0.edge_wise", "block1.out", "node_embedding"} <= set(shared)
    for name in shared:
        expected = torch.from_numpy(stored[name])
        torch.testing.assert_close(
            values[name], expected, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize(("architecture", "case"), CASES)
def test_edges(architecture: str, case: str) -> None:
    """The same edges and vectors, whatever their order inside a target."""
    config = potential(architecture).config
    batch = batch_from_atoms([golden_atoms(case)], [MANIFEST["cases"][case]["task"]])
    edges = build_edges(batch, config.cutoff, config.max_neighbors)
    with np.load(GOLDEN / f"intermediates_{architecture}_{case}.npz") as archive:
        index, vectors = archive["edge_index"], archive["edge_distance_vec"]
    ours = np.concatenate([edges.edge_index.numpy().T, edges.edge_vec.numpy().round(9)], axis=1)
    theirs = np.concatenate([index.T, vectors.round(9)], axis=1)
    np.testing.assert_allclose(ours[np.lexsort(ours.T)], theirs[np.lexsort(theirs.T)], rtol=0, atol=2e-9)
