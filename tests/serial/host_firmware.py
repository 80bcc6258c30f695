"""The firmware as a process on a pty, for tests."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from device_agents.serial.port import SerialTarget

MAC = "02:00:00:00:00:01"


def builds_folder(some_temporary: Path) -> Path:
    """Where builds of the firmware are kept from run to run, by digest of its sources: beside pytest's own folders."""
    base = next((p for p in some_temporary.parents if p.name.startswith("pytest-of-")), some_temporary)
    return base / "boardtune-firmware"


@dataclass
class Board:
    """A running firmware; ``port`` is the line's other end."""

    process: subprocess.Popen[bytes]
    port: str
    lock_dir: Path

    def target(self, **changes: object) -> SerialTarget:
        fields: dict[str, object] = {"lock_dir": self.lock_dir, "port": self.port, **changes}
        return SerialTarget(**fields)  # type: ignore[arg-type]


@contextmanager
def running(binary: Path, folder: Path, *arguments: str) -> Iterator[Board]:
    process = subprocess.Popen([str(binary), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield Board(process, process.stdout.readline().decode().strip(), folder / "locks")
    finally:
        process.kill()
        process.communicate(timeout=10)
