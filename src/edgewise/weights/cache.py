"""Converted weights in the user's cache folder, so that a checkpoint is unpickled once."""

from __future__ import annotations

import functools
import hashlib
import logging
from dataclasses import replace
from pathlib import Path

from edgewise.errors import CheckpointError
from edgewise.settings import cache_folder
from edgewise.weights.checkpoint import Checkpoint, checkpoint_from_fields
from edgewise.weights.convert import FORMAT_VERSION, read_safetensors, write_weights
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
    key = file_key(path)
    copy = cache_folder() / f"{name}-{key}.safetensors"
    if copy.is_file():
        try:
            return replace(read_safetensors(copy, require_checksum=True), name=name, source=path)
        except CheckpointError:
            logger.warning("the converted copy %s is damaged and is made anew", copy)
    checkpoint = checkpoint_from_fields(read_pickled_checkpoint(path), name, path)
    # A file that changes while it is read must not leave its copy under the old key.
    if file_key(path) == key:
        try:
            write_weights(checkpoint, copy)
        except OSError as error:
            _warn_once(str(copy.parent), f"no converted copy of {path.name} was kept: {error}")
    return checkpoint


@functools.cache
def _warn_once(folder: str, what: str) -> None:
    """Log the same trouble with a folder once in a process."""
    logger.warning("%s (folder %s)", what, folder)


def file_key(path: Path) -> str:
    """Return a key that changes when a file does: its size, time of change, beginning and end.

    The end holds the archive's directory, and with it the checksum of every tensor.

    Raises:
        CheckpointError: The file cannot be read.
    """
    try:
        return _hash_of_ends(path)
    except OSError as error:
        message = f"{path.name} cannot be read: {error.strerror or error}"
        raise CheckpointError(message) from error


def _hash_of_ends(path: Path) -> str:
    status = path.stat()
    digest = hashlib.sha256(f"{FORMAT_VERSION} {status.st_size} {status.st_mtime_ns}".encode())
    with path.open("rb") as file:
        digest.update(file.read(SAMPLED_BYTES))
        file.seek(max(0, status.st_size - SAMPLED_BYTES))
        digest.update(file.read(SAMPLED_BYTES))
    return digest.hexdigest()[:16]
