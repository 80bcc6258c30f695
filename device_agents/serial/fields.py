"""Little-endian fields of payloads, read with bounds."""

from __future__ import annotations

import struct


class Malformed(ValueError):
    """A payload does not hold the fields it must."""


class Fields:
    """Reads a payload from its beginning; every read is checked."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise Malformed(f"a payload of {len(self._data)} bytes ends within a field of {size} at {self._at}")
        piece = self._data[self._at : self._at + size]
        self._at += size
        return piece

    def unpack(self, layout: str) -> tuple[int, ...]:
        """Integers by a :mod:`struct` format without byte order."""
        packed = struct.Struct("<" + layout)
        return packed.unpack(self.take(packed.size))

    def u8(self) -> int:
        return self.unpack("B")[0]

    def u16(self) -> int:
        return self.unpack("H")[0]

    def u32(self) -> int:
        return self.unpack("I")[0]

    def u64(self) -> int:
        return self.unpack("Q")[0]

    def text(self) -> str:
        """A byte with the length, then UTF-8."""
        return self.take(self.u8()).decode("utf-8", "replace")

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)


def text(value: str) -> bytes:
    """What :meth:`Fields.text` reads; cut to 255 bytes."""
    data = value.encode("utf-8")[:255]
    return bytes([len(data)]) + data
