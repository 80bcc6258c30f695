"""Quantization that can hang, crash, lie or eat the memory without harm to whoever asked for it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import IO, Self

from harness.errors import BoardtuneError
from harness.quantize.contract import Artifact, Cause, QuantizeJob, Refusal
from harness.quantize.outputs import remove_model
from harness.quantize.worker_wire import (
    MessageReader,
    PipeClosedError,
    job_to_json,
    result_from_json,
    write_message,
)

logger = logging.getLogger(__name__)

START_S = 120.0
"""Importing onnx and onnxruntime takes a second; on a loaded machine, more."""
SILENCE_S = 60.0
"""The worker process gives a sign of life every second; after this long without one it is restarted."""
_CLOSE_S = 5.0


class WorkerFailedError(BoardtuneError):
    """The worker process cannot be started."""


class QuantizeWorker:
    """Runs quantization jobs, one at a time, in killable child processes of a warm parent process.

    A context manager; starts on first use. Whatever a child does, :meth:`quantize` returns a result and the next job
    is served. Calls from several threads are served one after the other.
    """

    def __init__(self, backends: Mapping[str, str] | None = None, *, spawn: bool = False) -> None:
        """``backends`` maps names of further quantizer backends to ``module:factory``; a factory takes
        ``(breathe, phase)`` and returns a :class:`~harness.quantize.contract.Backend`. ``spawn`` starts children anew
        instead of forking them (always so on macOS)."""
        self._backends = dict(backends or {})
        self._spawn = spawn
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: MessageReader | None = None
        self._stderr: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Of the worker process, ``None`` before the first job."""
        return self._process.pid if self._process else None

    def quantize(self, job: QuantizeJob) -> Artifact | Refusal:
        """Makes and accepts an artifact, or says why not. ``job.out`` exists afterwards only if accepted.

        Raises :class:`WorkerFailedError` if the worker process itself cannot be started.
        """
        with self._lock:
            try:
                for attempt in (1, 2):
                    try:
                        return self._ask(job)
                    except PipeClosedError as error:
                        logger.warning("quantize worker died (%s), attempt %d", error, attempt)
                        tail = self._stop()
            except BaseException:
                self._stop()
                raise
        # Killed from outside, it could not clean up.
        remove_model(job.out)
        return Refusal(Cause.CRASHED, "the quantize worker died twice on this recipe", detail=tail)

    def close(self) -> None:
        """Ends the worker and any child it has. May be called twice."""
        with self._lock:
            self._stop()

    def _ask(self, job: QuantizeJob) -> Artifact | Refusal:
        process, reader = self._started()
        write_message(_stdin(process), {"job": job_to_json(job)})
        heard = time.monotonic()
        while True:
            message = reader.read(1.0)
            if message is None:
                if time.monotonic() - heard > SILENCE_S:
                    raise PipeClosedError(f"silent for {SILENCE_S:g} s")
                continue
            heard = time.monotonic()
            if "result" in message:
                return result_from_json(message["result"], job.out)

    def _started(self) -> tuple[subprocess.Popen[bytes], MessageReader]:
        if self._process is not None and self._reader is not None:
            if self._process.poll() is None:
                return self._process, self._reader
            self._stop()
        return self._start()

    def _start(self) -> tuple[subprocess.Popen[bytes], MessageReader]:
        command = [sys.executable, "-m", "harness.quantize.worker_parent"]
        command += [f"--backend={name}={factory}" for name, factory in self._backends.items()]
        if self._spawn:
            command.append("--spawn")
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by _stop)
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
            env={**os.environ, **_ONE_THREAD},
        )
        self._process = process
        self._reader = MessageReader(_stdout(process))
        try:
            ready = self._reader.read(START_S)
        except PipeClosedError:
            ready = None
        if ready is None or "ready" not in ready:
            tail = self._stop()
            raise WorkerFailedError("the quantize worker does not start", hint=tail.strip()[-2000:])
        return process, self._reader

    def _stop(self) -> str:
        """Ends the process; returns the end of its stderr."""
        process, self._process, self._reader = self._process, None, None
        if process is None:
            return ""
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            # With the pipe closed it ends by itself, and kills its child on the way.
            process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(_CLOSE_S)
        tail = ""
        if self._stderr is not None:
            self._stderr.seek(0)
            tail = self._stderr.read()[-8192:].decode("utf-8", "replace")
            self._stderr.close()
            self._stderr = None
        return tail


_ONE_THREAD: Mapping[str, str] = {
    # Threads started by numerical libraries do not survive a fork; and one worker is one processor.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


def _stdin(process: subprocess.Popen[bytes]) -> int:
    if process.stdin is None:
        raise PipeClosedError("no stdin")
    return process.stdin.fileno()


def _stdout(process: subprocess.Popen[bytes]) -> int:
    if process.stdout is None:
        raise PipeClosedError("no stdout")
    return process.stdout.fileno()
