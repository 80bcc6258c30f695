"""A job's process: started, limited, watched, killed with all its descendants."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from harness.quantize.contract import QuantizeJob
from harness.quantize.worker_child import run_job
from harness.quantize.worker_wire import job_to_json, result_to_json, write_message

CAN_FORK = sys.platform == "linux"
"""Elsewhere (macOS) system libraries do not survive a fork without exec."""
_PR_SET_PDEATHSIG = 1
_TAIL_BYTES = 8192
# Loaded before any fork: the child must not take the loader's locks.
_LIBC = ctypes.CDLL(None) if CAN_FORK else None


@dataclass(frozen=True)
class Child:
    pid: int
    messages: int
    """Descriptor of the pipe its messages come from."""
    stderr: IO[bytes]

    def resident_bytes(self) -> int:
        """Memory it holds now; 0 when it cannot be told (it has just ended)."""
        if sys.platform == "linux":
            try:
                with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
                    return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            except (OSError, IndexError):
                return 0
        shown = subprocess.run(["ps", "-o", "rss=", "-p", str(self.pid)], capture_output=True, text=True, check=False)
        return int(shown.stdout.strip() or 0) * 1024

    def kill(self) -> None:
        """Ends it and its process group; it must still be waited for."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)

    def tail(self) -> str:
        """The end of what it wrote to stderr (native libraries write their last words there)."""
        self.stderr.seek(0, os.SEEK_END)
        self.stderr.seek(max(self.stderr.tell() - _TAIL_BYTES, 0))
        return self.stderr.read().decode("utf-8", "replace")

    def close(self) -> None:
        os.close(self.messages)
        self.stderr.close()


def start(job: QuantizeJob, backends: Mapping[str, str], *, fork: bool, close: tuple[int, ...]) -> Child:
    """Starts a job. ``close`` lists descriptors a forked child must not keep."""
    reading, writing = os.pipe()
    stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by Child.close)
    try:
        if fork:
            pid = _fork(job, backends, writing, stderr.fileno(), (*close, reading))
        else:
            pid = _spawn(job, backends, writing, stderr)
    finally:
        os.close(writing)
    return Child(pid, reading, stderr)


def _fork(job: QuantizeJob, backends: Mapping[str, str], writing: int, stderr: int, close: tuple[int, ...]) -> int:
    parent = os.getpid()
    with warnings.catch_warnings():
        # The process has no Python threads; ONNX Runtime keeps one idle thread that holds nothing.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        _die_with(parent)
        for descriptor in close:
            os.close(descriptor)
        os.dup2(stderr, 2)
        os.dup2(stderr, 1)
        _limit_memory(job.limits.memory_bytes)

        def send(message: dict[str, Any]) -> None:
            write_message(writing, message)

        send({"result": result_to_json(run_job(job, backends, send))})
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        # Not sys.exit: the parent's cleanup handlers are not this process's.
        os._exit(code)


def _spawn(job: QuantizeJob, backends: Mapping[str, str], writing: int, stderr: IO[bytes]) -> int:
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.quantize.worker_child"],
        stdin=subprocess.PIPE,
        stdout=writing,
        stderr=stderr,
        start_new_session=True,
    )
    if process.stdin is None:
        raise RuntimeError("the child has no stdin")
    write_message(process.stdin.fileno(), {"job": job_to_json(job), "backends": dict(backends)})
    process.stdin.close()
    # Waited for by process id, as a forked one: the object would warn that it never was.
    process.returncode = 0
    return process.pid


def _die_with(parent: int) -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _limit_memory(memory_bytes: int) -> None:
    """A backstop for allocations faster than the watch: address space, which is far larger than what is resident."""
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = mapped + 2 * memory_bytes
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
