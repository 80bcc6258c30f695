"""Watches a board's line: what it says outside frames, and a word for each frame."""

from __future__ import annotations

import time
from collections.abc import Iterator

from device_agents.ssh.lock import BoardLock

from .codes import REPLY, Type
from .frames import Decoder, Frame
from .handshake import lock_address
from .port import Port, SerialTarget, candidates


def watch(target: SerialTarget, seconds: float | None, *, reset: bool = False, frames: bool = False) -> Iterator[str]:
    """Lines as they come, for ``seconds`` (``None``: until the caller stops). Nothing is sent to the board.

    ``reset``: by the control lines, to see its boot. ``frames``: also a line for each frame.

    Raises:
        LeaseLost: another boardtune drives the board.
        LinkError: no such port, busy, gone.
    """
    lock = BoardLock(target.lock_dir, [lock_address(target)], "serial")
    lock.acquire()
    try:
        port = Port(candidates(target)[0], target.baud, target.reset)
        try:
            if reset and not port.reset():
                yield f"({port.name} has no control lines: press the board's reset button)"
            yield from _lines(port, None if seconds is None else time.monotonic() + seconds, frames)
        finally:
            port.close()
    finally:
        lock.release()


def _lines(port: Port, until: float | None, frames: bool) -> Iterator[str]:
    decoder = Decoder()
    text = b""
    while until is None or time.monotonic() < until:
        for item in decoder.feed(port.read()):
            if isinstance(item, Frame):
                if frames:
                    yield _described(item)
                continue
            *lines, text = (text + item).split(b"\n")
            yield from (_readable(line) for line in lines)
    if text:
        yield _readable(text)


def _readable(line: bytes) -> str:
    """Escape sequences for colours and everything else that is no text stay out of the terminal."""
    return "".join(
        character if character.isprintable() else "·" for character in line.decode("utf-8", "replace").rstrip()
    )


def _described(frame: Frame) -> str:
    kind = frame.type & ~REPLY if frame.type < Type.EVENT_LOG or frame.type >= REPLY else frame.type
    name = Type(kind).name if kind in set(Type) else f"type {frame.type:#04x}"
    what = "reply to " if frame.type & REPLY else ""
    return f"[{what}{name}, {len(frame.payload)} bytes, boot {frame.boot:016x}]"
