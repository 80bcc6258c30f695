"""The link between an agent and the runner: made, watched, mended.

Knows the boot id and the lease; knows nothing of models beyond that they die with the runner.
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from device_agents.contract import AgentError, BadData, BoardUnfit, DeviceReboot, DeviceTimeout, LinkError
from device_agents.runner import frames
from device_agents.runner.frames import Buffer
from device_agents.runner_client import Reply, RunnerClient, checked, new_request_id, send_runner, start_runner
from device_agents.runner_package import build_runner
from device_agents.transport import Deadline, Transport

logger = logging.getLogger(__name__)

_RETRY_FIRST_S, _RETRY_LAST_S = 0.2, 2.0
_FETCH_POLL_S = 0.1
_STOP_S = 2.0
_T = TypeVar("_T")


class RunnerLink:
    """``on_lost(why)`` is called whenever the runner, and with it every loaded model, is gone."""

    def __init__(self, name: str, transport: Transport, on_lost: Callable[[str], None]) -> None:
        self.name = name
        self._transport = transport
        self._on_lost = on_lost
        self._client: RunnerClient | None = None
        self._boot_id: str | None = None
        self._wanted = False
        self._controller = new_request_id()
        self._holder = f"{_user()}@{socket.gethostname()}, process {os.getpid()}"

    @property
    def runner_sha256(self) -> str:
        return build_runner()[1]

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Errors that pass through name the board."""
        try:
            yield
        except AgentError as error:
            error.board = error.board or self.name
            raise

    def connect(self, deadline: Deadline) -> None:
        """Does nothing if the link stands. Fails at the first refusal: a new board should not keep one waiting."""
        if self._client is None:
            self._wanted = True
            self._make(deadline)

    def renew(self, deadline: Deadline) -> None:
        """A new link whatever the state of the old one. Keeps trying: the board may be booting. Any boot id will do."""
        self.drop("the board was recovered since")
        self._boot_id = None
        self._wanted = True
        self._persist(deadline, lambda: self._make(deadline))

    def drop(self, why: str) -> None:
        client, self._client = self._client, None
        self._on_lost(why)
        if client is not None:
            client.close()

    def close(self) -> None:
        """Never raises."""
        self._wanted = False
        if self._client is not None:
            try:
                self._client.request("stop", deadline=Deadline(_STOP_S))
            except AgentError as error:
                logger.debug("board %r: stop: %s", self.name, error)  # it ends with its input
        self.drop("the agent was closed")
        self._boot_id = None
        self._transport.close()

    def live(self, deadline: Deadline) -> RunnerClient:
        """The client of a link that stands, mended if it had dropped.

        Raises:
            LinkError: never connected, closed, or not to be mended before the deadline.
            DeviceReboot: the board is another boot than before.
        """
        if not self._wanted:
            raise LinkError("not connected", hint="connect() first")
        if self._client is not None and not self._transport.connected():
            self.drop("the link dropped")
        if self._client is None:
            self._persist(deadline, lambda: self._make(deadline))
        if self._client is None:
            raise LinkError("not connected")
        return self._client

    def ask(
        self,
        operation: str,
        header: Mapping[str, Any] | None = None,
        blobs: Sequence[Buffer] = (),
        *,
        deadline: Deadline,
    ) -> Reply:
        """For requests that may be sent twice: a dropped link is mended once and the request sent again."""
        try:
            reply = self._request(operation, header, blobs, deadline, new_request_id())
        except LinkError as error:
            if not self._wanted:
                raise
            logger.info("board %r: %s; connecting again", self.name, error.message)
            reply = self._request(operation, header, blobs, deadline, new_request_id())
        return self._accepted(reply)

    def ask_once(
        self, operation: str, header: Mapping[str, Any], blobs: Sequence[Buffer], *, deadline: Deadline
    ) -> Reply:
        """For work whose result the runner keeps: after a dropped link it is fetched, never worked out twice."""
        self.live(deadline)
        request_id = new_request_id()
        try:
            reply = self._request(operation, header, blobs, deadline, request_id)
        except LinkError as error:
            logger.info("board %r: %s; connecting again for the result of %s", self.name, error.message, operation)
            reply = self._fetch(operation, request_id, deadline)
        return self._accepted(reply)

    def _request(
        self,
        operation: str,
        header: Mapping[str, Any] | None,
        blobs: Sequence[Buffer],
        deadline: Deadline,
        request_id: str,
    ) -> Reply:
        """One try. A link that failed, or on which an answer may still be under way, is dropped."""
        client = self.live(deadline)
        try:
            return client.request(operation, header, blobs, deadline=deadline, request_id=request_id)
        except BadData:
            raise  # nothing was sent
        except BaseException as error:
            self.drop(
                f"the link dropped during {operation}" if isinstance(error, LinkError) else f"{operation} was left"
            )
            raise

    # ---- making and mending --------------------------------------------------------------------------------------

    def _make(self, deadline: Deadline) -> None:
        self._transport.open(deadline.remaining())
        client = start_runner(self._transport, self.name, deadline)
        try:
            reply = self._hello(client, deadline)
            if reply[0].get("runner_sha256") != self.runner_sha256:
                client.close()
                send_runner(self._transport)
                client = start_runner(self._transport, self.name, deadline)
                reply = self._hello(client, deadline)
                if reply[0].get("runner_sha256") != self.runner_sha256:
                    raise BoardUnfit("the runner on the board is not the one sent: its disk alters files")
        except BaseException:
            client.close()
            raise
        self._client = client
        self._check_boot(reply[0])

    def _hello(self, client: RunnerClient, deadline: Deadline) -> Reply:
        header = {
            "controller": self._controller,
            "holder": self._holder,
            "wait_s": 0.8 * deadline.remaining(),
        }
        return checked(client.request("hello", header, deadline=deadline), self.name)

    def _fetch(self, operation: str, request_id: str, deadline: Deadline) -> Reply:
        """The kept reply of a request, waiting for it while the old runner is still at work."""

        def attempt() -> Reply | None:
            self._transport.open(deadline.remaining())
            client = start_runner(self._transport, self.name, deadline)
            try:
                while True:
                    reply, out = checked(client.request("fetch", {"request": request_id}, deadline=deadline), self.name)
                    self._check_boot(reply)
                    if reply.get("state") == "done":
                        return _unpacked(out)
                    if reply.get("state") != "running":
                        return None
                    if deadline.remaining() < _FETCH_POLL_S:
                        raise DeviceTimeout(
                            f"the board is still at {operation} {deadline.seconds:g} s after it was asked"
                        )
                    time.sleep(_FETCH_POLL_S)
            finally:
                client.close()

        reply = self._persist(deadline, attempt)
        if reply is None:
            raise LinkError(
                f"the link dropped during {operation} and the board has no result of it", hint="load the model again"
            )
        return reply

    def _persist(self, deadline: Deadline, action: Callable[[], _T]) -> _T:
        """Repeats ``action`` with growing pauses while the link fails, up to the deadline."""
        pause = _RETRY_FIRST_S
        while True:
            try:
                return action()
            except LinkError as error:
                if deadline.remaining() <= pause:
                    raise
                logger.debug("board %r: %s; again in %.1f s", self.name, error.message, pause)
            time.sleep(pause)
            pause = min(2 * pause, _RETRY_LAST_S)

    # ---- replies -------------------------------------------------------------------------------------------------

    def _accepted(self, reply: Reply) -> Reply:
        self._check_boot(reply[0])
        return checked(reply, self.name)

    def _check_boot(self, header: Mapping[str, Any]) -> None:
        boot_id = str(header.get("boot_id") or "")
        before, self._boot_id = self._boot_id, boot_id or self._boot_id
        if before is not None and boot_id and boot_id != before:
            self._on_lost("the board has rebooted")
            raise DeviceReboot(
                "the board has rebooted; what was measured before is void",
                hint="load the model and measure again",
                detail=f"boot id {before} became {boot_id}",
            )


def _unpacked(blobs: Sequence[Buffer]) -> Reply:
    """The reply frame inside a fetched result."""
    rest = memoryview(blobs[0] if blobs else b"")

    def read_exact(size: int) -> memoryview:
        nonlocal rest
        if size > len(rest):
            raise LinkError("the kept result is cut short")
        head, rest = rest[:size], rest[size:]
        return head

    return frames.read_frame(read_exact)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid()) if hasattr(os, "getuid") else "unknown"
