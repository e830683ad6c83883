"""The commands. Heavy packages are imported when a command runs, so that `--help` answers at once."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgewise.cli import options as shared

if TYPE_CHECKING:
    from ase import Atoms
    from ase.calculators.calculator import Calculator

    from edgewise.cli.reporting import Status, Summary
    from edgewise.potential import Potential

EXIT_CODES = (
    "Exit codes: 0 done, 1 error in input or settings, 2 wrong usage, 3 not converged, 4 the run failed or exploded, "
    "130 interrupted. After 3, 4 and 130 what was written stays readable, and --restart goes on from it."
)

app = typer.Typer(
    name="edgewise",
    help="UMA and every other eSCN-MD interatomic potential, from the command line. Units: eV, Å, fs, K, GPa.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
state = {"debug": False}


@app.callback()
def common(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")] = False) -> None:
    """Set what holds for every command."""
    state["debug"] = debug


def open_potential(model: str, task: str | None, device: str, precision: str | None) -> Potential:
    """Load a model with the shared options."""
    import edgewise

    settings = edgewise.InferenceSettings(precision=precision)  # type: ignore[arg-type]
    return edgewise.load(model, task=task, device=device, settings=settings)


def open_calculator(potential: Potential) -> Calculator:
    """Wrap a potential for ASE."""
    import edgewise

    return edgewise.Calculator(potential)


def read_one(source: str, charge: int | None, spin: int | None) -> Atoms:
    """Read one structure; of several frames the last."""
    from edgewise.cli.frames import read_structures

    return _with_charge(read_structures(source)[-1], charge, spin)


def output_prefix(output: Path | None, source: str, command: str) -> Path:
    """Return the prefix of the files that a command writes, and check that its folder can be written.

    Raises:
        InvalidSettingsError: The folder does not exist or cannot be written.
    """
    import os

    from edgewise.errors import InvalidSettingsError

    prefix = output if output is not None else Path(f"{Path(source.split('@', maxsplit=1)[0]).stem}-{command}")
    folder = prefix.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        message = f"cannot write into {folder}: it does not exist or is not writable; give another --output"
        raise InvalidSettingsError(message)
    return prefix


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
    typer.echo(f"wrote {path.with_suffix('')}.*")
    if status is not Status.DONE:
        raise typer.Exit(int(status))


def fail(message: str, status: Status) -> None:
    """Print an error and leave with its exit code."""
    typer.echo(f"edgewise: {message}", err=True)
    if state["debug"]:
        traceback.print_exc()
    raise typer.Exit(int(status))


def _with_charge(atoms: Atoms, charge: int | None, spin: int | None) -> Atoms:
    if charge is not None:
        atoms.info["charge"] = charge
    if spin is not None:
        atoms.info["spin"] = spin
    return atoms


def _settings(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@app.command()
def predict(
    files: shared.Structures,
    model: shared.Model = shared.DEFAULT_MODEL,
    task: shared.Task = None,
    device: shared.Device = "cpu",
    precision: shared.Precision = None,
    charge: shared.Charge = None,
    spin: shared.Spin = None,
    output: shared.Output = None,
    quiet: shared.Quiet = False,
) -> None:
    """Compute energies (eV), forces (eV/Å) and stresses (eV/Å^3) of structures."""
    from edgewise.cli.frames import append_frame, read_structures, with_results
    from edgewise.cli.prediction import ase_results, predict_all
    from edgewise.cli.progress import Progress
    from edgewise.cli.reporting import Status, Summary

    structures = [(name, atoms) for name in files for atoms in read_structures(name)]
    for _, atoms in structures:
        _with_charge(atoms, charge, spin)
    prefix = output_prefix(output, files[0], "predict")
    potential = open_potential(model, task, device, precision)
    units = {"energy": "eV", "energy_per_atom": "eV", "largest_force": "eV/Å", "forces": "eV/Å", "stress": "eV/Å^3"}
    summary = Summary(
        "predict",
        potential.name,
        _settings(files=files, task=potential.resolve_task(), device=device, precision=precision),
        units,
    )
    frames = prefix.with_suffix(".extxyz")
    frames.unlink(missing_ok=True)
    with reported(summary, prefix.with_suffix(".json")):
        with Progress("predict", len(structures), quiet=quiet) as progress:
            outcomes = predict_all(potential, [atoms for _, atoms in structures], progress.update)
        rows: list[dict[str, Any]] = []
        for (name, atoms), outcome in zip(structures, outcomes, strict=True):
            row: dict[str, Any] = {"file": name, "formula": str(atoms.symbols), "n_atoms": len(atoms)}
            if outcome.result is None:
                row["error"] = outcome.error
                typer.echo(f"{name}: {atoms.symbols}: {outcome.error}", err=True)
            else:
                result = outcome.result
                largest = float((result.forces**2).sum(axis=1).max() ** 0.5)
                row |= {
                    "energy": result.energy,
                    "energy_per_atom": result.energy / len(atoms),
                    "largest_force": largest,
                    "stress": result.stress if "stress" in ase_results(result) else None,
                }
                typer.echo(f"{name}: {atoms.symbols}: {result.energy:.6f} eV, largest force {largest:.6f} eV/Å")
                append_frame(frames, with_results(atoms, ase_results(result)))
            rows.append(row)
        summary.results["structures"] = rows
        if any("error" in row for row in rows):
            summary.results["status"] = Status.INPUT_ERROR


@app.command()
def relax(
    file: shared.Structure,
    model: shared.Model = shared.DEFAULT_MODEL,
    task: shared.Task = None,
    device: shared.Device = "cpu",
    precision: shared.Precision = None,
    charge: shared.Charge = None,
    spin: shared.Spin = None,
    fmax: Annotated[float, typer.Option(help="Converged when the largest force is below this, eV/Å.")] = 0.02,
    steps: Annotated[int, typer.Option(help="Most steps.")] = 500,
    optimizer: Annotated[str, typer.Option(help="FIRE, LBFGS or BFGS.")] = "FIRE",
    cell: Annotated[
        str, typer.Option(help="What may change of the cell: none, full, volume (shape kept) or shape (volume kept).")
    ] = "none",
    pressure: Annotated[float, typer.Option(help="External pressure in GPa, with --cell.")] = 0.0,
    fix: Annotated[str, typer.Option(help="Atoms that do not move: numbers from 0, for example 0,1,5-8.")] = "",
    interval: Annotated[int, typer.Option(help="Steps between written frames.")] = 1,
    output: shared.Output = None,
    restart: shared.Restart = False,
    quiet: shared.Quiet = False,
) -> None:
    """Relax a structure until forces (and stress, with --cell) vanish. Constraints in the file are kept."""
    from edgewise.cli.progress import Progress
    from edgewise.cli.relax import RelaxOptions
    from edgewise.cli.relax import relax as run
    from edgewise.cli.reporting import Status, Summary, draw_curves

    chosen = RelaxOptions(fmax, steps, optimizer, cell, pressure, parse_indices(fix), interval)  # type: ignore[arg-type]
    atoms = read_one(file, charge, spin)
    prefix = output_prefix(output, file, "relax")
    potential = open_potential(model, task, device, precision)
    calculator = open_calculator(potential)
    units = {"energy": "eV", "largest_force": "eV/Å", "volume": "Å^3", "cell": "Å", "pressure": "GPa"}
    summary = Summary(
        "relax",
        potential.name,
        _settings(file=file, task=task, device=device, precision=precision, **vars(chosen)),
        units,
    )
    with reported(summary, prefix.with_suffix(".json")):
        with Progress("relax", steps, quiet=quiet) as progress:
            result = run(
                atoms, calculator, chosen, prefix.with_suffix(".extxyz"), restart=restart, report=progress.update
            )
        first = max(0, result.steps - len(result.energies) + 1)
        curves = {"energy (eV)": result.energies, "largest force (eV/Å)": result.largest_forces}
        draw_curves(prefix.with_suffix(".png"), range(first, first + len(result.energies)), "step", curves)
        summary.results |= {
            "converged": result.converged,
            "steps": result.steps,
            "energy": result.energy,
            "largest_force": result.largest_force,
            "cell": result.atoms.cell.array,
            "volume": float(result.atoms.get_volume()) if result.atoms.cell.rank == 3 else None,
            "status": Status.DONE if result.converged else Status.NOT_CONVERGED,
        }
        word = "converged" if result.converged else "not converged"
        typer.echo(
            f"{word} after {result.steps} steps: {result.energy:.6f} eV, largest force {result.largest_force:.5f} eV/Å"
        )


@app.command()
def md(
    file: shared.Structure,
    model: shared.Model = shared.DEFAULT_MODEL,
    task: shared.Task = None,
    device: shared.Device = "cpu",
    precision: shared.Precision = None,
    charge: shared.Charge = None,
    spin: shared.Spin = None,
    ensemble: Annotated[
        str, typer.Option(help="nve (velocity Verlet), nvt (Langevin) or npt (Martyna-Tobias-Klein).")
    ] = "nve",
    steps: Annotated[int, typer.Option(help="Steps of the whole run, those before a restart included.")] = 1000,
    timestep: Annotated[float, typer.Option(help="fs")] = 1.0,
    temperature: Annotated[float, typer.Option(help="K; also of the initial momenta where the file has none.")] = 300.0,
    friction: Annotated[float, typer.Option(help="1/ps, of the Langevin thermostat.")] = 10.0,
    pressure: Annotated[float, typer.Option(help="GPa, for npt.")] = 0.0,
    interval: Annotated[int, typer.Option(help="Steps between frames; a crash loses at most one interval.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of momenta and thermostat.")] = 0,
    output: shared.Output = None,
    restart: shared.Restart = False,
    quiet: shared.Quiet = False,
) -> None:
    """Run molecular dynamics."""
    from edgewise.cli.dynamics import DynamicsOptions, run_dynamics
    from edgewise.cli.progress import Progress
    from edgewise.cli.reporting import Summary, draw_curves

    chosen = DynamicsOptions(ensemble, steps, timestep, temperature, friction, pressure, interval, seed)  # type: ignore[arg-type]
    atoms = read_one(file, charge, spin)
    prefix = output_prefix(output, file, "md")
    potential = open_potential(model, task, device, precision)
    calculator = open_calculator(potential)
    units = {"time": "fs", "energy": "eV", "temperature": "K", "volume": "Å^3", "drift": "meV per atom and ps"}
    summary = Summary(
        "md", potential.name, _settings(file=file, task=task, device=device, precision=precision, **vars(chosen)), units
    )
    with reported(summary, prefix.with_suffix(".json")):
        with Progress("md", steps, quiet=quiet) as progress:
            result = run_dynamics(
                atoms, calculator, chosen, prefix.with_suffix(".extxyz"), restart=restart, report=progress.update
            )
        time = [value / 1000 for value in result.column("time_fs")]
        potential_energy, kinetic = result.column("potential_energy_eV"), result.column("kinetic_energy_eV")
        total = [a + b for a, b in zip(potential_energy, kinetic, strict=True)]
        curves = {
            "potential energy (eV)": potential_energy,
            "total energy (eV)": total,
            "temperature (K)": result.column("temperature_K"),
        }
        draw_curves(prefix.with_suffix(".png"), time, "time (ps)", curves)
        summary.results |= {
            "steps": result.steps,
            "time": result.steps * timestep,
            "mean_temperature": sum(result.column("temperature_K")) / max(1, len(time)),
            "final_potential_energy": potential_energy[-1] if potential_energy else None,
        }
        if ensemble == "nve" and len(time) > 2:
            summary.results["drift"] = 1000 * slope(time, total) / len(atoms)
            typer.echo(f"drift of the total energy: {summary.results['drift']:.3g} meV per atom and ps")
        typer.echo(f"{result.steps} steps done, mean temperature {summary.results['mean_temperature']:.1f} K")


@app.command()
def eos(
    file: shared.Structure,
    model: shared.Model = shared.DEFAULT_MODEL,
    task: shared.Task = None,
    device: shared.Device = "cpu",
    precision: shared.Precision = None,
    span: Annotated[float, typer.Option(help="Largest change of the volume, as a fraction.")] = 0.06,
    points: Annotated[int, typer.Option(help="Number of volumes.")] = 9,
    form: Annotated[
        str, typer.Option(help="Equation to fit: birchmurnaghan, vinet, murnaghan, birch, pouriertarantola, sj.")
    ] = "birchmurnaghan",
    output: shared.Output = None,
    quiet: shared.Quiet = False,
) -> None:
    """Compute the equation of state: equilibrium volume and bulk modulus."""
    from edgewise.cli.equation_of_state import EquationOptions, equation_of_state
    from edgewise.cli.progress import Progress
    from edgewise.cli.reporting import Status, Summary, draw_fit

    chosen = EquationOptions(span, points, form)
    atoms = read_one(file, None, None)
    prefix = output_prefix(output, file, "eos")
    potential = open_potential(model, task, device, precision)
    calculator = open_calculator(potential)
    units = {"volume": "Å^3", "energy": "eV", "bulk_modulus": "GPa", "cell_lengths": "Å"}
    summary = Summary(
        "eos",
        potential.name,
        _settings(file=file, task=task, device=device, precision=precision, **vars(chosen)),
        units,
    )
    with reported(summary, prefix.with_suffix(".json")):
        with Progress("eos", points, quiet=quiet) as progress:
            result = equation_of_state(atoms, calculator, chosen, progress.update)
        title = f"{atoms.symbols}: {result.volume:.2f} Å$^3$, {result.bulk_modulus:.1f} GPa"
        draw_fit(prefix.with_suffix(".png"), (result.volumes, result.energies), result.curve, title)
        lengths = atoms.cell.lengths() * result.length_scale
        summary.results |= {
            "volumes": result.volumes,
            "energies": result.energies,
            "volume": result.volume,
            "energy": result.energy,
            "bulk_modulus": result.bulk_modulus,
            "cell_lengths": lengths,
            "minimum_in_range": result.in_range,
        }
        typer.echo(
            f"volume {result.volume:.4f} Å^3, bulk modulus {result.bulk_modulus:.2f} GPa, cell {', '.join(f'{x:.4f}' for x in lengths)} Å"
        )
        if not result.in_range:
            typer.echo(
                "the minimum lies outside of the sampled volumes: relax the cell first, or widen --span", err=True
            )
            summary.results["status"] = Status.NOT_CONVERGED


@app.command()
def describe(
    model: Annotated[
        str, typer.Argument(help="Embedded or published model, or a checkpoint file.")
    ] = shared.DEFAULT_MODEL,
    task: shared.Task = None,
    device: shared.Device = "cpu",
    precision: shared.Precision = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a model is, and which mode, precision and implementations would run it."""
    description = open_potential(model, task, device, precision).describe()
    typer.echo(json.dumps(description.as_dict(), indent=2, ensure_ascii=False) if as_json else str(description))


@app.command()
def convert(
    source: Annotated[str, typer.Argument(help="Checkpoint file, or the name of an embedded or published model.")],
    target: Annotated[Path, typer.Argument(help="File to write: .safetensors (with a .json card beside it) or .pt.")],
) -> None:
    """Convert a checkpoint to safetensors, or back to the field's .pt."""
    from edgewise.errors import InvalidSettingsError
    from edgewise.weights import read_checkpoint, write_pt, write_safetensors

    writers = {".safetensors": write_safetensors, ".pt": write_pt}
    if target.suffix not in writers:
        message = f"the target is {target}; its suffix has to be .safetensors or .pt"
        raise InvalidSettingsError(message)
    checkpoint = read_checkpoint(source)
    writers[target.suffix](checkpoint, target)
    typer.echo(f"wrote {target} ({target.stat().st_size / 1e6:.1f} MB)")


@app.command()
def models() -> None:
    """List the models that ship inside, with their cards, and the published ones."""
    from edgewise.cli.cards import card_text
    from edgewise.weights import embedded_names, published_names, read_card

    for name in embedded_names():
        typer.echo(card_text(read_card(name)))
    typer.echo("Published models, downloaded on first use (gated: accept the licence on their page first):")
    for name in published_names():
        typer.echo(f"  {name}")


def parse_indices(text: str) -> tuple[int, ...]:
    """Read atom numbers such as "0,1,5-8".

    Raises:
        InvalidSettingsError: The text is not of this form.
    """
    from edgewise.errors import InvalidSettingsError

    chosen: list[int] = []
    for part in filter(None, (item.strip() for item in text.split(","))):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            message = f"--fix is {text!r}; give atom numbers from 0, for example 0,1,5-8"
            raise InvalidSettingsError(message)
        chosen += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(chosen))


def slope(x: list[float], y: list[float]) -> float:
    """Return the slope of a straight line through points."""
    import numpy as np

    return float(np.polyfit(x, y, 1)[0])


def main() -> None:
    """Run the command line; errors of ours become one message and an exit code."""
    import warnings

    from edgewise.errors import EdgewiseError, EdgewiseWarning

    warnings.showwarning = _show_warning(warnings.showwarning, EdgewiseWarning)
    try:
        app()
    except EdgewiseError as error:
        if state["debug"]:
            raise
        typer.echo(f"edgewise: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        if state["debug"]:
            raise
        typer.echo(f"edgewise: {error}", err=True)
        sys.exit(1)


def _show_warning(original: Any, ours: type[Warning]) -> Any:
    """Show our warnings as one line, and leave others as they are."""

    def show(message: Any, category: type[Warning], *rest: Any, **named: Any) -> None:
        if issubclass(category, ours):
            typer.echo(f"edgewise: note: {message}", err=True)
        else:
            original(message, category, *rest, **named)

    return show
