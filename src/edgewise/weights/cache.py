"""Converted weights in the user's cache folder, so that a checkpoint is unpickled once."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from pathlib import Path

from edgewise.errors import CheckpointError
from edgewise.settings import cache_folder
from edgewise.weights.checkpoint import Checkpoint, checkpoint_from_fields
from edgewise.weights.convert import FORMAT_VERSION, read_safetensors, write_safetensors
from edgewise.weights.unpickle import read_pickled_checkpoint

logger = logging.getLogger(__name__)

SAMPLED_BYTES = 1024**2
"""How much of the beginning and of the end of a file goes into its key."""


def read_through_cache(path: Path, name: str) -> Checkpoint:
    """Read a `.pt`, from its converted copy where there is one; make the copy where there is none.

    A cache that cannot be written costs time, never the result; a damaged copy is made anew.

    Args:
        path: The `.pt` file.
        name: Short name of the model.

    Raises:
        CheckpointError: The file cannot be used.
    """
    copy = cache_folder() / f"{name}-{file_key(path)}.safetensors"
    if copy.is_file():
        try:
            return replace(read_safetensors(copy), name=name, source=path)
        except CheckpointError:
            logger.warning("the converted copy %s is damaged and is made anew", copy)
    checkpoint = checkpoint_from_fields(read_pickled_checkpoint(path), name, path)
    try:
        write_safetensors(checkpoint, copy)
    except OSError as error:
        logger.warning("no converted copy of %s was kept: %s", path.name, error)
    return checkpoint


def file_key(path: Path) -> str:
    """Return a key that changes when a file does: its size, time of change, beginning and end."""
    status = path.stat()
    digest = hashlib.sha256(f"{FORMAT_VERSION} {status.st_size} {status.st_mtime_ns}".encode())
    with path.open("rb") as file:
        digest.update(file.read(SAMPLED_BYTES))
        file.seek(max(0, status.st_size - SAMPLED_BYTES))
        digest.update(file.read(SAMPLED_BYTES))
    return digest.hexdigest()[:16]
