"""The commands. Heavy packages are imported when a command runs, so that `--help` answers at once."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from edgewise.cli import options as shared
from edgewise.cli.running import (
    check_structure,
    given,
    noted,
    open_calculator,
    open_potential,
    output_prefix,
    read_one,
    reported,
    require_folder,
    state,
    with_charge,
)

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


def _show_version(asked: bool) -> None:  # noqa: FBT001
    if asked:
        typer.echo(f"edgewise {importlib.metadata.version('edgewise')}")
        raise typer.Exit


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Set what holds for every command."""
    del version
    state["debug"] = debug


@app.command()
def predict(
    files: shared.Structures,
    model: shared.Model = shared.DEFAULT_MODEL,
    task: shared.Task = None,
    device: shared.Device = "cpu",
    precision: shared.Precision = None,
    settings: shared.Settings = None,
    charge: shared.Charge = None,
    spin: shared.Spin = None,
    allow: shared.Allow = None,
    output: shared.Output = None,
    quiet: shared.Quiet = False,
) -> None:
    """Compute energies (eV), forces (eV/Å) and stresses (eV/Å^3) of structures."""
    from edgewise.cli.frames import append_frame, read_structures, with_results
    from edgewise.cli.prediction import ase_results, label_frames, predict_all
    from edgewise.cli.progress import Progress
    from edgewise.cli.reporting import Status, Summary

    structures = [labelled for name in files for labelled in label_frames(name, read_structures(name))]
    for _, atoms in structures:
        with_charge(atoms, charge, spin)
    prefix = output_prefix(output, files[0], "predict")
    potential = open_potential(model, task, device, precision, settings, allow)
    units = {"energy": "eV", "energy_per_atom": "eV", "largest_force": "eV/Å", "forces": "eV/Å", "stress": "eV/Å^3"}
    summary = Summary(
        "predict",
        potential.name,
        given(files=files, task=potential.resolve_task(), device=device, precision=precision, settings=settings),
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
                typer.echo(f"{name}: {atoms.symbols or 'no atoms'}: {outcome.error}", err=True)
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
    settings: shared.Settings = None,
    charge: shared.Charge = None,
    spin: shared.Spin = None,
    allow: shared.Allow = None,
    fmax: Annotated[float, typer.Option(help="Converged when the largest force is below this, eV/Å.")] = 0.02,
    steps: Annotated[int, typer.Option(help="Most steps.")] = 500,
    optimizer: Annotated[
        Literal["FIRE", "LBFGS", "BFGS"], typer.Option(help="Algorithm.", case_sensitive=False)
    ] = "FIRE",
    cell: Annotated[
        Literal["none", "full", "volume", "shape"],
        typer.Option(
            help="What may change of the cell; volume keeps the shape, shape the volume.", case_sensitive=False
        ),
    ] = "none",
    pressure: Annotated[float, typer.Option(help="External pressure in GPa, with --cell.")] = 0.0,
    fix: Annotated[str, typer.Option(help="Atoms that do not move: numbers from 0, for example 0,1,5-8.")] = "",
    interval: Annotated[int, typer.Option(help="Steps between written frames.")] = 1,
    output: shared.Output = None,
    restart: shared.Restart = False,
    overwrite: shared.Overwrite = False,
    quiet: shared.Quiet = False,
) -> None:
    """Relax a structure until forces (and stress, with --cell) vanish. Constraints in the file are kept."""
    from edgewise.cli.progress import Progress
    from edgewise.cli.relax import RelaxOptions
    from edgewise.cli.relax import relax as run
    from edgewise.cli.reporting import Status, Summary, draw_curves

    chosen = RelaxOptions(fmax, steps, optimizer, cell, pressure, parse_indices(fix), interval)  # type: ignore[arg-type]
    atoms = read_one(file, charge, spin)
    prefix = output_prefix(output, file, "relax", restart=restart, overwrite=overwrite)
    potential = open_potential(model, task, device, precision, settings, allow)
    check_structure(potential, atoms)
    calculator = open_calculator(potential)
    units = {"energy": "eV", "largest_force": "eV/Å", "volume": "Å^3", "cell": "Å", "pressure": "GPa"}
    summary = Summary(
        "relax",
        potential.name,
        given(file=file, task=task, device=device, precision=precision, settings=settings, **vars(chosen)),
        units,
    )
    with reported(summary, prefix.with_suffix(".json")):
        with Progress("relax", steps, quiet=quiet) as progress:
            report = noted(summary, progress.update)
            result = run(atoms, calculator, chosen, prefix.with_suffix(".extxyz"), restart=restart, report=report)
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
    settings: shared.Settings = None,
    charge: shared.Charge = None,
    spin: shared.Spin = None,
    allow: shared.Allow = None,
    ensemble: Annotated[
        Literal["nve", "nvt", "npt"],
        typer.Option(help="nve: velocity Verlet, nvt: Langevin, npt: Martyna-Tobias-Klein.", case_sensitive=False),
    ] = "nve",
    steps: Annotated[int, typer.Option(help="Steps of the whole run, those before a restart included.")] = 1000,
    timestep: Annotated[float, typer.Option(help="fs")] = 1.0,
    temperature: Annotated[float, typer.Option(help="K; also of the initial momenta where the file has none.")] = 300.0,
    friction: Annotated[float | None, typer.Option(help="1/ps, of the thermostat of nvt. Default: 10.")] = None,
    pressure: Annotated[float | None, typer.Option(help="GPa, for npt. Default: 0.")] = None,
    interval: Annotated[int, typer.Option(help="Steps between frames; a crash loses at most one interval.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of momenta and thermostat.")] = 0,
    output: shared.Output = None,
    restart: shared.Restart = False,
    overwrite: shared.Overwrite = False,
    quiet: shared.Quiet = False,
) -> None:
    """Run molecular dynamics."""
    from edgewise.cli.dynamics import DynamicsOptions, run_dynamics
    from edgewise.cli.progress import Progress
    from edgewise.cli.reporting import Summary, draw_curves

    chosen = DynamicsOptions(
        ensemble,
        steps,
        timestep,
        temperature,
        interval=interval,
        seed=seed,
        **given(friction=friction, pressure=pressure),
    )
    atoms = read_one(file, charge, spin)
    prefix = output_prefix(output, file, "md", restart=restart, overwrite=overwrite)
    potential = open_potential(model, task, device, precision, settings, allow)
    check_structure(potential, atoms)
    calculator = open_calculator(potential)
    units = {"time": "fs", "energy": "eV", "temperature": "K", "volume": "Å^3", "drift": "meV per atom and ps"}
    summary = Summary(
        "md",
        potential.name,
        given(file=file, task=task, device=device, precision=precision, settings=settings, **vars(chosen)),
        units,
    )
    with reported(summary, prefix.with_suffix(".json")):
        with Progress("md", steps, quiet=quiet) as progress:
            report = noted(summary, progress.update)
            frames = prefix.with_suffix(".extxyz")
            result = run_dynamics(atoms, calculator, chosen, frames, restart=restart, report=report)
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
            "time": 1000 * time[-1] if time else 0.0,
            "mean_temperature": sum(result.column("temperature_K")) / max(1, len(time)),
            "final_potential_energy": potential_energy[-1] if potential_energy else None,
        }
        if ensemble == "nve" and len(time) > 2:
            summary.results["drift"] = 1000 * slope(time, total) / len(atoms)
            typer.echo(f"drift of the total energy: {summary.results['drift']:.3g} meV per atom and ps")
        if result.steps > steps or (restart and result.steps_now == 0):
            typer.echo(f"nothing to do: the run has {result.steps} steps and --steps is {steps}", err=True)
        typer.echo(f"{result.steps} steps done, mean temperature {summary.results['mean_temperature']:.1f} K")


@app.command()
def eos(
    file: shared.Structure,
    model: shared.Model = shared.DEFAULT_MODEL,
    task: shared.Task = None,
    device: shared.Device = "cpu",
    precision: shared.Precision = None,
    settings: shared.Settings = None,
    charge: shared.Charge = None,
    spin: shared.Spin = None,
    allow: shared.Allow = None,
    span: Annotated[float, typer.Option(help="Largest change of the volume, as a fraction.")] = 0.06,
    points: Annotated[int, typer.Option(help="Number of volumes.")] = 9,
    form: Annotated[
        Literal["birchmurnaghan", "vinet", "murnaghan", "birch", "pouriertarantola", "sj"],
        typer.Option(help="Equation to fit.", case_sensitive=False),
    ] = "birchmurnaghan",
    output: shared.Output = None,
    quiet: shared.Quiet = False,
) -> None:
    """Compute the equation of state: equilibrium volume and bulk modulus."""
    from edgewise.cli.equation_of_state import EquationOptions, equation_of_state
    from edgewise.cli.progress import Progress
    from edgewise.cli.reporting import Status, Summary, draw_fit

    chosen = EquationOptions(span, points, form)
    atoms = read_one(file, charge, spin)
    prefix = output_prefix(output, file, "eos")
    potential = open_potential(model, task, device, precision, settings, allow)
    calculator = open_calculator(potential)
    units = {"volume": "Å^3", "energy": "eV", "bulk_modulus": "GPa", "cell_lengths": "Å"}
    summary = Summary(
        "eos",
        potential.name,
        given(file=file, task=task, device=device, precision=precision, settings=settings, **vars(chosen)),
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
    settings: shared.Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a model is, and which mode, precision and implementations would run it."""
    description = open_potential(model, task, device, precision, settings).describe()
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
    require_folder(target)
    if Path(source).exists() and target.exists() and Path(source).samefile(target):
        message = f"source and target are the same file, {target}; give another target"
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
        if not first.isdigit() or (last and not last.isdigit()) or int(last or first) < int(first):
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
