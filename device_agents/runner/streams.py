"""The standard streams as a frame channel that nobody else can write into."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Iterator, Tuple

from .frames import Buffer


class EndOfStream(Exception):
    """The other end closed the stream."""


def claim_standard_streams() -> Tuple[int, int]:
    """(input, output) descriptors for frames.

    Descriptors 0 and 1 are taken away from everyone else: native libraries print to descriptor 1 at will, which now is
    stderr, and a child of ours cannot eat our input.
    """
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(source, os.O_BINARY)
        msvcrt.setmode(sink, os.O_BINARY)
    return source, sink


@contextlib.contextmanager
def errors_into(path: str) -> Iterator[None]:
    """What anyone in this process writes to stderr, native libraries too, goes into a file; after a failure on to where
    it was meant to go, its end at least."""
    kept = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, 2)
    os.close(file)
    try:
        yield
    except BaseException:
        with open(path, "rb") as log:
            log.seek(max(0, os.path.getsize(path) - 8192))
            write_all(kept, log.read())
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def read_exact(descriptor: int, size: int) -> Buffer:
    """Raises EndOfStream if the stream ends first."""
    if size <= 65536:
        data = os.read(descriptor, size)
        if len(data) == size:
            return data
    else:
        data = b""
    whole = bytearray(size)
    whole[: len(data)] = data
    view = memoryview(whole)
    at = len(data)
    if not data and size <= 65536:
        raise EndOfStream
    while at < size:
        chunk = os.read(descriptor, min(size - at, 1 << 20))
        if not chunk:
            raise EndOfStream
        view[at : at + len(chunk)] = chunk
        at += len(chunk)
    return whole


def write_all(descriptor: int, data: Buffer) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view[: 1 << 20]) :]
