"""The warm process behind a quantize worker: imports once, forks one child per job, watches it.

It makes no ONNX Runtime session and starts no thread of its own, so that forking it is safe. It ends when the process
that started it closes the pipe or is gone. Run as ``python -m harness.quantize.worker_parent``.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from device_agents.host_lock import DEADLINE_S
from harness.errors import ConfigError
from harness.quantize.child_process import CAN_FORK, Child, start
from harness.quantize.contract import Artifact, Cause, QuantizeJob, Refusal
from harness.quantize.ort_backend import OrtBackend
from harness.quantize.outputs import remove_model
from harness.quantize.vendors.warm import WarmVendors
from harness.quantize.worker_wire import (
    MessageReader,
    PipeClosedError,
    job_from_json,
    result_from_json,
    result_to_json,
    wait_readable,
    write_message,
)

WATCH_S = 0.02
"""Between looks at a child's memory and clock."""
HEARTBEAT_S = 1.0
_EXIT_S = 10.0
"""A child that has sent its result may take this long to end."""


class ClientGoneError(Exception):
    """Whoever started this process is gone."""


@dataclass
class _Clock:
    """Working time of a child: what it waits for the host's clock does not count."""

    limit_s: float
    began: float
    waiting_since: float | None = None
    waited_s: float = 0.0

    def set_waiting(self, waiting: bool, now: float) -> None:
        if waiting:
            self.waiting_since = now
        elif self.waiting_since is not None:
            self.waited_s += now - self.waiting_since
            self.waiting_since = None

    def over(self, now: float) -> bool:
        if self.waiting_since is not None:
            return now - self.waiting_since > DEADLINE_S + self.limit_s
        return now - self.began - self.waited_s > self.limit_s


class Supervisor:
    """Runs jobs one at a time for the client at the other end of two descriptors."""

    def __init__(self, requests: int, replies: int, backends: Mapping[str, str], *, fork: bool) -> None:
        self._reader = MessageReader(requests)
        self._replies = replies
        self._backends = backends
        self._fork = fork
        self._client = os.getppid()
        self._vendors = WarmVendors()

    def serve(self) -> None:
        """Until the client is gone."""
        try:
            write_message(self._replies, {"ready": OrtBackend().version()})
            while True:
                request = self._reader.read(HEARTBEAT_S)
                self._check_client()
                if request is not None:
                    job = job_from_json(request["job"])
                    write_message(self._replies, {"result": result_to_json(self._run(job))})
        except (PipeClosedError, ClientGoneError):
            return
        finally:
            self._vendors.close()

    def _check_client(self) -> None:
        # Beside the pipe's end, which another process of the client's may hold open.
        if os.getppid() != self._client:
            raise ClientGoneError

    def _run(self, job: QuantizeJob) -> Artifact | Refusal:
        if job.recipe.scheme == "vendor":
            try:
                listening = self._vendors.socket(job.recipe.backend)
            except ConfigError as error:
                return Refusal(Cause.UNSUPPORTED, str(error))
            job = replace(job, extra={**job.extra, "vendor_socket": str(listening)})
        child = start(job, self._backends, fork=self._fork, close=(self._reader.descriptor, self._replies))
        try:
            result = self._watch(job, child)
        except BaseException:
            _end(child)
            remove_model(job.out)
            raise
        if isinstance(result, Refusal):
            remove_model(job.out)
        child.close()
        return result

    def _watch(self, job: QuantizeJob, child: Child) -> Artifact | Refusal:
        reader = MessageReader(child.messages)
        clock = _Clock(job.limits.timeout_s, time.monotonic())
        phase, beat = "starting", time.monotonic()
        while True:
            now = time.monotonic()
            if now - beat > HEARTBEAT_S:
                beat = now
                self._check_client()
                write_message(self._replies, {"alive": phase})
            try:
                message = reader.read(0.0)
            except PipeClosedError:
                return _post_mortem(job, child, phase)
            if message is None:
                refusal = _over_limit(job, child, clock, phase, now)
                if refusal:
                    _end(child)
                    return refusal
                if self._reader.descriptor in wait_readable([child.messages, self._reader.descriptor], WATCH_S):
                    # Nothing is sent to a busy worker: what can be read is the end of the pipe.
                    raise ClientGoneError
            elif "waiting" in message:
                clock.set_waiting(bool(message["waiting"]), now)
            elif "phase" in message:
                phase = str(message["phase"])
            elif "result" in message:
                _wait(child, _EXIT_S)
                return result_from_json(message["result"], job.out)


def _over_limit(job: QuantizeJob, child: Child, clock: _Clock, phase: str, now: float) -> Refusal | None:
    limits = job.limits
    if clock.over(now):
        return Refusal(
            Cause.TIMEOUT,
            f"the quantizer did not end within {limits.timeout_s:g} s (it was {phase}) and was killed; raise the limit "
            "with --timeout if the model needs longer",
            detail=child.tail(),
        )
    resident = child.resident_bytes()
    if resident > limits.memory_bytes:
        return Refusal(
            Cause.OUT_OF_MEMORY,
            f"the quantizer held {resident >> 20} MiB, over its limit of {limits.memory_bytes >> 20} MiB (it was "
            f"{phase}), and was killed; boardtune quantize --max-memory raises the limit",
            detail=child.tail(),
        )
    return None


def _post_mortem(job: QuantizeJob, child: Child, phase: str) -> Refusal:
    status = _wait(child, _EXIT_S)
    tail = child.tail()
    if status is not None and os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        if os.WTERMSIG(status) == signal.SIGKILL:
            return Refusal(
                Cause.OUT_OF_MEMORY,
                f"the quantizer was killed from outside (SIGKILL) while it was {phase}: the system does that when "
                "memory runs out",
                detail=tail,
            )
        return Refusal(Cause.CRASHED, f"the quantizer process died of {name} while it was {phase}", detail=tail)
    if "MemoryError" in tail or "bad_alloc" in tail:
        return Refusal(Cause.OUT_OF_MEMORY, f"the quantizer ran out of memory while it was {phase}", detail=tail)
    code = os.waitstatus_to_exitcode(status) if status is not None else "none"
    return Refusal(
        Cause.CRASHED,
        f"the quantizer process ended without a result (exit code {code}) while it was {phase}",
        detail=tail,
    )


def _end(child: Child) -> None:
    child.kill()
    _wait(child, _EXIT_S)


def _wait(child: Child, timeout_s: float) -> int | None:
    """The child's wait status; kills it when the time is over. ``None`` if even that does not end it."""
    until = time.monotonic() + timeout_s
    killed = False
    while True:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            return status
        if time.monotonic() > until:
            if killed:
                return None
            child.kill()
            killed, until = True, time.monotonic() + timeout_s
        time.sleep(0.001)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.quantize.worker_parent")
    parser.add_argument("--backend", action="append", default=[], metavar="NAME=MODULE:FACTORY")
    parser.add_argument("--spawn", action="store_true", help="start children anew instead of forking")
    arguments = parser.parse_args()
    backends = dict(item.split("=", 1) for item in arguments.backend)
    # Libraries print; the protocol has descriptors of its own.
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What is imported stays: a child's collector need not touch, and so copy, its pages.
    gc.freeze()
    Supervisor(requests, replies, backends, fork=CAN_FORK and not arguments.spawn).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
