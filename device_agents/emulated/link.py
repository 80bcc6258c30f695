"""A TCP socket of the emulated board, with what can go wrong on the way to it."""

from __future__ import annotations

import socket
import time
from typing import Any

from .machine import Machine


class Link:
    """What paramiko's Transport needs of a socket. Counts what comes in, and drops or slows the line as planted."""

    def __init__(self, raw: socket.socket, machine: Machine) -> None:
        self._raw = raw
        self._machine = machine
        self._received = 0
        self._drop = machine.planted("drop")
        self._slow = machine.planted("slow_link")

    def recv(self, size: int) -> bytes:
        data = self._raw.recv(size)
        self._received += len(data)
        if self._slow is not None:
            time.sleep(len(data) / (self._slow.kb_per_s * 1e3))
        if self._drop is not None and self._received > self._drop.after_bytes and self._machine.strike("drop"):
            self._drop = None
            self.close()
            return b""
        return data

    def send(self, data: Any) -> int:
        return self._raw.send(data)

    def sendall(self, data: Any) -> None:
        self._raw.sendall(data)

    def settimeout(self, seconds: float | None) -> None:
        self._raw.settimeout(seconds)

    def setsockopt(self, *arguments: Any) -> None:
        self._raw.setsockopt(*arguments)

    def getpeername(self) -> Any:
        return self._raw.getpeername()

    def fileno(self) -> int:
        return self._raw.fileno()

    def close(self) -> None:
        try:
            self._raw.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._raw.close()
