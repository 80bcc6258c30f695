"""Drives a board that runs the runner, over any :class:`~device_agents.transport.Transport`.

A dropped link is mended inside a call where that is safe: requests that depend on nothing but files are sent again, an
upload goes on where it stopped, the result of a measurement or inference is fetched from the board under its request
id. Loaded models die with the runner of the dropped link: their session then raises
:class:`~device_agents.contract.LinkError`, and the model must be loaded again (a fresh process wants a fresh warm-up,
which is for the measurement to decide).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from device_agents import runner_wire as wire
from device_agents.contract import (
    BadData,
    Block,
    BlockRequest,
    BoardFacts,
    BoardState,
    DataRef,
    DeployReport,
    DeviceCrash,
    DeviceTimeout,
    Inference,
    LinkError,
    LoadReport,
    Pipeline,
    RuntimeOptions,
    Tensors,
)
from device_agents.runner.frames import Buffer
from device_agents.runner_client import Reply
from device_agents.runner_link import RunnerLink
from device_agents.runner_sessions import Loaded, Sessions
from device_agents.transport import Deadline, Transport

_UPLOAD_STALLS = 5
"""Dropped links in a row without a byte of progress, after which an upload gives up."""
_WARM_COUNT, _WARM_NS = 10, 250_000_000
"""Least warm-up after a session was loaded again behind the caller's back."""


class RunnerAgent:
    """The whole :class:`~device_agents.contract.Agent` contract over a transport.

    ``cache_bytes`` limits what deployed files may take on the board (least recently used go first).
    ``exclusive_sessions``: only one model is in memory at a time (boards whose accelerators disturb each other). Using
    another session loads it again in a fresh process and, before a measurement, runs it warm; all within the call's
    deadline.
    """

    def __init__(
        self, name: str, transport: Transport, *, cache_bytes: int = 4 << 30, exclusive_sessions: bool = False
    ) -> None:
        self._transport = transport
        self._cache_bytes = cache_bytes
        self._sessions = Sessions(exclusive_sessions)
        self._link = RunnerLink(name, transport, on_lost=self._sessions.lose_all)

    @property
    def name(self) -> str:
        return self._link.name

    # ---- the board -----------------------------------------------------------------------------------------------

    def connect(self, deadline_s: float = 60.0) -> BoardFacts:
        deadline = Deadline(deadline_s)
        with self._link.blamed():
            self._link.connect(deadline)
            return self._facts(deadline)

    def describe(self, deadline_s: float = 30.0) -> BoardFacts:
        with self._link.blamed():
            return self._facts(Deadline(deadline_s))

    def health(self, deadline_s: float = 30.0) -> BoardState:
        with self._link.blamed():
            reply, _ = self._link.ask("health", deadline=Deadline(deadline_s))
            return wire.state_from_wire(reply.get("state") or {}, str(reply["boot_id"]))

    def self_test(self, seconds: float = 1.0, deadline_s: float = 60.0) -> Mapping[str, str]:
        with self._link.blamed():
            reply, _ = self._link.ask("self_test", {"seconds": seconds}, deadline=Deadline(deadline_s))
            return {str(name): str(text) for name, text in (reply.get("findings") or {}).items()}

    def recover(self, deadline_s: float = 120.0) -> BoardFacts:
        deadline = Deadline(deadline_s)
        with self._link.blamed():
            self._link.renew(deadline)
            return self._facts(deadline)

    def clean(self, deadline_s: float = 60.0) -> Sequence[str]:
        with self._link.blamed():
            reply, _ = self._link.ask("clean", deadline=Deadline(deadline_s))
            self._link.drop("the board was cleaned")
            return [str(path) for path in reply.get("removed") or ()]

    def close(self) -> None:
        self._link.close()

    def _facts(self, deadline: Deadline) -> BoardFacts:
        reply, _ = self._link.ask("describe", deadline=deadline)
        return wire.facts_from_wire(reply.get("facts") or {}, str(reply["boot_id"]), self._link.runner_sha256)

    # ---- files ---------------------------------------------------------------------------------------------------

    def has(self, sha256: str, deadline_s: float = 30.0) -> bool:
        with self._link.blamed():
            reply, _ = self._link.ask("has", {"sha256": sha256}, deadline=Deadline(deadline_s))
            return bool(reply.get("has"))

    def deploy(self, path: Path, sha256: str, deadline_s: float = 600.0) -> DeployReport:
        deadline = Deadline(deadline_s)
        size = path.stat().st_size
        if self.has(sha256, deadline.remaining()):
            return DeployReport(sha256, size, 0)
        with self._link.blamed():
            keep = sorted(self._sessions.digests())
            room = {"sha256": sha256, "size": size, "cache_bytes": self._cache_bytes, "keep": keep}
            self._link.ask("make_room", room, deadline=deadline)
            sent, resumed = self._upload(path, sha256, size, deadline)
            try:
                self._commit(sha256, size, deadline)
            except BadData:
                if not resumed:
                    raise
                # What was there before did not belong to this file; the board has deleted it.
                again, _ = self._upload(path, sha256, size, deadline)
                sent, resumed = sent + again, False
                self._commit(sha256, size, deadline)
        return DeployReport(sha256, size, sent, resumed)

    def _commit(self, sha256: str, size: int, deadline: Deadline) -> None:
        try:
            self._link.ask("commit", {"sha256": sha256, "size": size}, deadline=deadline)
        except BadData:
            # A commit that was sent again after a dropped link finds its work done.
            if not self._link.ask("has", {"sha256": sha256}, deadline=deadline)[0].get("has"):
                raise

    def _upload(self, path: Path, sha256: str, size: int, deadline: Deadline) -> tuple[int, bool]:
        """(bytes sent, whether an upload of an earlier call was continued). Goes on after a dropped link."""
        relpath = f"models/{sha256}.part"
        sent = stalls = 0
        found: int | None = None
        while True:
            self._link.live(deadline)
            there = self._transport.file_size(relpath) or 0
            offset = there if there <= size else 0
            found = offset if found is None else found
            try:
                if there != size:
                    sent += self._transport.upload(path, relpath, offset, deadline.remaining())
                elif size == 0:
                    self._transport.write_file(relpath, b"")
                return sent, found > 0
            except LinkError:
                self._link.drop("the link dropped during an upload")
                self._link.live(deadline)
                arrived = (self._transport.file_size(relpath) or 0) - offset
                sent += max(0, arrived)
                stalls = 0 if arrived > 0 else stalls + 1
                if stalls >= _UPLOAD_STALLS:
                    raise

    # ---- models --------------------------------------------------------------------------------------------------

    def load(
        self, sha256: str, options: RuntimeOptions, pipeline: Pipeline | None = None, deadline_s: float = 300.0
    ) -> LoadReport:
        with self._link.blamed():
            loaded = Loaded(sha256, options, pipeline)
            reply = self._bring_in(loaded, Deadline(deadline_s))
            loaded.handle = str(loaded.remote)
            self._sessions.add(loaded)
            return wire.load_from_wire(reply, loaded.handle)

    def measure(
        self, session: str, inputs: Tensors | DataRef, request: BlockRequest, deadline_s: float = 120.0
    ) -> Block:
        deadline = Deadline(deadline_s)
        with self._link.blamed():
            fields, blobs = wire.samples_to_wire(_first_rows(inputs, request.rows))
            if self._make_resident(session, deadline):
                warm = replace(request, min_count=_WARM_COUNT, min_ns=min(_WARM_NS, request.min_ns))
                self._execute("measure", session, {**wire.block_to_wire(warm), **fields}, blobs, deadline)
            header = {**wire.block_to_wire(request), **fields}
            reply, out = self._execute("measure", session, header, blobs, deadline)
            block = wire.block_from_wire(reply, out)
            loaded = self._sessions.peek(session)
            if loaded is not None:
                if loaded.measured:
                    block = replace(block, first_ns=None)
                loaded.measured = True
            return block

    def infer(self, session: str, inputs: Tensors | DataRef, batch: int = 1, deadline_s: float = 600.0) -> Inference:
        deadline = Deadline(deadline_s)
        with self._link.blamed():
            fields, blobs = wire.samples_to_wire(inputs)
            self._make_resident(session, deadline)
            reply, out = self._execute("infer", session, {"batch": batch, **fields}, blobs, deadline)
            return wire.inference_from_wire(reply, out)

    def unload(self, session: str, deadline_s: float = 30.0) -> None:
        with self._link.blamed():
            loaded = self._sessions.remove(session)
            if loaded is not None and loaded.remote is not None:
                self._link.ask("unload", {"session": loaded.remote}, deadline=Deadline(deadline_s))

    def _bring_in(self, loaded: Loaded, deadline: Deadline) -> dict[str, Any]:
        """Loads into the board's memory, where ``exclusive_sessions`` first makes room for it."""
        alone = self._sessions.exclusive
        if alone:
            self._link.live(deadline)
            for other in self._sessions.resident():
                remote, other.remote = other.remote, None
                self._link.ask("unload", {"session": remote}, deadline=deadline)
        header = {
            "sha256": loaded.sha256,
            "options": wire.options_to_wire(loaded.options),
            "pipeline": wire.pipeline_to_wire(loaded.pipeline),
            "alone": alone,
        }
        reply, _ = self._link.ask("load", header, deadline=deadline)
        loaded.remote = str(reply["session"])
        return reply

    def _make_resident(self, session: str, deadline: Deadline) -> bool:
        """Whether the session had to be loaded again."""
        loaded = self._sessions.get(session)
        if loaded.remote is not None:
            return False
        self._bring_in(loaded, deadline)
        return True

    def _execute(
        self, operation: str, session: str, header: dict[str, Any], blobs: Sequence[Buffer], deadline: Deadline
    ) -> Reply:
        remote = self._sessions.get(session).remote
        try:
            return self._link.ask_once(operation, {**header, "session": remote}, blobs, deadline=deadline)
        except (DeviceCrash, DeviceTimeout) as error:
            self._sessions.lose(session, error.message)
            raise


def _first_rows(samples: Tensors | DataRef, rows: int) -> Tensors | DataRef:
    """What a block cycles through; the rest need not travel. Arrays without axes are left for the board to refuse."""
    if isinstance(samples, DataRef):
        return samples
    return {name: np.asarray(a)[:rows] if np.ndim(a) else np.asarray(a) for name, a in samples.items()}
