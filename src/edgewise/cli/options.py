"""Options that several commands share. This module must stay light: `edgewise --help` reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_MODEL = "emt-mini"

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
    str | None, typer.Option("--precision", help="float32, float64 or tf32 (CUDA). Default: float32.")
]
Charge = Annotated[int | None, typer.Option("--charge", help="Total charge in e; replaces the one in the file.")]
Spin = Annotated[int | None, typer.Option("--spin", help="Spin multiplicity; replaces the one in the file.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Prefix of the files to write. Default: the input's name and the command's."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Restart = Annotated[
    bool, typer.Option("--restart", help="Go on from the files of an earlier run with the same --output.")
]
