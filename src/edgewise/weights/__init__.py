"""Checkpoints: read from every place and format without running them, written whole."""

from edgewise.weights.checkpoint import Checkpoint, read_checkpoint
from edgewise.weights.convert import read_safetensors, write_pt, write_safetensors
from edgewise.weights.embedded import embedded_names, read_card, read_embedded
from edgewise.weights.hub import published_names

__all__ = [
    "Checkpoint",
    "embedded_names",
    "published_names",
    "read_card",
    "read_checkpoint",
    "read_embedded",
    "read_safetensors",
    "write_pt",
    "write_safetensors",
]
