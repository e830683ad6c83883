"""CUDA C++ to machine code by NVRTC, which torch brings: a library that needs neither a GPU nor a driver."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from edgewise.errors import ModeUnavailableError

OPTIONS = ("--std=c++17", "--device-as-default-execution-space", "--disable-warnings")
"""Releases before 13.1 take lambdas for functions of the host unless they are told."""

_MAJOR = re.compile(r"libnvrtc\.so\.(\d+)")


@functools.cache
def library() -> ctypes.CDLL:
    """Load NVRTC: that of torch's own release of CUDA, else any that is there.

    Raises:
        ModeUnavailableError: There is none.
    """
    for path in _candidates():
        try:
            # What NVRTC itself looks for by name alone, and does not find in every release.
            if Path(path).is_absolute():
                for builtins in Path(path).parent.glob("libnvrtc-builtins.so.*"):
                    ctypes.CDLL(str(builtins))
            return ctypes.CDLL(path)
        except OSError:
            continue
    message = (
        "NVRTC, the compiler that torch's builds for CUDA bring, is not here (looked for libnvrtc.so); "
        "`pip install nvidia-cuda-nvrtc` brings it"
    )
    raise ModeUnavailableError(message)


def _candidates() -> Iterator[str]:
    """Yield names to load; a driver understands the code of its own release of CUDA, which torch's is not newer than."""
    release = torch.version.cuda  # None in builds for CPUs
    wanted = int(release.split(".")[0]) if release else None
    found = {
        int(number[1]): path
        for folder in _package_folders()
        for path in folder.glob("*/lib/libnvrtc.so.*")
        if (number := _MAJOR.fullmatch(path.name))
    }
    for major in sorted(found, key=lambda major: (major != wanted, -major)):
        yield str(found[major])
    yield from (f"libnvrtc.so.{major}" for major in ([wanted] if wanted else [13, 12]))


def _package_folders() -> list[Path]:
    """Return where packages named nvidia-* lie."""
    found = importlib.util.find_spec("nvidia")
    return [Path(place) for place in (found.submodule_search_locations or ())] if found else []


def version() -> str:
    """Return the version of NVRTC, such as "13.0"."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def compile_cubin(source: str, name: str, architecture: int | str) -> bytes:
    """Return the machine code of a source for one architecture, such as 90, or "90a" for what no later one has.

    Raises:
        ModeUnavailableError: NVRTC is not here, or does not know the architecture; the message holds what it says.
    """
    program = ctypes.c_void_p()
    _check("nvrtcCreateProgram", ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
    try:
        options = [*OPTIONS, f"--gpu-architecture=sm_{architecture}"]
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        try:
            _check("nvrtcCompileProgram", program, len(options), given)
        except ModeUnavailableError as error:
            message = f"{error} while it compiled {name} for sm_{architecture}: {_text(program, 'ProgramLog')}"
            raise ModeUnavailableError(message) from error
        return _bytes(program, "CUBIN")
    finally:
        _check("nvrtcDestroyProgram", ctypes.byref(program))


def _bytes(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(f"nvrtcGet{what}Size", program, ctypes.byref(size))
    found = ctypes.create_string_buffer(size.value)
    _check(f"nvrtcGet{what}", program, found)
    return found.raw


def _text(program: ctypes.c_void_p, what: str) -> str:
    return _bytes(program, what).rstrip(b"\0").decode(errors="replace").strip()


def _check(function: str, *arguments: object) -> None:
    status = getattr(library(), function)(*arguments)
    if status:
        explain = library().nvrtcGetErrorString
        explain.restype = ctypes.c_char_p
        message = f"NVRTC: {explain(status).decode()} in {function}"
        raise ModeUnavailableError(message)
