"""How bytes reach a board that runs the runner: the seam between :class:`RunnerAgent` and SSH, local, ….

A transport opens a link, takes an exclusive lock on the controller's host, moves files into the board's *work
folder* and starts the board's Python there. It knows nothing of models or of the runner's protocol.

Paths on the board are relative to the work folder, use ``/`` and are built from ``[A-Za-z0-9._/-]`` only, never
from user text (:func:`checked_relpath`). Deadlines are seconds from the call; every wait has one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

_RELPATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")


def checked_relpath(relpath: str) -> str:
    """``relpath`` itself if it may be used on a board.

    Raises:
        ValueError: absolute, with ``..``, a leading dash or dot, or a character outside ``[A-Za-z0-9._/-]``.
    """
    if not _RELPATH.fullmatch(relpath) or ".." in relpath:
        raise ValueError(f"not a path inside the board's work folder: {relpath!r}")
    return relpath


class Deadline:
    """A point in the controller's monotonic time that a chain of waits shares."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        """What was asked for; for messages."""
        self._at = time.monotonic() + seconds

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._at - time.monotonic())

    @property
    def passed(self) -> bool:
        return self.remaining() == 0.0


class Channel(Protocol):
    """A running process on the board: its stdin and stdout as byte streams, its stderr kept aside."""

    def write(self, data: bytes | memoryview, deadline_s: float) -> None:
        """Writes all of ``data``.

        Raises:
            LinkError: the process or the link is gone.
            DeviceTimeout: not all was taken before the deadline.
        """

    def read(self, size: int, deadline_s: float) -> bytes:
        """1 to ``size`` bytes, as soon as there are any; ``b""`` at the end of the stream.

        Raises:
            LinkError: the link is gone.
            DeviceTimeout: nothing came before the deadline.
        """

    def stderr_tail(self) -> str:
        """The last few kB the process wrote to stderr, for error messages."""

    def exit_status(self) -> int | None:
        """Exit status once known (127: the program was not found), ``None`` while running or unknown."""

    def close(self) -> None:
        """Closes stdin and stdout and lets go of the process; never raises, may be called twice."""


class Transport(Protocol):
    """A link to one board. Not thread-safe. ``open`` again after a drop makes a new link under the same lock."""

    def open(self, deadline_s: float) -> None:
        """Takes the controller-host lock of this board (kept until :meth:`close`) and makes the link.

        Raises:
            LinkError: refused, unreachable, authentication rejected.
            LeaseLost: another process on this host drives the board.
            Untrusted: the board's host key is unknown or changed.
            BoardUnfit: the work folder cannot be made or written.
            DeviceTimeout: no answer before the deadline.
        """

    def file_size(self, relpath: str) -> int | None:
        """Bytes, or ``None`` if there is no such file."""

    def upload(self, local: Path, relpath: str, offset: int, deadline_s: float) -> int:
        """Writes ``local`` from byte ``offset`` on to the same place in ``relpath``; returns the bytes sent.

        Offset 0 truncates. Creates parent folders. Not atomic: the runner verifies and renames.
        On :class:`LinkError` what arrived stays, so that the caller can resume from :meth:`file_size`.

        Raises:
            LinkError, DeviceTimeout, BoardUnfit (disk full, no write access).
        """

    def write_file(self, relpath: str, data: bytes) -> None:
        """Writes a small file whole: under another name first, then renamed. Creates parent folders."""

    def start(self, args: Sequence[str], deadline_s: float) -> Channel:
        """Runs the board's Python with ``args`` in the work folder. No shell sees text from outside.

        Raises:
            LinkError, DeviceTimeout, BoardUnfit (no such Python).
        """

    def connected(self) -> bool:
        """Whether the link was alive when last seen."""

    def close(self) -> None:
        """Drops the link and frees the lock; never raises, may be called twice."""
