"""One process per run directory, by an operating-system lock that a killed process cannot leave behind."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from harness.errors import ConfigError

LOCK_NAME = ".lock"


class DirectoryLock:
    """Exclusive ``flock`` on ``FOLDER/.lock``, which holds the holder's process id for people to read."""

    def __init__(self, folder: Path) -> None:
        """Raises :class:`ConfigError` naming the holder where another process has it, or where nothing can
        be written there."""
        self.path = folder / LOCK_NAME
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        except OSError as error:
            raise ConfigError(f"cannot write the run directory: {error.strerror}", where=folder) from error
        try:
            _take(self._fd)
        except OSError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() if os.name != "nt" else ""
            os.close(self._fd)
            raise ConfigError(
                "the run directory is in use" + (f" by process {holder}" if holder else ""),
                where=folder,
                hint="wait for that run to end, or name another --run-dir",
            ) from None
        os.ftruncate(self._fd, 0)
        os.write(self._fd, f"{os.getpid()}\n".encode())
        if hasattr(os, "register_at_fork"):
            # A forked worker that outlives a killed run would otherwise keep the run locked.
            os.register_at_fork(after_in_child=self._forget)

    def release(self) -> None:
        self._forget()

    def _forget(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1


def _take(fd: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
