"""Nothing disturbs a clock: one timed measurement alone, or any number of workers, on the processors of this host.

A *clock* (a board that shares this host's processors while it times) is exclusive. A *worker* (a quantizer, the
real execution inside an emulated board) is shared and calls :meth:`Work.breathe` between steps, which lets a
waiting clock in. Two ``flock`` files in one folder do it: a clock keeps the turnstile shut from the moment it
waits, so that a stream of workers cannot starve it; the kernel frees both when a process dies, however it dies.

Whoever may disturb another must agree on the folder (it is the caller's business) and be on the same host.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

DEADLINE_S = 3600.0
"""How long :meth:`HostLock.clock` and :meth:`HostLock.work` wait by default, in seconds."""

_POLL_FIRST_S = 0.001
_POLL_LAST_S = 0.02
_open_files: set[int] = set()


def _close_in_child() -> None:
    # A forked child shares the open file description, so it would keep the parent's lock alive. Closing the copy
    # (without unlocking) leaves the lock with the parent alone.
    for descriptor in tuple(_open_files):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _open_files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


class HostBusy(TimeoutError):
    """The lock was not free before the deadline."""


class _File:
    """One ``flock`` file, opened for the time it is wanted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _open_files.add(self._descriptor)

    def try_lock(self, *, exclusive: bool) -> bool:
        if sys.platform == "win32":
            return True
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock(self, *, exclusive: bool, until: float) -> None:
        pause = _POLL_FIRST_S
        while not self.try_lock(exclusive=exclusive):
            if time.monotonic() >= until:
                raise HostBusy(
                    f"{self._path}: another process of this host has been measuring or working until the deadline"
                )
            time.sleep(pause)
            pause = min(pause * 2, _POLL_LAST_S)

    def unlock(self) -> None:
        if sys.platform != "win32":
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        _open_files.discard(self._descriptor)
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


class Work:
    """The shared side, held. Made by :meth:`HostLock.work`."""

    def __init__(self, turnstile: Path, lock: Path, until: float) -> None:
        self._turnstile = turnstile
        self._lock = _File(lock)
        try:
            self._enter(until)
        except BaseException:
            self._lock.close()
            raise

    def _enter(self, until: float) -> None:
        gate = _File(self._turnstile)
        try:
            gate.lock(exclusive=False, until=until)
            self._lock.lock(exclusive=False, until=until)
        finally:
            gate.close()

    def breathe(self, deadline_s: float = DEADLINE_S) -> bool:
        """Lets a waiting clock in and takes the shared side again after it; returns whether one was waiting.

        Costs some microseconds when none waits. Raises :class:`HostBusy` if the clock is not done in time: the
        shared side is then not held any more.
        """
        gate = _File(self._turnstile)
        try:
            if gate.try_lock(exclusive=False):
                return False
        finally:
            gate.close()
        self._lock.unlock()
        self._enter(time.monotonic() + deadline_s)
        return True

    def release(self) -> None:
        self._lock.close()


class _Held(threading.local):
    clock: bool = False
    work: Work | None = None


class HostLock:
    """The lock of one folder. Cheap to make; any number of objects and processes may share a folder.

    Within one thread, :meth:`work` inside :meth:`clock` is part of the timed step and takes nothing; a clock
    inside another clock or inside work could only wait for itself and raises :class:`RuntimeError`.
    """

    def __init__(self, folder: Path) -> None:
        self._turnstile = folder / "turnstile"
        self._lock = folder / "lock"
        self._held = _Held()

    @contextlib.contextmanager
    def clock(self, deadline_s: float = DEADLINE_S) -> Iterator[None]:
        """Holds the host alone. Raises :class:`HostBusy` if workers do not make way before the deadline."""
        if self._held.clock or self._held.work is not None:
            raise RuntimeError("HostLock.clock(): this thread already holds the lock and would wait for itself")
        until = time.monotonic() + deadline_s
        gate = _File(self._turnstile)
        lock = _File(self._lock)
        try:
            # The turnstile stays shut while the clock waits and while it runs.
            gate.lock(exclusive=True, until=until)
            lock.lock(exclusive=True, until=until)
            self._held.clock = True
            yield
        finally:
            self._held.clock = False
            lock.close()
            gate.close()

    @contextlib.contextmanager
    def work(self, deadline_s: float = DEADLINE_S) -> Iterator[HostLock]:
        """Holds the host with other workers; waits while a clock runs or waits. Raises :class:`HostBusy`.

        Call :meth:`breathe` on the value given, between steps that take long.
        """
        if self._held.clock or self._held.work is not None:
            yield self
            return
        work = Work(self._turnstile, self._lock, time.monotonic() + deadline_s)
        self._held.work = work
        try:
            yield self
        finally:
            self._held.work = None
            work.release()

    def breathe(self, deadline_s: float = DEADLINE_S) -> bool:
        """Inside :meth:`work`: lets a waiting clock in (see :meth:`Work.breathe`). Elsewhere does nothing."""
        work = self._held.work
        return work.breathe(deadline_s) if work is not None else False
