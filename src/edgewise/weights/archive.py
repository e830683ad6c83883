"""The zip archive in which torch stores a file: one description and the raw bytes of each storage.

Storages are stored as they are and mapped into memory, so that nothing can be larger than it is on disk and a tensor is
read when it is used. This module must not know what the description says.
"""

from __future__ import annotations

import mmap
import struct
import sys
import zipfile
import zlib
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from edgewise.errors import CheckpointError

LARGEST_DESCRIPTION = 64 * 1024**2
"""Bytes; the structure of a real checkpoint takes less than one megabyte."""

LEGACY_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
GIT_LFS_MAGIC = b"version https://git-lfs"
LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Magic, then the lengths of the two strings between a local header and its data."""

DAMAGED = (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OverflowError, struct.error)
"""What `zipfile` raises on directories that are cut or altered; NotImplementedError where an altered byte asks for a version
or a compression that no archive of torch has."""


class TorchArchive:
    """A file that `torch.save` wrote."""

    def __init__(self, path: Path) -> None:
        """Map a file.

        Args:
            path: The file.

        Raises:
            CheckpointError: It cannot be read, is damaged, or is no archive of torch.
        """
        self._path = path
        self._storages: dict[str, Tensor] = {}
        start = b""
        try:
            with path.open("rb") as file:
                start = file.read(64)
                with zipfile.ZipFile(file) as archive:
                    infos = archive.infolist()
                # Private pages: tensors can be written to, the file cannot.
                self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except DAMAGED as error:
            message = f"{path.name} {_what_it_may_be(start)}"
            raise CheckpointError(message) from error
        except OSError as error:
            # Opening says EACCES and the like; a position from a damaged directory says EINVAL once the file is open.
            what = _what_it_may_be(start) if start else f"cannot be read: {error.strerror or error}"
            message = f"{path.name} {what}"
            raise CheckpointError(message) from error
        self._entries = {info.filename: info for info in infos}
        descriptions = [name for name in self._entries if name.endswith("/data.pkl")]
        if len(descriptions) != 1:
            self._fail("is a zip file but holds no checkpoint (no single data.pkl)")
        self._prefix = descriptions[0].removesuffix("data.pkl")
        if len(self._entries) != len(infos) or any(info.compress_type != zipfile.ZIP_STORED for info in infos):
            self._fail("was packed again by another program; torch stores every record once and uncompressed")
        if self._entries[descriptions[0]].file_size > LARGEST_DESCRIPTION:
            self._fail("holds a data.pkl that is larger than any checkpoint's")
        byteorder = self._prefix + "byteorder"
        if byteorder in self._entries and self._memory[self._place(byteorder)] != sys.byteorder.encode():
            self._fail("was written on a machine with another byte order, which is not supported")

    def description(self) -> bytes:
        """Return the pickle stream that describes the contents.

        Raises:
            CheckpointError: It is damaged.
        """
        return self._memory[self._place(self._prefix + "data.pkl")]

    def storage(self, key: str, dtype: torch.dtype, n_values: int) -> Tensor:
        """Return the numbers of a storage.

        Args:
            key: Its name in the description.
            dtype: Type of its numbers.
            n_values: How many it has according to the description.

        Returns:
            [n_values], in the mapped memory of the file.

        Raises:
            CheckpointError: The archive lacks it, or holds it damaged or in another size.
        """
        if key not in self._storages:
            self._storages[key] = self._read(key, dtype, n_values)
        stored = self._storages[key]
        if stored.dtype != dtype or stored.numel() != n_values:
            self._fail(f"uses stored numbers {key!r} with two types or sizes")
        return stored

    def _read(self, key: str, dtype: torch.dtype, n_values: int) -> Tensor:
        name = f"{self._prefix}data/{key}"
        n_bytes = n_values * dtype.itemsize
        if name not in self._entries:
            self._fail(f"lacks the stored numbers {key!r}")
        if self._entries[name].file_size != n_bytes:
            self._fail(f"holds {self._entries[name].file_size} bytes for the stored numbers {key!r}, not {n_bytes}")
        if n_bytes == 0:
            return torch.empty(0, dtype=dtype, device="cpu")
        return torch.frombuffer(self._memory, dtype=dtype, count=n_values, offset=self._place(name).start)

    def _place(self, name: str) -> slice:
        """Return where the bytes of a record stand in the file; they are there and match their checksum."""
        info = self._entries[name]
        header = self._memory[info.header_offset : info.header_offset + LOCAL_HEADER.size]
        if info.header_offset < 0 or len(header) < LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
            self._fail(f"is damaged at the header of {name!r}")
        _, name_length, extra_length = LOCAL_HEADER.unpack(header)
        start = info.header_offset + LOCAL_HEADER.size + name_length + extra_length
        stop = start + info.file_size
        if stop > len(self._memory):
            self._fail(f"is cut short inside {name!r}")
        # torch writes zero where it was told to compute no checksums.
        with memoryview(self._memory) as view, view[start:stop] as part:
            if info.CRC and zlib.crc32(part) != info.CRC:
                self._fail(f"is damaged: the checksum of {name!r} is wrong; copy or download it again")
        return slice(start, stop)

    def _fail(self, what: str) -> NoReturn:
        message = f"{self._path.name} {what}"
        raise CheckpointError(message)


def _what_it_may_be(start: bytes) -> str:
    if start.startswith(LEGACY_MAGIC):
        return "has torch's format from before version 1.6; load it with torch where you trust it and save it again"
    if start.startswith(GIT_LFS_MAGIC):
        return "is a pointer of Git LFS, not the file itself; fetch it with `git lfs pull`"
    if start.startswith(b"\x80"):
        return "is a plain pickle, which torch.save has not written since version 1.6; give a checkpoint of the model"
    return "is not a complete checkpoint: it is cut short, damaged, or not a file that torch.save wrote"
