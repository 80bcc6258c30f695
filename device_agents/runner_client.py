"""One connection to a running runner: start it, find the marker, exchange frames, each wait with a deadline."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from device_agents.contract import AgentError, BadData, BoardUnfit, LinkError
from device_agents.runner import frames
from device_agents.runner.frames import Buffer
from device_agents.runner_package import build_runner
from device_agents.runner_wire import error_from_wire
from device_agents.transport import Channel, Deadline, Transport

logger = logging.getLogger(__name__)

Reply = tuple[dict[str, Any], list[Buffer]]
_READ_BYTES = 1 << 20


class _DoesNotStart(BoardUnfit):
    """Python is there and ended before the runner spoke."""


def new_request_id() -> str:
    """Unique over all runs: results are kept on the board under it."""
    return uuid.uuid4().hex


def device_seconds(deadline: Deadline) -> float:
    """What the board may take of a deadline, so that its own typed answer arrives before ours passes."""
    remaining = deadline.remaining()
    return remaining - min(2.0, 0.1 * remaining)


def start_runner(transport: Transport, board: str, deadline: Deadline) -> RunnerClient:
    """Makes the runner on the board current and starts it.

    Raises:
        BoardUnfit: no Python there, or one too old.
        LinkError, DeviceTimeout: the transport's.
    """
    there = transport.file_size(runner_path()) == len(build_runner()[0])
    if not there:
        send_runner(transport)
    try:
        return _started(transport, runner_path(), board, deadline)
    except _DoesNotStart:
        if not there:
            raise
    # Right size, wrong bytes: a disk that lied, a power cut.
    logger.warning("board %r: the runner does not start; sending it again", board)
    send_runner(transport)
    return _started(transport, runner_path(), board, deadline)


def runner_path() -> str:
    """Where the runner lies in the board's work folder."""
    return f"runner/{build_runner()[1]}.pyz"


def send_runner(transport: Transport) -> None:
    transport.write_file(runner_path(), build_runner()[0])


def _started(transport: Transport, relpath: str, board: str, deadline: Deadline) -> RunnerClient:
    channel = transport.start([relpath, "serve"], deadline.remaining())
    client = RunnerClient(channel, board)
    try:
        client.find_marker(deadline)
    except BaseException:
        client.close()
        raise
    return client


def checked(reply: Reply, board: str) -> Reply:
    """``reply`` itself, or the error it carries, raised."""
    if not reply[0].get("ok"):
        raise error_from_wire(reply[0].get("error") or {}, board)
    return reply


class RunnerClient:
    """Requests and replies over one channel. After :class:`LinkError` or ``DeviceTimeout`` it is of no more use."""

    def __init__(self, channel: Channel, board: str) -> None:
        self._channel = channel
        self._board = board
        self._pending = bytearray()

    def find_marker(self, deadline: Deadline) -> None:
        """Skips what a login shell prints before the runner starts, at most 64 kB of it."""
        marker = frames.MARKER
        while (at := self._pending.find(marker)) < 0:
            if len(self._pending) > frames.MAX_NOISE + len(marker):
                raise BoardUnfit(
                    f"the board's login prints more than {frames.MAX_NOISE} bytes before the runner starts",
                    board=self._board,
                    hint="make its shell start-up files quiet for sessions without a terminal",
                )
            chunk = self._channel.read(65536, deadline.remaining())
            if not chunk:
                raise self._not_started(deadline)
            self._pending += chunk
        if at:
            logger.debug("board %r: %d bytes before the marker", self._board, at)
        del self._pending[: at + len(marker)]

    def request(
        self,
        operation: str,
        header: Mapping[str, Any] | None = None,
        blobs: Sequence[Buffer] = (),
        *,
        deadline: Deadline,
        request_id: str | None = None,
    ) -> Reply:
        """The reply to one request.

        Raises:
            LinkError: the connection or the runner is gone.
            DeviceTimeout: no reply before the deadline.
            AgentError: whatever the board answered.
        """
        wanted = request_id or new_request_id()
        asked = {**(header or {}), "id": wanted, "op": operation, "deadline_s": device_seconds(deadline)}
        try:
            parts = frames.encode(asked, blobs)
        except frames.FrameError as error:
            raise BadData(f"{operation}: {error}", board=self._board, hint="send fewer samples at once") from error
        for part in parts:
            self._channel.write(part if isinstance(part, bytes) else memoryview(part), deadline.remaining())
        while True:
            try:
                reply, out = frames.read_frame(lambda size: self._read_exact(size, deadline))
            except frames.FrameError as error:
                raise LinkError(f"what came from the board is no frame: {error}", board=self._board) from error
            if reply.get("id") == wanted:
                return reply, out
            logger.warning("board %r: dropped a reply to another request, %s", self._board, reply.get("id"))

    def close(self) -> None:
        self._channel.close()

    def _read_exact(self, size: int, deadline: Deadline) -> bytearray:
        out = bytearray(self._pending[:size])
        del self._pending[:size]
        while len(out) < size:
            chunk = self._channel.read(min(size - len(out), _READ_BYTES), deadline.remaining())
            if not chunk:
                raise LinkError(
                    "the connection to the runner dropped", board=self._board, detail=self._channel.stderr_tail()
                )
            out += chunk
        return out

    def _not_started(self, deadline: Deadline) -> AgentError:
        """Why the stream ended before the marker."""
        status, tail = self._channel.exit_status(), self._channel.stderr_tail()
        last = tail.strip().splitlines()[-1] if tail.strip() else ""
        if status == 127 or "not found" in tail:
            return BoardUnfit(
                "the board has no such Python",
                board=self._board,
                hint="install Python 3.8 or newer there, or name its path as python in the board file",
                detail=tail,
            )
        if "boardtune-runner:" in tail:
            return BoardUnfit(last.partition("boardtune-runner:")[2].strip() or last, board=self._board, detail=tail)
        if status is None and not tail:
            return LinkError("the connection dropped while the runner was starting", board=self._board)
        return _DoesNotStart(
            f"the runner does not start: {last or f'exit status {status}'}", board=self._board, detail=tail
        )
