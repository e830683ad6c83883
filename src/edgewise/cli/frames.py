"""Trajectories that survive a crash: frames appended to an extended XYZ file, and a state file renamed into place."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

import ase.io
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from edgewise.errors import InvalidStructureError


def read_structures(source: str) -> list[Atoms]:
    """Read all structures that an ASE file specification names, for example `file.cif` or `run.xyz@:`.

    Args:
        source: File, with an optional index after `@`.

    Raises:
        InvalidStructureError: The file is missing, of no known format, damaged or empty.
    """
    file, at, index = source.rpartition("@")
    path = Path(file if at else source)
    if not path.is_file():
        what = "a folder" if path.is_dir() else "no such file"
        message = f"{source} cannot be read as a structure: {path} is {what}"
        raise InvalidStructureError(message)
    if at and not re.fullmatch(r"-?\d+|-?\d*:-?\d*(:-?\d*)?", index):
        message = (
            f"{source}: {index!r} picks no frame; give a number from 0 or a range, for example {file}@0 or {file}@:"
        )
        raise InvalidStructureError(message)
    try:
        read = ase.io.read(source, index=None if at else ":")
    except (StopIteration, IndexError) as error:
        message = (
            f"{source} cannot be read as a structure: it has no frame {index}" if at else f"{source} holds no structure"
        )
        raise InvalidStructureError(message) from error
    # ASE's readers raise whatever their format's parser raises; all of it means that the file cannot be read.
    except Exception as error:
        reason = [line for line in str(error).strip().splitlines() if line.strip()]
        cause = f"{reason[0]} ({type(error).__name__})" if reason else "it is damaged or of another format"
        message = f"{source} cannot be read as a structure: {cause}; give a file in a format that ase.io reads"
        raise InvalidStructureError(message) from error
    frames = read if isinstance(read, list) else [read]
    if not frames:
        message = f"{source} holds no structure"
        raise InvalidStructureError(message)
    return frames


def with_results(atoms: Atoms, results: dict[str, Any], **info: Any) -> Atoms:
    """Return a copy that carries results and entries of info, detached from any calculator."""
    frame = atoms.copy()
    frame.info.update(info)
    frame.calc = SinglePointCalculator(frame, **results)
    return frame


def append_frame(path: Path, atoms: Atoms) -> None:
    """Append one frame and make sure that it is on the disk.

    Raises:
        OSError: The disk is full or the folder cannot be written; frames before this one stay readable.
    """
    text = io.StringIO()
    ase.io.write(text, atoms, format="extxyz")
    with path.open("a", encoding="utf-8") as file:
        file.write(text.getvalue())
        file.flush()
        os.fsync(file.fileno())


def cut_incomplete_frame(path: Path) -> int:
    """Cut off a last frame that was only half written, and return the number of whole ones.

    Args:
        path: Extended XYZ file; a missing one has no frames.
    """
    if not path.is_file():
        return 0
    lines = path.read_bytes().splitlines(keepends=True)
    position, n_frames, kept = 0, 0, 0
    while position < len(lines):
        count = lines[position].strip()
        if not count.isdigit():
            break
        end = position + int(count) + 2
        if end > len(lines) or not lines[end - 1].endswith(b"\n"):
            break
        kept += sum(map(len, lines[position:end]))
        n_frames, position = n_frames + 1, end
    if kept < path.stat().st_size:
        os.truncate(path, kept)
    return n_frames


def keep_frames(path: Path, n_frames: int) -> None:
    """Cut a trajectory to its first frames, so that a restart repeats none."""
    if not path.is_file():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    position = 0
    for _ in range(n_frames):
        position += int(lines[position]) + 2
    os.truncate(path, sum(map(len, lines[:position])))


def save_state(path: Path, atoms: Atoms, **info: Any) -> None:
    """Write positions, momenta and cell with all digits, aside and renamed.

    Args:
        path: Target, in ASE's binary trajectory format.
        atoms: What to keep; a calculator's results are not.
        **info: Numbers that a restart needs.
    """
    frame = atoms.copy()
    frame.info.update(info)
    aside = path.with_name(f".{path.name}.part")
    try:
        ase.io.write(aside, frame, format="traj")
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def load_state(path: Path) -> Atoms:
    """Read what `save_state` wrote.

    Raises:
        InvalidStructureError: There is no readable state.
    """
    if not path.is_file():
        message = f"there is no {path} to restart from; run without --restart first"
        raise InvalidStructureError(message)
    return read_structures(f"{path}@-1")[0]


def require_same_atoms(state: Path, atoms: Atoms, given: Atoms) -> None:
    """Refuse to go on with a run of another structure than the one that is given.

    Raises:
        InvalidStructureError: Their elements differ.
    """
    if len(atoms) != len(given) or (atoms.numbers != given.numbers).any():
        message = (
            f"{state} holds {atoms.symbols} and the file {given.symbols}; give the file that the run began with, or "
            "another --output"
        )
        raise InvalidStructureError(message)
