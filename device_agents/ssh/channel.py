"""A process on the board: its stdin and stdout as byte streams over one SSH channel."""

from __future__ import annotations

import contextlib
import re
import time

import paramiko

from device_agents.contract import BoardUnfit, DeviceTimeout, LinkError
from device_agents.ssh.connection import Connection
from device_agents.ssh.text import printable
from device_agents.transport import Deadline

_SLICE_S = 0.25
"""Between two looks at stderr: what the process prints there shares the channel's window with stdout."""
_BLOCK = 32768 - 64
_TAIL_BYTES = 8192
_SETTLE_S = 2.0
"""For the exit status, or the end of the link, to arrive after the end of the stream."""
_NOT_FOUND_STATUS = (126, 127, 9009)
"""POSIX shells' "cannot be executed" and "not found", and the latter of Windows' cmd."""
_NOT_FOUND_WORDS = re.compile(r"Command not found|is not recognized as", re.IGNORECASE)
"""What csh and PowerShell say, with status 1."""


class SshChannel:
    """Implements :class:`device_agents.transport.Channel`. ``python`` names the interpreter in error messages."""

    def __init__(self, connection: Connection, channel: paramiko.Channel, python: str) -> None:
        self._connection = connection
        self._channel = channel
        self._python = python
        self._stderr = bytearray()
        self._received = False

    def write(self, data: bytes | memoryview, deadline_s: float) -> None:
        deadline = Deadline(deadline_s)
        view = memoryview(data).cast("B")
        self._connection.give_up_at(time.monotonic() + deadline_s)
        try:
            while view:
                sent = self._send(bytes(view[:_BLOCK]), deadline)
                view = view[sent:]
        finally:
            self._connection.give_up_at(None)
        if not self._connection.alive():  # paramiko drops what is sent on a dead link without a word
            raise LinkError("the SSH connection dropped", detail=self.stderr_tail())

    def read(self, size: int, deadline_s: float) -> bytes:
        deadline = Deadline(deadline_s)
        while True:
            self._drain()
            self._channel.settimeout(max(0.001, min(_SLICE_S, deadline.remaining())))
            try:
                data = self._channel.recv(size)
            except TimeoutError as error:
                if deadline.passed:
                    raise DeviceTimeout(
                        f"the process on the board sent nothing for {deadline_s:g} s", detail=self.stderr_tail()
                    ) from error
                continue
            if data:
                self._received = True
                return data
            self._ended()
            return b""

    def stderr_tail(self) -> str:
        self._drain()
        return printable(self._stderr.decode("utf-8", "replace"))

    def exit_status(self) -> int | None:
        if not self._channel.status_event.is_set() or self._channel.exit_status < 0:
            return None
        return self._channel.exit_status

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()

    def _send(self, data: bytes, deadline: Deadline) -> int:
        while True:
            self._drain()
            self._channel.settimeout(max(0.001, min(_SLICE_S, deadline.remaining())))
            try:
                sent = self._channel.send(data)
            except TimeoutError as error:
                if deadline.passed:
                    raise DeviceTimeout(
                        f"the process on the board took no data for {deadline.seconds:g} s", detail=self.stderr_tail()
                    ) from error
                continue
            except (OSError, EOFError, paramiko.SSHException) as error:
                if deadline.passed:  # the network took nothing until now, and the guard gave up
                    raise DeviceTimeout(f"the board took no data within {deadline.seconds:g} s") from error
                raise self._gone(str(error) or type(error).__name__) from error
            if sent == 0:
                raise self._gone("its input is closed")
            return sent

    def _gone(self, why: str) -> LinkError:
        status = self.exit_status()
        ended = f"ended with exit status {status}" if status is not None else "cannot be reached"
        return LinkError(f"the process on the board {ended} ({why})", detail=self.stderr_tail())

    def _ended(self) -> None:
        """Tells a process that ended from a link that dropped, and both from a Python that is not there."""
        until = time.monotonic() + _SETTLE_S
        while self._connection.alive() and not self._channel.status_event.is_set() and time.monotonic() < until:
            time.sleep(0.01)
        status = self.exit_status()
        if status is None and not self._connection.alive():
            raise LinkError("the SSH connection dropped", detail=self.stderr_tail())
        tail = self.stderr_tail()
        if self._received or not status:
            return
        if status in _NOT_FOUND_STATUS or _NOT_FOUND_WORDS.search(tail):
            said = (tail.strip().splitlines() or ["no such program"])[-1]
            raise BoardUnfit(
                f"cannot run {self._python!r} on the board (exit status {status}): {said}",
                hint="install Python there (sudo apt install python3), or name another as python in the board file",
                detail=tail,
            )

    def _drain(self) -> None:
        while self._channel.recv_stderr_ready():
            self._stderr += self._channel.recv_stderr(1 << 16)
            del self._stderr[:-_TAIL_BYTES]
