"""The runner's side of a child process: start, ask with a time limit, tell how it died, kill."""

from __future__ import annotations

import collections
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Deque, Dict, List, Sequence, Tuple, Union

from . import frames, streams
from .errors import RunnerError
from .platform import Platform
from .sensors import Sensors

Reply = Tuple[frames.Header, List[frames.Buffer]]
_STDERR_BYTES = 16 * 1024


class ChildProcess:
    """One child. After any failure but an answered error it is dead."""

    def __init__(self, platform: Platform, folder: str) -> None:
        self._sensors = Sensors()
        self._oom_kills = self._sensors.oom_kills()
        environment = dict(os.environ, PYTHONUNBUFFERED="1")
        self._process = subprocess.Popen(
            platform.child_command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=environment,
            bufsize=0,
        )
        self._replies: "queue.Queue[Union[Reply, Exception]]" = queue.Queue()
        self._stderr: Deque[bytes] = collections.deque()
        self._reader = threading.Thread(target=self._read_replies, daemon=True)
        self._reader.start()
        self._drain = threading.Thread(target=self._read_stderr, daemon=True)
        self._drain.start()

    def ask(self, header: Dict[str, Any], blobs: Sequence[frames.Buffer], timeout_s: float) -> Reply:
        """The child's reply.

        Raises:
            RunnerError: what the child answered; ``DeviceTimeout`` (it was killed), ``DeviceCrash`` or ``OutOfMemory``
                (it died).
        """
        writer = threading.Thread(target=self._write, args=(header, blobs), daemon=True)
        writer.start()  # a child that does not read must not block us past the deadline
        started = time.monotonic()
        try:
            reply = self._replies.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            self.kill()
            raise RunnerError(
                "DeviceTimeout",
                "{} did not end within {:.1f} s; its process was killed".format(
                    header.get("op"), time.monotonic() - started
                ),
                detail=self.stderr_tail(),
            ) from None
        if isinstance(reply, Exception):
            raise self._obituary(str(header.get("op")))
        answer, out = reply
        if not answer.get("ok"):
            error = RunnerError.from_wire(answer.get("error") or {})
            error.detail = error.detail or self.stderr_tail()
            raise error
        return answer, out

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Ends the process at once and waits for it."""
        try:
            self._process.kill()
        except OSError:
            pass
        try:
            self._process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            pass  # in an uninterruptible driver call; it can do no more than be gone later
        self._drain.join(timeout=1.0)

    def stderr_tail(self) -> str:
        return b"".join(list(self._stderr)).decode("utf-8", "replace")[-_STDERR_BYTES:]

    # ---- threads -------------------------------------------------------------------------------------------------

    def _write(self, header: Dict[str, Any], blobs: Sequence[frames.Buffer]) -> None:
        stdin = self._process.stdin
        if stdin is None:
            return
        try:
            for part in frames.encode(header, blobs):
                streams.write_all(stdin.fileno(), part)
        except (OSError, ValueError):
            pass  # it died; the reader tells

    def _read_replies(self) -> None:
        stdout = self._process.stdout
        if stdout is None:
            return
        try:
            while True:
                self._replies.put(frames.read_frame(lambda size: streams.read_exact(stdout.fileno(), size)))
        except (streams.EndOfStream, frames.FrameError, OSError, ValueError) as error:
            self._replies.put(error)

    def _read_stderr(self) -> None:
        stderr = self._process.stderr
        if stderr is None:
            return
        kept = 0
        try:
            while True:
                chunk = os.read(stderr.fileno(), 4096)
                if not chunk:
                    return
                self._stderr.append(chunk)
                kept += len(chunk)
                while kept > _STDERR_BYTES and len(self._stderr) > 1:
                    kept -= len(self._stderr.popleft())
        except (OSError, ValueError):
            return

    # ---- how it died ---------------------------------------------------------------------------------------------

    def _obituary(self, operation: str) -> RunnerError:
        try:
            status = self._process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            self.kill()
            status = 0
        self._drain.join(timeout=1.0)
        tail = self.stderr_tail()
        low = tail.lower()
        if "bad_alloc" in low or "memoryerror" in low or (status == -9 and self._killed_for_memory()):
            return RunnerError("OutOfMemory", "out of memory during {}".format(operation), detail=tail)
        lines = [line for line in tail.strip().splitlines() if line.strip()]
        return RunnerError(
            "DeviceCrash",
            "the process that executes the model died during {}: {}{}".format(
                operation, death(status), "; its last words: {}".format(lines[-1][:300]) if lines else ""
            ),
            detail=tail,
        )

    def _killed_for_memory(self) -> bool:
        """SIGKILL that was not ours: the kernel's count of memory kills tells, where it has one."""
        now = self._sensors.oom_kills()
        return now is None or self._oom_kills is None or now > self._oom_kills


def death(status: int) -> str:
    """``SIGSEGV`` and the like from a return code."""
    if status < 0:
        try:
            return signal.Signals(-status).name
        except ValueError:
            return "signal {}".format(-status)
    if sys.platform == "win32" and status >= 0x80000000:
        return "exception 0x{:08X}".format(status)
    return "exit status {}".format(status)
