"""A process of this machine as a :class:`~device_agents.transport.Channel`, in a process group of its own."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
from typing import IO

from device_agents.contract import DeviceTimeout, LinkError
from device_agents.transport import Deadline

_STDERR_BYTES = 16 * 1024
_END_S = 2.0
"""How long a process may take to end by itself once its input is closed."""


class LocalChannel:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._stdin, self._stdout = _descriptor(process.stdin), _descriptor(process.stdout)
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        self._tail = b""
        self._drain = threading.Thread(target=self._read_stderr, args=(_descriptor(process.stderr),), daemon=True)
        self._drain.start()
        self._open = True

    def write(self, data: bytes | memoryview, deadline_s: float) -> None:
        deadline = Deadline(deadline_s)
        view = memoryview(data)
        while view:
            self._wait(self._stdin, select.POLLOUT, deadline)
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise LinkError(f"the process is gone: {error.strerror}", detail=self.stderr_tail()) from error

    def read(self, size: int, deadline_s: float) -> bytes:
        deadline = Deadline(deadline_s)
        while True:
            self._wait(self._stdout, select.POLLIN, deadline)
            try:
                return os.read(self._stdout, size)
            except BlockingIOError:
                continue
            except OSError as error:
                raise LinkError(f"the process is gone: {error.strerror}", detail=self.stderr_tail()) from error

    def stderr_tail(self) -> str:
        if self.exit_status() is not None:
            self._drain.join(timeout=1.0)
        return self._tail.decode("utf-8", "replace")

    def exit_status(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            # Its streams end a moment before it does.
            return self._process.wait(timeout=0.2)
        return None

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            pass
        # Also when it has ended: its children are in the group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_S)
        self._drain.join(timeout=1.0)
        if self._process.stderr is not None and not self._drain.is_alive():
            self._process.stderr.close()

    def _wait(self, descriptor: int, event: int, deadline: Deadline) -> None:
        if not self._open:
            raise LinkError("the channel is closed")
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(1.0, deadline.remaining() * 1000)):
            raise DeviceTimeout(f"nothing moved for {deadline.seconds:g} s")

    def _read_stderr(self, descriptor: int) -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(descriptor, 4096):
                self._tail = (self._tail + chunk)[-_STDERR_BYTES:]


def _descriptor(stream: IO[bytes] | None) -> int:
    if stream is None:
        raise LinkError("the process has no pipe")
    return stream.fileno()
