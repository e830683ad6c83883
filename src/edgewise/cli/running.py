"""What every command does around its work: open the model, read the input, guard the output, report how it ended."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from edgewise.errors import InvalidSettingsError, InvalidStructureError

if TYPE_CHECKING:
    from ase import Atoms
    from ase.calculators.calculator import Calculator

    from edgewise.cli.reporting import Status, Summary
    from edgewise.potential import Potential

state = {"debug": False}
"""Set once from the options that stand before the command."""


def open_potential(
    model: str,
    task: str | None,
    device: str,
    precision: str | None,
    chosen: Sequence[str] | None = None,
    allow: Sequence[str] | None = None,
) -> Potential:
    """Load a model with the shared options; `chosen` are settings as NAME=VALUE, `allow` names checks to lift."""
    import edgewise

    settings = edgewise.InferenceSettings.from_dict({"precision": precision, **_settings(chosen or ())})
    potential = edgewise.load(model, task=task, device=device, settings=settings)
    lifted = {name.replace("-", "_"): True for name in allow or ()}
    return potential.allowing(**lifted) if lifted else potential


def _settings(chosen: Sequence[str]) -> dict[str, Any]:
    """Read settings written as NAME=VALUE: true, false and none, whole numbers, everything else as text."""
    words: dict[str, Any] = {"true": True, "false": False, "none": None}
    found: dict[str, Any] = {}
    for item in chosen:
        name, separator, text = item.partition("=")
        if not separator or not name:
            message = f"--set {item!r} is not of the form NAME=VALUE, for example deterministic=true"
            raise InvalidSettingsError(message)
        if name == "precision":
            message = "give the precision by --precision"
            raise InvalidSettingsError(message)
        found[name] = words.get(text.lower(), int(text) if text.isdigit() else text)
    return found


def open_calculator(potential: Potential) -> Calculator:
    """Wrap a potential for ASE."""
    import edgewise

    return edgewise.Calculator(potential)


def read_one(source: str, charge: int | None, spin: int | None) -> Atoms:
    """Read one structure; of a trajectory that is named without an index the last frame.

    Raises:
        InvalidStructureError: An index that picks several.
    """
    from edgewise.cli.frames import read_structures

    structures = read_structures(source)
    if len(structures) > 1 and "@" in source:
        message = f"{source} picks {len(structures)} structures, and one is needed; FILE@0 picks the first"
        raise InvalidStructureError(message)
    return with_charge(structures[-1], charge, spin)


def with_charge(atoms: Atoms, charge: int | None, spin: int | None) -> Atoms:
    """Put charge and spin from the command line into a structure."""
    if charge is not None:
        atoms.info["charge"] = charge
    if spin is not None:
        atoms.info["spin"] = spin
    return atoms


def check_structure(potential: Potential, atoms: Atoms) -> None:
    """Evaluate a structure once before a long run, so that bad input is told before any file is touched."""
    potential.predict([atoms])


def output_prefix(
    output: str | None, source: str, command: str, *, restart: bool = False, overwrite: bool = True
) -> Path:
    """Return the prefix of the files that a command writes, and check that they can be written.

    Args:
        output: What the user gave.
        source: Input file, from which the default is made.
        command: Name of the command.
        restart: The files of an earlier run are wanted.
        overwrite: The files of an earlier run may go.

    Raises:
        InvalidSettingsError: The folder does not exist or cannot be written, or an earlier run would be lost.
    """
    given = f"{Path(source.split('@', maxsplit=1)[0]).stem}-{command}" if output is None else output
    prefix = Path(given)
    if given.endswith(("/", os.sep)) or prefix.is_dir():
        message = f"--output {given} is a folder; give a prefix for the files, for example {prefix / 'run'}"
        raise InvalidSettingsError(message)
    require_folder(prefix)
    state_file = prefix.with_suffix(".restart.traj")
    if state_file.exists() and not restart and not overwrite:
        message = (
            f"{prefix}.* holds an earlier run; go on from it with --restart, lose it with --overwrite, or give another "
            "--output"
        )
        raise InvalidSettingsError(message)
    return prefix


def require_folder(path: Path) -> None:
    """Refuse a path whose folder does not exist or cannot be written.

    Raises:
        InvalidSettingsError: It does not, or cannot.
    """
    try:
        # Asking about permissions is not enough: some folders take no files whoever asks.
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        message = f"cannot write into {path.parent}: it does not exist or is not writable; give another --output"
        raise InvalidSettingsError(message) from error


@contextmanager
def reported(summary: Summary, path: Path) -> Generator[None]:
    """Write the summary of a command however it ends, and exit with the code that tells how.

    Args:
        summary: What to write; its results are filled by the command.
        path: JSON file.
    """
    from edgewise.cli.reporting import Status
    from edgewise.errors import RunFailedError

    status = Status.RUN_FAILED
    try:
        yield
        status = summary.results.pop("status", Status.DONE)
    except RunFailedError as error:
        summary.results["error"] = str(error)
        fail(str(error), Status.RUN_FAILED)
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
        fail("interrupted; what was written is whole, and --restart goes on from it", Status.INTERRUPTED)
    except OSError as error:
        summary.results["error"] = str(error)
        fail(f"cannot write: {error}; what was written before stays readable", Status.RUN_FAILED)
    finally:
        try:
            summary.write(path, status)
        except OSError as error:
            typer.echo(f"edgewise: no summary could be written: {error}", err=True)
    written = sorted(item.name for item in path.parent.glob(f"{path.stem}.*") if item.is_file())
    typer.echo(f"wrote {', '.join(written)}" + ("" if path.parent == Path() else f" in {path.parent}"))
    if status is not Status.DONE:
        raise typer.Exit(int(status))


def noted(summary: Summary, report: Callable[[int, str], None]) -> Callable[[int, str], None]:
    """Return a function that reports progress and keeps it in the summary, for runs that do not reach their end."""

    def note(step: int, text: str) -> None:
        summary.results |= {"steps": step, "last": text}
        report(step, text)

    return note


def fail(message: str, status: Status) -> None:
    """Print an error and leave with its exit code."""
    typer.echo(f"edgewise: {message}", err=True)
    if state["debug"]:
        traceback.print_exc()
    raise typer.Exit(int(status))


def given(**values: Any) -> dict[str, Any]:
    """Return the settings that were given."""
    return {name: value for name, value in values.items() if value is not None}
