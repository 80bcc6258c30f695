"""One controller per board: an OS lock on the controller's host.

``flock`` on a file, because the kernel frees it however its holder ends. The file says who holds it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from device_agents.contract import AgentError, LeaseLost, LinkError

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

_held: set[int] = set()


def _close_in_child() -> None:
    # A forked child shares the open file description and would keep the lock after its parent's death.
    for descriptor in tuple(_held):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


class BoardLock:
    """The exclusive right of this object to drive the board at ``address`` from this host.

    Two board files with one address share the lock. Not reentrant: a second object in the same process is refused.
    On Windows, which has no ``flock``, it only warns.
    """

    def __init__(self, folder: Path, address: Sequence[str], transport: str = "ssh") -> None:
        self._folder = folder
        name = "-via-".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-") for part in reversed(address))
        self.path = folder / f"{transport}-{name[:200]}.lock"
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def acquire(self) -> None:
        """Takes the lock, or does nothing if this object holds it.

        Raises:
            LeaseLost: another controller holds it; names it.
            LinkError: the lock file cannot be made.
        """
        if self.held:
            return
        if sys.platform == "win32":
            logger.warning("no lock on Windows: make sure that only one boardtune uses %s", self.path.stem)
            return
        while self._descriptor is None:
            descriptor = self._open()
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                refusal = self._refusal(descriptor, error)
                os.close(descriptor)
                raise refusal from error
            # The last holder may have removed the file between our open and our lock: then we hold a ghost.
            if _same_file(descriptor, self.path):
                self._descriptor = descriptor
                _held.add(descriptor)
            else:
                os.close(descriptor)
        holder = {"pid": os.getpid(), "since": datetime.now().astimezone().isoformat(timespec="seconds")}
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(holder).encode(), 0)

    def release(self) -> None:
        """Frees the lock; may be called twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        _held.discard(descriptor)
        with contextlib.suppress(OSError):
            self.path.unlink()  # while still locked, so that nobody can have taken this very file
        os.close(descriptor)

    def _open(self) -> int:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LinkError(
                f"cannot make the board's lock file {self.path}: {error.strerror}",
                hint="the folder must be writable; it belongs to whoever started boardtune there first",
            ) from error

    def _refusal(self, descriptor: int, error: OSError) -> AgentError:
        if not isinstance(error, BlockingIOError):
            return LinkError(f"cannot lock {self.path}: {error.strerror}", hint="is it on a network file system?")
        try:
            holder = json.loads(os.pread(descriptor, 4096, 0))
            who = f"process {holder['pid']} since {holder['since']}"
        except (ValueError, KeyError, TypeError):
            who = "another process"
        return LeaseLost(
            f"another boardtune drives this board: {who}",
            hint="wait for it, or stop it; its lock goes with the process",
            detail=str(self.path),
        )


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
