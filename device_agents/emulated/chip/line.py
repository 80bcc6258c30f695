"""A serial line between a pty that the agent opens and the board behind it: rate, latency, noise, and its own end.

It stands below everything that must notice what goes wrong on it, and serves any board: the one in Python, the
firmware's build for this computer, QEMU.
"""

from __future__ import annotations

import os
import queue
import random
import select
import termios
import threading
import time
import tty
from collections.abc import Callable

from .spec import Line

_PIECE = 256
_BITS_PER_BYTE = 10
"""Start bit, eight bits, stop bit."""
_RATES = {
    getattr(termios, f"B{rate}"): rate
    for rate in (9600, 19200, 38400, 57600, 115200, 230400, 460800, 921600, 1000000, 1500000, 2000000, 3000000)
}
_LONGEST_QUEUE = 64


class _Direction:
    """Bytes of one direction: read, spoilt, delayed, written."""

    def __init__(self, line: SerialLine, name: str, source: int, write: Callable[[bytes], None]) -> None:
        self._line = line
        self._from = source
        self._write = write
        self._random = random.Random(f"{line.seed} {name}")
        self._due: queue.Queue[tuple[float, bytes] | None] = queue.Queue(_LONGEST_QUEUE)
        for run in (self._take, self._give):
            threading.Thread(target=run, name=f"line {name}", daemon=True).start()

    def _take(self) -> None:
        free = time.monotonic()
        """When the line has sent all it was given."""
        spec = self._line.spec
        while True:
            try:
                # Bytes that are there already have been on the line since it was free, however late this thread runs.
                was_idle = not select.select([self._from], [], [], 0)[0]
                data = os.read(self._from, _PIECE)
            except (OSError, ValueError):
                break
            if not data:
                break
            if spec.paced:
                free = (max(free, time.monotonic()) if was_idle else free) + len(
                    data
                ) * _BITS_PER_BYTE / self._line.baud()
                if (left := free - time.monotonic()) > 0:
                    time.sleep(left)
            self._due.put(((free if spec.paced else time.monotonic()) + spec.latency_ms / 1e3, self._spoilt(data)))
        self._due.put(None)

    def _give(self) -> None:
        while (item := self._due.get()) is not None:
            due, data = item
            if (left := due - time.monotonic()) > 0:
                time.sleep(left)
            try:
                self._write(data)
            except OSError:
                return

    def _spoilt(self, data: bytes) -> bytes:
        if self._line.garbles():
            data = bytes(byte ^ 0xA5 for byte in data)
        for fault in self._line.spec.faults:
            out = bytearray()
            for byte in data:
                if self._random.random() >= fault.per_byte:
                    out.append(byte)
                elif fault.kind == "corrupt":
                    out.append(byte ^ self._random.randrange(1, 256))
                elif fault.kind == "noise":
                    out += self._random.randbytes(self._random.randrange(1, 17))
                    out.append(byte)
            data = bytes(out)
        return data


class SerialLine:
    """``port`` is what the agent opens. ``board_fd`` is the board's end: a socket, or the pty of another process."""

    def __init__(
        self,
        spec: Line,
        board_fd: int,
        seed: int = 0,
        board_baud: Callable[[], int] | None = None,
        baud_to: int | None = None,
    ) -> None:
        """``baud_to``: the pty of a board that looks at the line's rate itself; it is told of changes."""
        self._baud_to = baud_to
        self._told = termios.B115200
        self.spec = spec
        self.seed = seed
        self._board_fd = board_fd
        self._board_baud = board_baud
        self._master, self._slave = os.openpty()
        tty.setraw(self._slave)
        attributes = termios.tcgetattr(self._slave)
        attributes[4] = attributes[5] = termios.B115200
        termios.tcsetattr(self._slave, termios.TCSANOW, attributes)
        self.port = os.ttyname(self._slave)
        master = self._master
        _Direction(self, "to the board", master, self._to_board)
        _Direction(self, "from the board", board_fd, lambda data: _write_all(master, data))

    def baud(self) -> int:
        """The rate the agent set."""
        try:
            return _RATES.get(termios.tcgetattr(self._master)[5], 115200)
        except (OSError, termios.error):
            return 115200

    def garbles(self) -> bool:
        """Whether the two ends disagree about the rate, or it is more than the line carries."""
        rate = self.baud()
        differs = self._board_baud is not None and self._board_baud() != rate
        return differs or (self.spec.clean_baud is not None and rate > self.spec.clean_baud)

    def _to_board(self, data: bytes) -> None:
        if self._baud_to is not None and (rate := termios.tcgetattr(self._master)[5]) != self._told:
            self._told = rate
            attributes = termios.tcgetattr(self._baud_to)
            attributes[4] = attributes[5] = rate
            termios.tcsetattr(self._baud_to, termios.TCSANOW, attributes)
        _write_all(self._board_fd, data)

    def unplug(self) -> None:
        """The port is gone: whoever has it open reads an error."""
        for descriptor in (self._slave, self._master):
            try:
                os.close(descriptor)
            except OSError:
                pass


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
