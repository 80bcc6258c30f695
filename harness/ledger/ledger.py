"""The append-only record of a run: one JSON object per line, each sealed by a chained CRC.

A line is ``{"seq": n, "event": …, "time": …, …, "crc": "xxxxxxxx"}``. ``crc`` is the CRC-32 of the line without
that last member, started from the previous line's CRC, so an edited, removed or reordered line is seen at the
first place where it matters. It protects against accidents (a torn write, an editor, a merge), not against
someone who means to forge it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.errors import BoardtuneError
from harness.failpoints import passing
from harness.ledger.files import fsync_folder, write_atomic
from harness.ledger.plain import plain

log = logging.getLogger(__name__)

Clock = Callable[[], datetime]

_CRC_KEY = b',"crc":"'
_RESERVED = frozenset({"seq", "time", "crc"})


class LedgerError(BoardtuneError):
    """The ledger cannot be written, or is damaged where no crash can have damaged it."""


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class LedgerContents:
    events: tuple[dict[str, Any], ...]
    """In order, each with ``seq`` and ``time``, without ``crc``."""
    valid_bytes: int
    """Length of the part that verifies."""
    torn: bytes
    """What follows it: an unfinished last write, empty normally."""
    last_crc: int


def read_ledger(path: Path) -> LedgerContents:
    """Reads without changing anything, also while another process writes.

    Raises :class:`LedgerError` (``file:line``) where a line other than the last is damaged, and where any
    complete line was edited.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    events: list[dict[str, Any]] = []
    crc = position = 0
    while (end := content.find(b"\n", position)) >= 0:
        line = content[position:end]
        event, crc_found, problem = _parse(line, crc, len(events))
        if event is None:
            at_the_end = end + 1 == len(content)
            if at_the_end and problem == _NOT_JSON:
                break
            raise LedgerError(
                problem,
                where=f"{path}:{len(events) + 1}",
                hint="a crash cannot do this; restore the file, or start a new run in another directory",
            )
        events.append(event)
        crc, position = crc_found, end + 1
    return LedgerContents(tuple(events), position, content[position:], crc)


def seal(event: Mapping[str, Any], seq: int, time: str, crc: int) -> tuple[bytes, int]:
    """The line (newline included) that records ``event``, and its CRC."""
    body = {"seq": seq, "event": event["event"], "time": time, **event}
    text = json.dumps(plain(body), separators=(",", ":"), allow_nan=False).encode("ascii")
    crc = zlib.crc32(text, crc)
    return b'%s,"crc":"%08x"}\n' % (text[:-1], crc), crc


class Ledger:
    """Appends events durably. One writer per file: the run directory's lock sees to that.

    On opening, an unfinished last line is cut off; its bytes are kept beside the ledger
    (``ledger.jsonl.torn-SEQ``) and told in :attr:`notices`. Thread-safe.
    """

    def __init__(self, path: Path, *, clock: Clock = utc_now) -> None:
        """Creates the file if there is none (its folder must exist). Raises :class:`LedgerError`."""
        self.path = path
        self._clock = clock
        self._lock = threading.Lock()
        contents = read_ledger(path)
        self.events = contents.events
        """What the file held when it was opened."""
        self.notices: tuple[str, ...] = ()
        self._seq, self._crc, self._size = len(contents.events), contents.last_crc, contents.valid_bytes
        if contents.torn:
            kept = path.with_name(f"{path.name}.torn-{self._seq}")
            write_atomic(kept, contents.torn)
            self.notices = (
                f"{path.name}: the last line was unfinished (the run was killed while writing it); "
                f"its {len(contents.torn)} bytes are kept in {kept.name}",
            )
            log.warning("%s", self.notices[0])
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        if contents.torn:
            os.ftruncate(self._fd, self._size)
            os.fsync(self._fd)
        fsync_folder(path.parent)

    def append(self, event: Mapping[str, Any]) -> None:
        """Records one event; on return it is on disk. Raises :class:`LedgerError`."""
        self.append_many((event,))

    def now(self) -> str:
        """UTC time as the ledger writes it: ISO 8601, milliseconds, ``Z``."""
        return self._clock().astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def append_many(self, events: Iterable[Mapping[str, Any]], *, time: str | None = None) -> None:
        """Records events with one write and one fsync. A kill may leave any prefix of them."""
        with self._lock:
            if self._fd < 0:
                raise LedgerError("the ledger is closed", where=self.path)
            time = time or self.now()
            seq, crc, lines = self._seq, self._crc, []
            events = tuple(events)
            for event in events:
                passing(f"line.before.{event['event']}")
                if clash := _RESERVED & event.keys():
                    raise LedgerError(f"an event may not carry {sorted(clash)}: {event!r:.200}")
                line, crc = seal(event, seq, time, crc)
                lines.append(line)
                seq += 1
            self._write(b"".join(lines))
            self._seq, self._crc = seq, crc
            for event in events:
                passing(f"line.after.{event['event']}")

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _write(self, data: bytes) -> None:
        if not data:
            return
        try:
            written = os.write(self._fd, data)
            if written != len(data):
                raise OSError(f"only {written} of {len(data)} bytes were written")
            os.fsync(self._fd)
        except OSError as error:
            # A half-written line in the middle would make the whole file unreadable: take it back.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise LedgerError(
                f"cannot record: {error}", where=self.path, hint="free disk space, then go on with --resume"
            ) from error
        self._size += len(data)


_NOT_JSON = "the line is not a complete JSON object"


def _parse(line: bytes, crc: int, seq: int) -> tuple[dict[str, Any] | None, int, str]:
    try:
        event = json.loads(line)
    except ValueError:
        return None, 0, _NOT_JSON
    head, mark, tail = line.rpartition(_CRC_KEY)
    if not isinstance(event, dict) or not mark or tail != b'%s"}' % str(event.get("crc")).encode():
        return None, 0, "the line carries no checksum at its end"
    expected = zlib.crc32(head + b"}", crc)
    if event.pop("crc") != f"{expected:08x}":
        return None, 0, "the checksum does not match: this line was changed, or a line before it removed"
    if event.get("seq") != seq:
        return None, 0, f"the line says seq {event.get('seq')!r} where {seq} is due"
    return event, expected, ""
