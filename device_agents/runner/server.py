"""``serve``: answers requests on the standard streams, one at a time, and outlives everything but its own end of input.

When the link drops, the request in hand is finished, its result kept under the request id, and the process ends. A new
runner started by the same controller hands the result out (``fetch``).
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import shutil
import signal
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import frames, streams
from .errors import RunnerError
from .lease import Lease, describe
from .operations import Operations
from .platform import Platform, program_path
from .store import ResultStore

PROTOCOL = 1
_IDLE_LIMIT_S = 3600.0
"""A controller that vanished without its connection being closed must not keep the board for ever."""
_SUPERSEDE_GRACE_S = 10.0
_HANDOVER_S = 2.0
"""How long to wait for a foreign runner that may just be ending."""
_WITHOUT_LEASE = frozenset(("hello", "fetch", "stop"))

log = logging.getLogger("boardtune.runner")

Request = Tuple[frames.Header, List[frames.Buffer]]
Answer = Tuple[Dict[str, Any], Sequence[frames.Buffer]]


def serve(platform: Platform) -> int:
    """Runs until the input ends or ``stop``; the current folder is the work folder."""
    logging.basicConfig(stream=sys.stderr, format="runner: %(message)s")
    for name in ("SIGHUP", "SIGPIPE"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    source, sink = streams.claim_standard_streams()
    return Server(platform, os.getcwd(), source, sink).run()


class Server:
    def __init__(self, platform: Platform, folder: str, source: int, sink: int) -> None:
        self._platform = platform
        self._folder = folder
        self._source = source
        self._sink = sink
        self._boot_id = platform.boot_id()
        self._requests: "queue.Queue[Optional[Request]]" = queue.Queue()
        self._lease = Lease(folder)
        self._results: Optional[ResultStore] = None
        self._operations: Optional[Operations] = None
        self._link = True

    def run(self) -> int:
        self._write([frames.MARKER])
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            while True:
                try:
                    request = self._requests.get(timeout=_IDLE_LIMIT_S)
                except queue.Empty:
                    log.warning("no request for %.0f s; ending", _IDLE_LIMIT_S)
                    return 0
                if request is None:
                    return 0
                self._handle(*request)
                if request[0].get("op") == "stop":
                    return 0
        finally:
            if self._operations is not None:
                self._operations.close()
            self._lease.release()

    def _listen(self) -> None:
        try:
            while True:
                self._requests.put(frames.read_frame(lambda size: streams.read_exact(self._source, size)))
        except streams.EndOfStream:
            pass
        except (OSError, frames.FrameError) as error:
            log.warning("input ended: %s", error)
        try:
            self._lease.mark_orphan()
        except OSError:
            pass
        self._requests.put(None)

    def _handle(self, header: frames.Header, blobs: List[frames.Buffer]) -> None:
        request, operation = str(header.get("id", "")), str(header.get("op", ""))
        kept = operation in ("measure", "infer")
        try:
            reply, out = self._answer(request, operation, header, blobs, kept)
            reply = dict(reply, ok=True)
        except RunnerError as error:
            reply, out = {"ok": False, "error": error.to_wire()}, ()
        except MemoryError as error:
            failure = RunnerError("OutOfMemory", "the runner itself ran out of memory: {}".format(error))
            reply, out = {"ok": False, "error": failure.to_wire()}, ()
        except OSError as error:
            reply, out = {"ok": False, "error": _unfit(error, self._folder).to_wire()}, ()
        except (KeyError, TypeError, ValueError) as error:
            text = "request {!r} is malformed: {}: {}".format(operation, type(error).__name__, error)
            reply, out = {"ok": False, "error": RunnerError("BadData", text).to_wire()}, ()
        reply["id"], reply["boot_id"] = request, self._platform.boot_id()
        try:
            parts = frames.encode(reply, out)
        except frames.FrameError as error:
            failure = RunnerError("BadData", "the result is too large: {}".format(error), hint="ask for fewer samples")
            parts = frames.encode({"id": request, "boot_id": reply["boot_id"], "ok": False, "error": failure.to_wire()})
        if kept and self._results is not None:
            self._keep(request, parts)
        self._write(parts)

    def _keep(self, request: str, parts: List[frames.Buffer]) -> None:
        if self._results is None:
            return
        try:
            self._results.finish(request, parts)
        except RunnerError:
            return  # not a request id; the reply says so
        except OSError as error:
            self._results.forget(request)
            log.warning("result of %s cannot be kept: %s", request, error)

    def _write(self, parts: Sequence[frames.Buffer]) -> None:
        try:
            for part in parts:
                if self._link:
                    streams.write_all(self._sink, part)
        except OSError as error:
            self._link = False  # the end of the input follows
            log.warning("reply cannot be sent: %s", error)

    def _answer(
        self, request: str, operation: str, header: frames.Header, blobs: List[frames.Buffer], kept: bool
    ) -> Answer:
        if operation not in _WITHOUT_LEASE:
            self._lease.check()
        if operation == "hello":
            return self._hello(header), ()
        if operation == "fetch":
            return self._fetch(str(header["request"]))
        if operation == "stop":
            return {}, ()
        if self._operations is None or self._results is None:
            raise RunnerError("LeaseLost", "this connection does not hold the board", hint="say hello first")
        if kept:
            self._results.begin(request)
        return self._operations.perform(operation, request, header, blobs)

    # ---- hello and fetch -----------------------------------------------------------------------------------------

    def _hello(self, header: frames.Header) -> Dict[str, Any]:
        controller, holder = str(header["controller"])[:200], str(header["holder"])[:200]
        wait_until = time.monotonic() + min(float(header.get("wait_s", 0.0)), 86400.0)
        started = time.monotonic()
        superseded = False
        while not self._lease.try_take(controller, holder, self._boot_id):
            other = self._lease.holder()
            now = time.monotonic()
            if other.get("controller") == controller and not superseded:
                # Our own former runner, behind a connection the board still believes in. The controller has fetched
                # what it wanted.
                superseded = _end_process(other.get("pid"))
                wait_until = max(wait_until, now + _SUPERSEDE_GRACE_S)
            patient = superseded or other.get("orphan") or now - started < _HANDOVER_S
            if not patient or now > wait_until:
                raise RunnerError(
                    "LeaseLost",
                    "the board is in use by {}".format(describe(other)),
                    hint="wait for it to finish, or end that process",
                )
            time.sleep(0.05)
        if self._operations is None:
            self._results = ResultStore(self._folder)
            self._operations = Operations(self._platform, self._folder)
            _prune_old_runners(self._folder)
        return {
            "protocol": PROTOCOL,
            "runner_sha256": _own_sha256(),
            "token": self._lease.token,
            "disk_free_bytes": shutil.disk_usage(self._folder).free,
        }

    def _fetch(self, wanted: str) -> Answer:
        """``state``: ``done`` (the kept frame is the only blob), ``running`` or ``unknown``."""
        results = self._results or ResultStore(self._folder)
        going_on = results.running(wanted) and self._lease.busy()
        # Looked up after the mark, which goes away only when the result is there.
        path = results.stored(wanted)
        if path is not None:
            with open(path, "rb") as file:
                return {"state": "done"}, [file.read()]
        return {"state": "running" if going_on else "unknown"}, ()


def _unfit(error: OSError, folder: str) -> RunnerError:
    free = shutil.disk_usage(folder).free if os.path.isdir(folder) else 0
    return RunnerError(
        "BoardUnfit",
        "the board's file system refused: {} ({} bytes free in {})".format(error, free, folder),
        hint="check free space and write access of the work folder",
    )


def _end_process(pid: Any) -> bool:
    try:
        os.kill(int(pid), signal.SIGTERM)
    except (OSError, TypeError, ValueError):
        return False
    return True


def _own_sha256() -> str:
    """Of the running zipapp; empty when it was not packed."""
    path = program_path()
    if not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _prune_old_runners(folder: str, keep: int = 3) -> None:
    """Runners of former versions, except a few that another controller may still use."""
    where = os.path.join(folder, "runner")
    try:
        paths = [os.path.join(where, name) for name in os.listdir(where) if name.endswith(".pyz")]
        paths.sort(key=os.path.getmtime, reverse=True)
        for path in paths[keep:]:
            if os.path.abspath(path) != program_path():
                os.remove(path)
    except OSError:
        pass
