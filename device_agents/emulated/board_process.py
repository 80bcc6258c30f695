"""Starts the uploaded runner on the emulated board: ``board_process.py MACHINE_FOLDER PYZ LIFE serve|child``.

A small process that hands its standard streams to the board's nursery, waits for the process born there and ends as
that one ends. Where no nursery answers it becomes the runner itself. It imports next to nothing: it starts every time a
model is loaded.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time

_NURSERY_WAIT_S = 20.0
SOCKET = "nursery"


def main(argv: list[str]) -> int:
    connection = _connect(argv[0])
    if connection is None:
        from pathlib import Path

        script = Path(__file__).with_name("nursery.py")
        os.execv(sys.executable, [sys.executable, "-P", str(script), "direct", *argv])
    request = {"argv": argv, "cwd": os.getcwd(), "environ": dict(os.environ)}
    payload = json.dumps(request).encode()
    socket.send_fds(connection, [len(payload).to_bytes(4, "big")], [0, 1, 2])
    connection.sendall(payload)
    # The streams are the other's now: the end of them must be seen when it ends.
    for stream in (0, 1, 2):
        os.close(stream)
    answer = b""
    while chunk := connection.recv(64):
        answer += chunk
    status = int(answer) if answer else 1
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    return status


def _connect(machine: str) -> socket.socket | None:
    """The nursery's socket, waiting for it while the board is still starting; ``None`` if there is none."""
    # By a relative path: those of sockets may only be some hundred characters long.
    here = os.open(".", os.O_RDONLY)
    until = time.monotonic() + _NURSERY_WAIT_S
    try:
        os.chdir(machine)
        while time.monotonic() < until:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(SOCKET)
                return connection
            except OSError:
                connection.close()
            if os.path.exists("no-nursery"):
                return None
            time.sleep(0.01)
        return None
    finally:
        os.fchdir(here)
        os.close(here)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
