"""Starts the warm processes of vendors' quantizers and ends them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.quantize.vendors.environments import find_environment
from harness.scratch import scratch_prefix

_SERVER = Path(__file__).parent / "server.py"
_END_S = 5.0


@dataclass(frozen=True)
class _Process:
    popen: subprocess.Popen[bytes]
    folder: Path

    @property
    def socket(self) -> Path:
        return self.folder / "socket"


class WarmVendors:
    """One warm process per vendor, started when first asked for. They end with the process that owns this."""

    def __init__(self) -> None:
        self._processes: dict[str, _Process] = {}

    def socket(self, backend: str) -> Path:
        """Where the backend's warm process listens, or will in a moment; a dead one is started anew.

        Raises :class:`~harness.errors.ConfigError` where the backend is not installed.
        """
        process = self._processes.get(backend)
        if process is not None and process.popen.poll() is not None:
            self._end(backend)
            process = None
        if process is None:
            process = self._processes[backend] = _start(backend)
        return process.socket

    def close(self) -> None:
        for backend in list(self._processes):
            self._end(backend)

    def _end(self, backend: str) -> None:
        process = self._processes.pop(backend)
        if process.popen.stdin is not None:
            with contextlib.suppress(OSError):
                process.popen.stdin.close()
        try:
            process.popen.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait(_END_S)
        shutil.rmtree(process.folder, ignore_errors=True)


def _start(backend: str) -> _Process:
    environment = find_environment(backend)
    # Short: the path of a Unix socket holds 107 bytes on Linux, 103 on macOS.
    folder = Path(tempfile.mkdtemp(prefix=scratch_prefix()))
    program = environment.vendor.program
    command = [str(environment.python), "-s", str(_SERVER), str(folder / "socket"), str(program), str(folder / "log")]
    with (folder / "start.log").open("wb") as log:
        popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
            env=_environment(),
        )
    return _Process(popen, folder)


def _environment() -> dict[str, str]:
    """Nothing of this Python's own; and what vendors' packages order by hashes comes out the same every time."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # One worker is one processor, and a thread pool does not survive a fork.
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {**kept, **threads, "PYTHONHASHSEED": "0"}
