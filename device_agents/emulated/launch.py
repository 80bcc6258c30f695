"""Starts the emulated board's server process and ends it."""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import paramiko

from device_agents.contract import DeviceTimeout, LinkError

from .machine import Machine
from .spec import EmulatedSpec

logger = logging.getLogger(__name__)

_LOG_TAIL = 4000


@dataclass(frozen=True)
class Address:
    port: int
    host_key: str
    """``ALGORITHM BASE64``."""


class ServerProcess:
    """The server of one board. ``root`` holds the board: ``home``, ``machine``, ``client_key``, ``server.log``."""

    def __init__(self, root: Path, process: subprocess.Popen[bytes], address: Address) -> None:
        self.root = root
        self.address = address
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self, *, suspend: bool) -> None:
        """Ends the server and what it started; never raises. ``suspend``: the next launch goes on with this boot."""
        if suspend and self.alive():
            Machine.suspend(self.root / "machine")
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError:
                pass
        try:
            self._process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=10.0)
        if self._process.stdout is not None:
            self._process.stdout.close()


def client_key(root: Path) -> Path:
    """The private key that opens the board, made if it is not there."""
    path = root / "client_key"
    if not path.exists():
        paramiko.ECDSAKey.generate().write_private_key_file(str(path))
    return path


def launch(name: str, spec: EmulatedSpec, root: Path, host_lock: Path | None, deadline_s: float) -> ServerProcess:
    """Switches the board on and waits until it listens.

    Raises:
        DeviceTimeout: it did not before the deadline.
        LinkError: it ended at once; the log's tail is in ``detail``.
    """
    until = time.monotonic() + deadline_s
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    (root / "home").mkdir(exist_ok=True, mode=0o700)
    client_key(root)
    Machine.switch_on(root / "machine", spec, name, host_lock)
    log = root / "server.log"
    script = Path(__file__).with_name("server.py")
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", str(script), str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
        )
    try:
        line = _first_line(process, until)
    except BaseException:
        process.kill()
        process.wait(timeout=10.0)
        raise
    if line is None:
        process.kill()
        process.wait(timeout=10.0)
        tail = log.read_text(errors="replace")[-_LOG_TAIL:]
        if time.monotonic() >= until:
            raise DeviceTimeout(f"the emulated board did not start within {deadline_s:g} s", board=name, detail=tail)
        raise LinkError("the emulated board's server ended at once", board=name, hint=f"see {log}", detail=tail)
    return ServerProcess(root, process, Address(int(str(line["port"])), str(line["host_key"])))


def _first_line(process: subprocess.Popen[bytes], until: float) -> dict[str, object] | None:
    if process.stdout is None:
        return None
    text = b""
    while not text.endswith(b"\n"):
        readable, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
        if not readable:
            return None
        chunk = os.read(process.stdout.fileno(), 4096)
        if not chunk:
            return None
        text += chunk
    line: dict[str, object] = json.loads(text)
    return line
