"""Kernels by name: compiled once for each form and kind of GPU, and kept in a folder if there is one."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from edgewise.errors import ModeUnavailableError
from edgewise.ops.fused.cuda import _compiler
from edgewise.ops.fused.cuda._driver import Argument, Grid, Kernel
from edgewise.ops.fused.cuda._source import LANE_CHANNELS, LANES, ROW_TYPES, AnyForm, source
from edgewise.ops.fused.row_format import FLOAT16, FLOAT32, SPLIT, TF32, RowFormat, plain_format
from edgewise.ops.launch import check_tensor
from edgewise.ops.reference.edges import MessageShape

logger = logging.getLogger(__name__)

ALIGNMENT = 16
"""Bytes; vectors are loaded whole."""

LARGEST_LMAX = 10
"""The totals of larger degrees do not fit into a block's shared memory."""

FORMATS = (FLOAT16, SPLIT, TF32, FLOAT32)
"""Formats of rows that there are kernels for."""

_kept_in: list[Path] = []


def keep_code_in(folder: Path | None) -> None:
    """Keep machine code in a folder from now on, so that later processes compile nothing; None keeps it in memory alone.

    A folder that cannot be written costs time, never the result.
    """
    _kept_in[:] = [] if folder is None else [folder]


def missing(shape: MessageShape, row_format: RowFormat, device: torch.device) -> str | None:
    """Return why the kernels on rows of coefficients cannot serve, or None where they can.

    Args:
        shape: Sizes.
        row_format: Of the rows of edges.
        device: Where the tensors are.
    """
    return unfit_format(row_format) or _unfit_shape(shape) or unfit_device(device)


def unfit_device(device: torch.device) -> str | None:
    """Return why no kernel can be compiled for a device and run there, or None where they can."""
    if device.type != "cuda" or torch.version.hip:
        return f"the kernels in CUDA C++ run on GPUs of NVIDIA alone, and the device is {device}"
    return compiler_missing()


def compiler_missing() -> str | None:
    """Return why nothing can be compiled, or None where it can."""
    try:
        _compiler.library()
    except ModeUnavailableError as error:
        return str(error)
    return None


def unfit_format(row_format: RowFormat) -> str | None:
    """Return why there are no kernels for a format, or None where there are."""
    if row_format in FORMATS:
        return None
    return f"rows are in {row_format.name}; the kernels in CUDA C++ have {', '.join(item.name for item in FORMATS)}"


def _unfit_shape(shape: MessageShape) -> str | None:
    if shape.channels % LANE_CHANNELS:
        return f"{shape.channels} channels are no multiple of {LANE_CHANNELS}, which the kernels in CUDA C++ ask for"
    if shape.lmax > LARGEST_LMAX:
        return f"lmax is {shape.lmax}; the kernels in CUDA C++ go up to {LARGEST_LMAX}"
    return None


def format_of_results(rows: Tensor) -> RowFormat:
    """Return the format that kernels are compiled for which write no operands.

    Args:
        rows: Results, of any shape.

    Raises:
        ValueError: A type that there are no kernels for.
    """
    if rows.dtype not in ROW_TYPES:
        message = f"rows are {rows.dtype}; the kernels in CUDA C++ have {', '.join(map(str, ROW_TYPES))}"
        raise ValueError(message)
    return plain_format(rows.dtype)


def check_types(
    shape: MessageShape,
    row_format: RowFormat,
    rows: dict[str, Tensor],
    others: dict[str, Tensor],
    operands: dict[str, Tensor] | None = None,
) -> None:
    """Make sure that a kernel takes tensors for what they are.

    Args:
        shape: Sizes.
        row_format: Of the rows.
        rows: Results in rows of edges, by their names.
        others: What is float32 whatever the rows are.
        operands: Rows that matrix products read.

    Raises:
        ValueError: A shape, format or type that there are no kernels for, or a place that is no multiple of ALIGNMENT bytes.
    """
    unfit = unfit_format(row_format) or _unfit_shape(shape)
    if unfit:
        raise ValueError(unfit)
    kinds = (row_format.results, rows), (row_format.operands, operands or {}), (torch.float32, others)
    for wanted, tensors in kinds:
        check_places(tensors, wanted)


def check_places(tensors: dict[str, Tensor], wanted: torch.dtype) -> None:
    """Make sure that a kernel can load vectors of a type.

    Raises:
        ValueError: Another type, or a place that is no multiple of ALIGNMENT bytes.
    """
    for name, tensor in tensors.items():
        check_tensor(name, tensor, tuple(tensor.shape), wanted)
        if tensor.data_ptr() % ALIGNMENT:
            message = f"{name} does not begin at a multiple of {ALIGNMENT} bytes; give a copy of it"
            raise ValueError(message)


def launch(file: str, name: str, given: AnyForm, grid: Grid, arguments: Sequence[Argument]) -> None:
    """Launch a kernel on the device of its tensors.

    Args:
        file: That it stands in.
        name: Of the kernel.
        given: What it is compiled for.
        grid: Blocks along each axis.
        arguments: Tensors and numbers of 32 bits; the first is a tensor.

    Raises:
        ModeUnavailableError: It cannot be compiled, or the driver refuses.
    """
    device = _device_of(arguments)
    kernel = _kernel(file, name, given, _architecture(device))
    kernel.launch(device, grid, given.warps * LANES, arguments, given.shared_bytes)


def launch_text(
    text: str,
    file: str,
    name: str,
    architecture: str,
    grid: Grid,
    arguments: Sequence[Argument],
    *,
    threads: int,
    shared: int,
) -> None:
    """Launch a kernel that has no forms, on the device of its tensors.

    Args:
        text: All that is compiled.
        file: That the kernel stands in.
        name: Of the kernel.
        architecture: That it is for, such as "90a".
        grid: Blocks along each axis.
        arguments: Tensors and numbers of 32 bits.
        threads: Of a block.
        shared: Bytes of shared memory of a block.

    Raises:
        ModeUnavailableError: It cannot be compiled, or the driver refuses.
    """
    kernel = _kernel_of_text(text, file, name, architecture)
    kernel.launch(_device_of(arguments), grid, threads, arguments, shared)


def _device_of(arguments: Sequence[Argument]) -> torch.device:
    return next(item.device for item in arguments if isinstance(item, Tensor))


@functools.cache
def _architecture(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@functools.cache
def _kernel(file: str, name: str, given: AnyForm, architecture: int) -> Kernel:
    return Kernel(_code(file, given, architecture), name)


@functools.cache
def _kernel_of_text(text: str, file: str, name: str, architecture: str) -> Kernel:
    return Kernel(machine_code(text, file, architecture, _folder()), name)


@functools.cache
def _code(file: str, given: AnyForm, architecture: int) -> bytes:
    return machine_code(source(file, given), file, architecture, _folder())


def _folder() -> Path | None:
    return _kept_in[0] if _kept_in else None


def machine_code(text: str, name: str, architecture: int | str, folder: Path | None) -> bytes:
    """Return the machine code of a source, from a folder where it is there; otherwise compile it, and keep it there.

    Raises:
        ModeUnavailableError: It cannot be compiled.
    """
    key = hashlib.sha256(f"{_compiler.version()} {_compiler.OPTIONS} {architecture}\n{text}".encode()).hexdigest()[:24]
    place = None if folder is None else folder / f"{Path(name).stem}-sm_{architecture}-{key}.cubin"
    found = None if place is None else _read(place)
    if found is None:
        found = _compiler.compile_cubin(text, name, architecture)
        if place is not None:
            _write(place, found)
    return found


def _read(place: Path) -> bytes | None:
    """Return machine code that was kept; None if there is none, or if it is damaged."""
    try:
        digest, code = place.read_bytes().split(b"\n", 1)
    except (OSError, ValueError):
        return None
    return code if digest == hashlib.sha256(code).hexdigest().encode() else None


def _write(place: Path, code: bytes) -> None:
    """Keep machine code. It gets its name when it is whole, so that other processes never read a part."""
    unnamed = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, unnamed = tempfile.mkstemp(dir=place.parent, prefix=place.stem)
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(code).hexdigest().encode() + b"\n" + code)
        Path(unnamed).replace(place)
    except OSError as error:
        logger.warning("no machine code was kept in %s: %s", place.parent, error)
        if unnamed is not None:
            with contextlib.suppress(OSError):
                Path(unnamed).unlink()
