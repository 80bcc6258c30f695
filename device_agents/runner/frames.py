"""Frames: u32 big-endian header length, JSON header, then the blobs whose sizes the header gives in ``blobs``.

Used on both ends of both wires (controller <-> serve, serve <-> child). Standard library only.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Callable, Dict, List, Sequence, Tuple, Union

MARKER = b"\x00\xffboardtune-runner/1\n"
"""What ``serve`` prints before its first frame; login-shell noise may come before it."""

MAX_NOISE = 64 * 1024
MAX_HEADER = 8 << 20
MAX_BLOBS = 4096
MAX_BLOB_BYTES = 2 << 30
"""Of all blobs of a frame together."""

_LENGTH = struct.Struct(">I")

Buffer = Union[bytes, bytearray, memoryview]
Header = Dict[str, Any]
ReadExact = Callable[[int], Buffer]
"""Reads exactly so many bytes or raises."""


class FrameError(Exception):
    """The stream does not hold a frame: sizes out of bounds, not JSON, not an object."""


def encode(header: Header, blobs: Sequence[Buffer] = ()) -> List[Buffer]:
    """Buffers to write one after the other.

    Raises:
        FrameError: the frame would be larger than the other end accepts.
    """
    sizes = [memoryview(blob).nbytes for blob in blobs]
    text = json.dumps(dict(header, blobs=sizes), separators=(",", ":"), allow_nan=False).encode("utf-8")
    check_sizes(len(text), sizes)
    # Small blobs travel with the header: one write, one packet.
    head: List[Buffer] = [_LENGTH.pack(len(text)) + text]
    for blob, size in zip(blobs, sizes):
        if size:
            head.append(memoryview(blob).cast("B"))
    if len(head) > 1 and sum(sizes) <= 64 * 1024:
        return [b"".join(bytes(part) for part in head)]
    return head


def read_frame(read_exact: ReadExact) -> Tuple[Header, List[Buffer]]:
    """The next frame.

    Raises:
        FrameError: sizes out of bounds or not a header.
    """
    (length,) = _LENGTH.unpack(read_exact(_LENGTH.size))
    if not 2 <= length <= MAX_HEADER:
        raise FrameError("header of {} bytes; 2 to {} are allowed".format(length, MAX_HEADER))
    try:
        header = json.loads(bytes(read_exact(length)).decode("utf-8"))
    except ValueError as error:
        raise FrameError("header is not JSON: {}".format(error)) from None
    if not isinstance(header, dict):
        raise FrameError("header is not a JSON object")
    sizes = header.pop("blobs", [])
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise FrameError("blobs is not a list of sizes")
    check_sizes(length, sizes)
    return header, [read_exact(size) if size else b"" for size in sizes]


def check_sizes(header: int, blobs: Sequence[int]) -> None:
    """Raises FrameError if a frame of these sizes is not allowed."""
    if header > MAX_HEADER:
        raise FrameError("header of {} bytes; at most {} are allowed".format(header, MAX_HEADER))
    if len(blobs) > MAX_BLOBS:
        raise FrameError("{} blobs; at most {} are allowed".format(len(blobs), MAX_BLOBS))
    if sum(blobs) > MAX_BLOB_BYTES:
        raise FrameError("blobs of {} bytes together; at most {} are allowed".format(sum(blobs), MAX_BLOB_BYTES))
