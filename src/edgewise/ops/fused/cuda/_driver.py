"""Launches of machine code through the CUDA driver, which is there wherever torch sees a GPU."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from edgewise.errors import ModeUnavailableError

Grid = tuple[int, int, int]

Argument = Tensor | int | float

MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
"""The driver's number for what a kernel may be launched with."""

ALWAYS_SHARED = 48 * 1024
"""Bytes of shared memory that a block may have without being allowed to."""


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        message = f"the CUDA driver cannot be loaded: {error}"
        raise ModeUnavailableError(message) from error


class Kernel:
    """One function of a piece of machine code; any number of devices of its architecture can run it."""

    def __init__(self, code: bytes, name: str) -> None:
        """Load the code.

        Raises:
            ModeUnavailableError: The driver does not take it.
        """
        self._code = code  # the driver reads it again for every device
        library, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        _check("cuLibraryLoadData", ctypes.byref(library), code, None, None, 0, None, None, 0)
        _check("cuLibraryGetKernel", ctypes.byref(self._function), library, name.encode())
        self._allowed: dict[int, int] = {}

    def launch(
        self, device: torch.device, grid: Grid, threads: int, arguments: Sequence[Argument], shared_bytes: int = 0
    ) -> None:
        """Put a launch into torch's current stream; CUDA graphs record it.

        Args:
            device: Where the tensors are.
            grid: Blocks along each axis.
            threads: Of a block.
            arguments: Tensors, whose places are passed on, and numbers of 32 bits.
            shared_bytes: Shared memory of a block beyond what the kernel declares.

        Raises:
            ModeUnavailableError: The driver refuses.
        """
        values = Arguments(arguments)
        with torch.cuda.device(device):
            self._allow(torch.cuda.current_device(), shared_bytes)
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            _check("cuLaunchKernel", self._function, *grid, threads, 1, 1, shared_bytes, stream, values.pointers, None)

    def _allow(self, number: int, shared_bytes: int) -> None:
        """Let blocks on a device have that much shared memory."""
        if self._allowed.get(number, ALWAYS_SHARED) >= shared_bytes:
            return
        device = ctypes.c_int()
        _check("cuDeviceGet", ctypes.byref(device), number)
        _check("cuKernelSetAttribute", MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes, self._function, device)
        self._allowed[number] = shared_bytes


class Arguments:
    """Arguments as the driver takes them: an array of pointers to values, which live as long as this does."""

    def __init__(self, arguments: Sequence[Argument]) -> None:
        """Keep the values."""
        self.values = [_value(item) for item in arguments]
        self.pointers = (ctypes.c_void_p * len(self.values))(*map(ctypes.addressof, self.values))


def _value(item: Argument) -> ctypes.c_void_p | ctypes.c_int32 | ctypes.c_float:
    if isinstance(item, Tensor):
        return ctypes.c_void_p(item.data_ptr())
    return ctypes.c_float(item) if isinstance(item, float) else ctypes.c_int32(item)


def _check(function: str, *arguments: object) -> None:
    status = getattr(_driver(), function)(*arguments)
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        message = f"the CUDA driver says {(text.value or b'nothing').decode()!r} ({status}) in {function}"
        raise ModeUnavailableError(message)
