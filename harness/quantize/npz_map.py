"""Arrays of an ``.npz`` without reading them: what is stored uncompressed is mapped into memory."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
"""Fixed part of a ZIP local file header (APPNOTE.TXT 4.3.7); the last two fields are the lengths of name and extra."""


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Name -> array, read-only where mapped. Never unpickles.

    Raises OSError, ValueError, EOFError or :class:`zipfile.BadZipFile` for what is not an ``.npz`` of plain arrays.
    """
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        return {
            info.filename.removesuffix(".npy"): _member(path, archive, file, info)
            for info in archive.infolist()
            if info.filename.endswith(".npy")
        }


def _member(path: Path, archive: zipfile.ZipFile, file: IO[bytes], info: zipfile.ZipInfo) -> npt.NDArray[Any]:
    if info.compress_type != zipfile.ZIP_STORED:
        with archive.open(info) as member:
            return np.asarray(np.lib.format.read_array(member, allow_pickle=False))
    file.seek(info.header_offset)
    *_, name_length, extra_length = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    start = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    file.seek(start)
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = header(file)
    if dtype.hasobject:
        raise ValueError(f"array {info.filename!r} holds Python objects")
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if file.tell() - start + size > info.file_size:
        raise ValueError(f"array {info.filename!r} is truncated")
    if not size:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")
