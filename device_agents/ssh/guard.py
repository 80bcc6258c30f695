"""Waits that end: calls that take no deadline of their own are given one here."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import paramiko

_T = TypeVar("_T")

STALL_S = 60.0
"""A link that takes not one byte for so long is dead."""
_TRY_AGAIN = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR)


def within(seconds: float, call: Callable[[], _T]) -> _T:
    """``call()`` in a thread that is abandoned after ``seconds``, for library calls that cannot be interrupted.

    Raises:
        TimeoutError: it did not return in time. Else whatever ``call`` raises.
    """
    outcome: list[_T] = []
    failure: list[Exception] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as error:  # handed to the caller below
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True, name="bounded-call")
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if not outcome:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return outcome[0]


class GuardedSocket:
    """A socket (or tunnelled channel) whose ``send`` gives up.

    paramiko retries a write for ever while the peer takes nothing. Here a write that makes no progress for ``stall_s``,
    or is still waiting at ``give_up_at`` (monotonic seconds), fails, and paramiko ends the connection. ``ended`` says
    that the link is over: paramiko calls its connection active for a moment after it has failed its channels.
    """

    def __init__(self, link: socket.socket | paramiko.Channel) -> None:
        self._link = link
        self._waiting_since: float | None = None
        self.stall_s = STALL_S
        self.give_up_at: float | None = None
        self.ended = False

    def send(self, data: bytes) -> int:
        try:
            sent = self._link.send(data)
        except TimeoutError:
            now = time.monotonic()
            if self._waiting_since is None:
                self._waiting_since = now
            late = self.give_up_at is not None and now > self.give_up_at
            if late or now - self._waiting_since > self.stall_s:
                self.ended = True
                raise ConnectionAbortedError("the other side takes no data") from None
            raise
        except OSError as error:
            self.ended = error.errno not in _TRY_AGAIN
            raise
        self._waiting_since = None
        return sent

    def recv(self, size: int) -> bytes:
        try:
            data = self._link.recv(size)
        except TimeoutError:
            raise
        except OSError as error:
            self.ended = error.errno not in _TRY_AGAIN
            raise
        self.ended = self.ended or (not data and size > 0)
        return data

    def settimeout(self, seconds: float | None) -> None:
        self._link.settimeout(seconds)

    def getpeername(self) -> object:
        return self._link.getpeername()

    def fileno(self) -> int:
        return self._link.fileno()

    def close(self) -> None:
        self.ended = True
        if isinstance(self._link, socket.socket):
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()


def wire_log() -> str:
    """Name of the logger paramiko writes to: silent until somebody sets its level, as we report in our own words."""
    logger = logging.getLogger("device_agents.ssh.wire")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
    return logger.name
