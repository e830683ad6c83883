"""Options that several commands share. This module must stay light: `edgewise --help` reads it."""

from __future__ import annotations

import enum
from typing import Annotated, Literal

import typer

DEFAULT_MODEL = "emt-mini"


class Check(enum.StrEnum):
    """Checks that can be lifted; see `Potential.allowing`."""

    ANY_ELEMENT = "any-element"
    CHARGE_SPIN = "charge-spin"
    LONE_ATOMS = "lone-atoms"


Structure = Annotated[
    str,
    typer.Argument(help="Structure file in any format that ase.io reads; FILE@INDEX picks a frame.", metavar="FILE"),
]
Structures = Annotated[
    list[str],
    typer.Argument(help="Structure files in any format that ase.io reads; FILE@: takes all frames.", metavar="FILE..."),
]
Model = Annotated[
    str,
    typer.Option("--model", "-m", help="Embedded or published model, or a checkpoint file (.pt, .safetensors)."),
]
Task = Annotated[
    str | None, typer.Option("--task", "-t", help="Task, for example omat or omol; needed where a model has several.")
]
Device = Annotated[str, typer.Option("--device", "-d", help="cpu, cuda, cuda:1, ...")]
Precision = Annotated[
    Literal["float32", "float64", "tf32"] | None,
    typer.Option("--precision", help="tf32 is for CUDA devices. Default: float32.", case_sensitive=False),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A field of InferenceSettings, for example execution_mode=umas_fast_gpu or deterministic=true; can be given "
        "several times.",
        metavar="NAME=VALUE",
    ),
]
Charge = Annotated[int | None, typer.Option("--charge", help="Total charge in e; replaces the one in the file.")]
Spin = Annotated[int | None, typer.Option("--spin", help="Spin multiplicity; replaces the one in the file.")]
Allow = Annotated[
    list[Check] | None,
    typer.Option("--allow", help="Lift a check; can be given several times."),
]
Output = Annotated[
    str | None,
    typer.Option("--output", "-o", help="Prefix of the files to write. Default: the input's name and the command's."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress; results are printed.")]
Restart = Annotated[
    bool, typer.Option("--restart", help="Go on from the files of an earlier run with the same --output.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the files of an earlier run.")]
