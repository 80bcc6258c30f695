"""Reading FlatBuffers without trusting them: every offset and length is checked before it is followed.

The format is that of https://flatbuffers.dev/internals/: little-endian, tables found by unsigned forward offsets,
fields by a table of 16-bit offsets that precedes or follows them. The ``flatbuffers`` package is not used because it
follows whatever offset it finds and ends in exceptions of ``struct`` and numpy.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from device_agents.emulated.espdl.errors import MalformedModel

_SCALARS: Final = {name: struct.Struct("<" + name) for name in "bBhHiIqQfd"}


class Buffer:
    """The bytes of one flatbuffer, and how many tables may still be read from it.

    A vector may name one table many times, and that table another vector: without a limit a small file costs
    arbitrary time.
    """

    def __init__(self, data: bytes | memoryview, origin: int = 0) -> None:
        self.data = memoryview(data)
        self.origin = origin
        """Offset of ``data`` in the file, for error messages."""
        self.tables_left = len(self.data) // 4 + 64

    def fail(self, place: str, offset: int, why: str) -> MalformedModel:
        return MalformedModel(
            f"malformed .espdl: {place} at byte {self.origin + offset}: {why}",
            hint="the file is truncated or corrupted; export it again and compare its size and digest",
        )

    def scalar(self, kind: str, offset: int, place: str) -> int | float:
        form = _SCALARS[kind]
        if offset < 0 or offset + form.size > len(self.data):
            raise self.fail(place, offset, f"{form.size} bytes are past the end ({len(self.data)} bytes)")
        value: int | float = form.unpack_from(self.data, offset)[0]
        return value

    def integer(self, kind: str, offset: int, place: str) -> int:
        return int(self.scalar(kind, offset, place))

    def follow(self, offset: int, place: str) -> int:
        """Where the unsigned offset stored at ``offset`` points."""
        return offset + self.integer("I", offset, place)

    def root(self, place: str) -> Table:
        return Table(self, self.follow(0, place), place)

    def vector(self, offset: int, size: int, place: str) -> tuple[int, int]:
        """Start and length of the vector there, of elements of ``size`` bytes."""
        count = self.integer("I", offset, place)
        start = offset + 4
        if start + count * size > len(self.data):
            raise self.fail(place, offset, f"{count} elements of {size} bytes are past the end")
        return start, count


class Table:
    """One table. Fields are numbered in the order of the schema."""

    def __init__(self, buffer: Buffer, offset: int, place: str) -> None:
        buffer.tables_left -= 1
        if buffer.tables_left < 0:
            raise buffer.fail(place, offset, "more tables than the file has room for")
        self.buffer, self.offset, self.place = buffer, offset, place
        vtable = offset - buffer.integer("i", offset, place)
        size = buffer.integer("H", vtable, f"{place} (its vtable)")
        if size < 4 or size % 2 or vtable + size > len(buffer.data):
            raise buffer.fail(place, vtable, f"a vtable of {size} bytes")
        self._fields = struct.unpack_from(f"<{size // 2 - 2}H", buffer.data, vtable + 4)

    def _at(self, field: int) -> int | None:
        if field >= len(self._fields) or not self._fields[field]:
            return None
        return self.offset + int(self._fields[field])

    def scalar(self, field: int, kind: str, name: str, default: int = 0) -> int:
        at = self._at(field)
        return default if at is None else self.buffer.integer(kind, at, f"{self.place}.{name}")

    def float32(self, field: int, name: str) -> float:
        """A struct of one float."""
        at = self._at(field)
        return 0.0 if at is None else float(self.buffer.scalar("f", at, f"{self.place}.{name}"))

    def table(self, field: int, name: str) -> Table | None:
        at = self._at(field)
        place = f"{self.place}.{name}"
        return None if at is None else Table(self.buffer, self.buffer.follow(at, place), place)

    def _vector(self, field: int, size: int, name: str) -> tuple[int, int, str] | None:
        at = self._at(field)
        if at is None:
            return None
        place = f"{self.place}.{name}"
        start, count = self.buffer.vector(self.buffer.follow(at, place), size, place)
        return start, count, place

    def bytes_(self, field: int, name: str, element: int = 1) -> memoryview:
        """A vector of scalars or structs of ``element`` bytes, as it lies there; empty when absent."""
        found = self._vector(field, element, name)
        if found is None:
            return memoryview(b"")
        start, count, _ = found
        return self.buffer.data[start : start + count * element]

    def text(self, field: int, name: str) -> str:
        raw = bytes(self.bytes_(field, name))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.buffer.fail(f"{self.place}.{name}", self.offset, f"text that is not UTF-8: {error}") from None

    def integers(self, field: int, name: str) -> tuple[int, ...]:
        """A vector of 64-bit integers."""
        return tuple(np.frombuffer(self.bytes_(field, name, 8), "<i8").tolist())

    def array(self, field: int, kind: npt.DTypeLike, name: str) -> npt.NDArray[np.generic]:
        dtype = np.dtype(kind)
        return np.frombuffer(self.bytes_(field, name, dtype.itemsize), dtype)

    def texts(self, field: int, name: str) -> tuple[str, ...]:
        return tuple(self._texts(field, name))

    def _texts(self, field: int, name: str) -> Iterator[str]:
        found = self._vector(field, 4, name)
        if found is None:
            return
        start, count, place = found
        for index in range(count):
            where = f"{place}[{index}]"
            at = self.buffer.follow(start + 4 * index, where)
            begin, length = self.buffer.vector(at, 1, where)
            self.buffer.tables_left -= 1
            if self.buffer.tables_left < 0:
                raise self.buffer.fail(where, at, "more texts than the file has room for")
            try:
                yield bytes(self.buffer.data[begin : begin + length]).decode()
            except UnicodeDecodeError as error:
                raise self.buffer.fail(where, at, f"text that is not UTF-8: {error}") from None

    def tables(self, field: int, name: str) -> Iterator[Table]:
        found = self._vector(field, 4, name)
        if found is None:
            return
        start, count, place = found
        for index in range(count):
            where = f"{place}[{index}]"
            yield Table(self.buffer, self.buffer.follow(start + 4 * index, where), where)
