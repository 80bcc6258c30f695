"""Rows of the arrays of an ``.npz`` file, without reading the rest of it.

Members stored uncompressed (``numpy.savez``) are read row by row at their place in the file, so that a large evaluation
set neither fills the board's memory nor shows up in the model's peak memory. Compressed members are read whole.
"""

from __future__ import annotations

import os
import struct
import zipfile
from types import TracebackType
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple, Type

import numpy as np

from .arrays import Array
from .errors import RunnerError


class _Member(NamedTuple):
    dtype: "np.dtype[np.generic]"
    shape: Tuple[int, ...]
    offset: int
    """Of the first byte of data in the file; -1: not readable in place."""


class NpzRows:
    """Arrays by name; ``rows`` returns copies of chosen samples of axis 0.

    Raises:
        RunnerError: ``BadData`` if the file is not an ``.npz`` of plain arrays.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            with zipfile.ZipFile(path) as archive:
                self._members = {
                    info.filename[:-4]: _locate(archive, info)
                    for info in archive.infolist()
                    if info.filename.endswith(".npy")
                }
            self._file = open(path, "rb")
        except (OSError, ValueError, zipfile.BadZipFile, struct.error) as error:
            raise RunnerError("BadData", "the data is not an .npz file of plain arrays: {}".format(error)) from None
        self._whole: Dict[str, Array] = {}

    def __enter__(self) -> NpzRows:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._file.close()

    def names(self) -> List[str]:
        return list(self._members)

    def shape(self, name: str) -> Tuple[int, ...]:
        return self._members[name].shape

    def dtype(self, name: str) -> str:
        return self._members[name].dtype.name

    def rows(self, name: str, indices: Sequence[int]) -> Array:
        """[len(indices), ...] copies, in order."""
        member = self._members[name]
        if member.offset < 0:
            return np.ascontiguousarray(self._array(name)[np.asarray(indices, dtype=np.int64)])
        out = np.empty((len(indices), *member.shape[1:]), dtype=member.dtype)
        size = out[:1].nbytes
        flat = out.reshape(-1).view(np.uint8).data
        at = 0
        while at < len(indices):
            run = 1  # consecutive rows are one read
            while at + run < len(indices) and indices[at + run] == indices[at] + run:
                run += 1
            self._file.seek(member.offset + indices[at] * size)
            target = flat[at * size : (at + run) * size]
            if size and self._file.readinto(target) != len(target):
                raise RunnerError("BadData", "the data file ends inside array {!r}".format(name))
            at += run
        return out

    def _array(self, name: str) -> Array:
        if name not in self._whole:
            try:
                with np.load(self._path, allow_pickle=False) as data:
                    self._whole[name] = data[name]
            except ValueError as error:
                raise RunnerError("BadData", "array {!r} of the data: {}".format(name, error)) from None
        return self._whole[name]


def _locate(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
        head = stream.tell()
    if dtype.hasobject:
        raise ValueError("array {!r} holds Python objects".format(info.filename))
    if info.compress_type != zipfile.ZIP_STORED or fortran or not shape:
        return _Member(dtype, shape, -1)
    with open(os.fspath(archive.filename or ""), "rb") as file:
        file.seek(info.header_offset)
        local = file.read(30)
    name_size, extra_size = struct.unpack("<HH", local[26:30])
    return _Member(dtype, shape, info.header_offset + 30 + name_size + extra_size + head)
