"""Frames: COBS between zero bytes, a header, a payload, a CRC32; and what is between frames.

COBS: S. Cheshire and M. Baker, "Consistent Overhead Byte Stuffing", IEEE/ACM Transactions on Networking 7(2), 1999.
CRC32 is that of ISO 3309 (zlib's).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from .codes import MAX_PAYLOAD, VERSION

HEADER = struct.Struct("<BBHIQ")
"""version, type, sequence number, request id, boot id."""
_CRC = struct.Struct("<I")
_MAX_BODY = HEADER.size + MAX_PAYLOAD + _CRC.size
_MAX_ENCODED = _MAX_BODY + _MAX_BODY // 254 + 1


@dataclass(frozen=True)
class Frame:
    """One frame. ``boot`` is 0 in requests to any boot."""

    type: int
    seq: int
    request: int
    boot: int
    payload: bytes
    version: int = VERSION


def cobs_encode(data: bytes) -> bytes:
    """``data`` without zero bytes, at most one byte in 254 longer (and one)."""
    out = bytearray()
    blocks = data.split(b"\0")
    for index, block in enumerate(blocks):
        while len(block) >= 254:
            out.append(0xFF)
            out += block[:254]
            block = block[254:]
            if not block and index == len(blocks) - 1:
                return bytes(out)
        out.append(len(block) + 1)
        out += block
    return bytes(out)


def cobs_decode(data: bytes) -> bytes:
    """Raises ValueError where ``data`` is not what :func:`cobs_encode` makes."""
    out = bytearray()
    position = 0
    size = len(data)
    while position < size:
        code = data[position]
        end = position + code
        if code == 0 or end > size:
            raise ValueError("not COBS")
        out += data[position + 1 : end]
        position = end
        if code != 0xFF and position < size:
            out.append(0)
    return bytes(out)


def encode(frame: Frame) -> bytes:
    """The frame's bytes on the line, its two delimiters included.

    Raises ValueError for a payload longer than a frame may carry.
    """
    if len(frame.payload) > MAX_PAYLOAD:
        raise ValueError(f"a payload of {len(frame.payload)} bytes; a frame carries at most {MAX_PAYLOAD}")
    body = HEADER.pack(frame.version, frame.type, frame.seq & 0xFFFF, frame.request, frame.boot) + frame.payload
    return b"\0" + cobs_encode(body + _CRC.pack(zlib.crc32(body))) + b"\0"


def decode(encoded: bytes) -> Frame | None:
    """The frame between two delimiters; ``None`` if these bytes are none (text, noise, a damaged frame)."""
    if not HEADER.size + _CRC.size < len(encoded) <= _MAX_ENCODED:
        return None
    try:
        body = cobs_decode(encoded)
    except ValueError:
        return None
    if len(body) < HEADER.size + _CRC.size or _CRC.unpack(body[-4:])[0] != zlib.crc32(body[:-4]):
        return None
    version, type_, seq, request, boot = HEADER.unpack_from(body)
    return Frame(type_, seq, request, boot, body[HEADER.size : -4], version)


class Decoder:
    """Takes bytes as they come; gives frames, and as ``bytes`` what is between them (boot log, panic text, noise).

    Bytes before a delimiter are held until it comes, or until they cannot be a frame any more: a boot log without zero
    bytes is seen when a line of it ends, not at the next frame.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self.damaged = 0
        """Pieces between delimiters that were neither text nor a frame."""

    def feed(self, data: bytes) -> Iterator[Frame | bytes]:
        parts = data.split(b"\0")
        for index, part in enumerate(parts):
            self._held += part
            if index < len(parts) - 1:
                held, self._held = bytes(self._held), bytearray()
                if held:
                    frame = decode(held)
                    if frame is None:
                        self.damaged += not _is_text(held)
                        yield held
                    else:
                        yield frame
        if len(self._held) > _MAX_ENCODED or (self._held.endswith(b"\n") and _is_text(self._held)):
            held, self._held = bytes(self._held), bytearray()
            yield held


def _is_text(data: bytes | bytearray) -> bool:
    """Whether these bytes are lines of a log: printable ASCII, white space, escape sequences for colours."""
    return all(0x20 <= byte < 0x7F or byte in b"\t\r\n\x1b" for byte in data)
