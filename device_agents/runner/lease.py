"""Who drives this board: an OS lock that dies with its process, and a fencing token.

The lock file is held by the runner for its whole life, so that a dead runner's lease is free at once. The token grows
with every taking; a runner whose token is no longer the one on disk has lost the board (the folder was replaced, say).
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Dict, Optional

from .errors import RunnerError
from .store import write_atomically

_LOCK, _INFO = "lease.lock", "lease.json"


class Lease:
    def __init__(self, folder: str) -> None:
        self._lock_path = os.path.join(folder, _LOCK)
        self._info_path = os.path.join(folder, _INFO)
        self._descriptor: Optional[int] = None
        self._info: Dict[str, Any] = {}

    @property
    def token(self) -> Optional[int]:
        return self._info.get("token")

    def try_take(self, controller: str, holder: str, boot_id: str) -> bool:
        """``controller``: unique id of the agent; ``holder``: who that is, in words."""
        if self._descriptor is not None:
            return True
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        if not _lock(descriptor):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        self._info = {
            "token": int(self.holder().get("token", 0)) + 1,
            "controller": controller,
            "holder": holder,
            "pid": os.getpid(),
            "boot_id": boot_id,
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "orphan": False,
        }
        self._write()
        return True

    def busy(self) -> bool:
        """Whether another living runner holds the board."""
        if self._descriptor is not None:
            return False
        try:
            descriptor = os.open(self._lock_path, os.O_RDWR)
        except OSError:
            return False
        try:
            return not _lock(descriptor)
        finally:
            os.close(descriptor)

    def holder(self) -> Dict[str, Any]:
        """What the last taker wrote; empty if nothing readable is there."""
        try:
            with open(self._info_path, encoding="utf-8") as file:
                value = json.load(file)
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def check(self) -> None:
        """Raises LeaseLost if this runner does not hold the board (any more)."""
        if self._descriptor is None:
            raise RunnerError("LeaseLost", "this connection does not hold the board", hint="say hello first")
        now = self.holder()
        if not self._is_mine(now):
            raise RunnerError("LeaseLost", "the board was taken by {}".format(describe(now)))

    def mark_orphan(self) -> None:
        """The controller is gone; this runner only finishes what it has in hand."""
        if self._descriptor is not None and self._is_mine(self.holder()):
            self._info["orphan"] = True
            self._write()

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _is_mine(self, info: Dict[str, Any]) -> bool:
        # Not the token alone: in a new folder it starts again.
        return all(info.get(key) == self._info[key] for key in ("token", "controller", "pid"))

    def _write(self) -> None:
        write_atomically(self._info_path, [json.dumps(self._info).encode("utf-8")])


def describe(holder: Dict[str, Any]) -> str:
    return "{} (since {})".format(holder.get("holder", "another controller"), holder.get("since", "an unknown time"))


def _lock(descriptor: int) -> bool:
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
