"""Requests and replies over a line that loses, damages and interrupts: sent again, matched by id, mended.

A request keeps its id however often it is sent; the board works it out once and keeps the reply. So every request may
be sent again after a timeout, and after the line came back under another name.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from device_agents.contract import AgentError, BadData, DeviceTimeout, LinkError
from device_agents.ssh.lock import BoardLock
from device_agents.transport import Deadline

from .codes import REPLY, Status, Type
from .errors import crashed, refusal
from .fields import Fields, Malformed
from .frames import Frame, encode
from .handshake import Opened, lock_address, open_board
from .linelog import LineLog
from .messages import Hello
from .port import SerialTarget

logger = logging.getLogger(__name__)

_RESEND_S, _RESEND_LAST_S = 0.25, 5.0
_TICK_S = 0.2
_DEAD_S = 5.0
"""After a crash text, so long is waited for the board to come up again."""
_RETRY_FIRST_S, _RETRY_LAST_S = 0.1, 1.0
_PROBE_FIRST_S, _PROBE_LAST_S, _PROBE_WAIT_S = 0.6, 10.0, 0.3
"""A silent board may have reset to its first rate: when to ask it there, and for how long."""


@dataclass(frozen=True)
class Reply:
    """A reply to one request, or the event that a frame came damaged. ``body`` is the payload after the status."""

    request: int
    type: int
    status: int
    body: bytes

    def checked(self) -> bytes:
        """The body, or the typed error of a status that is not OK."""
        if self.status != Status.OK:
            raise refusal(self.status, _text(self.body))
        return self.body


def _text(body: bytes) -> str:
    try:
        return Fields(body).text()
    except Malformed:
        return ""


class SerialLink:
    """``on_lost(why)`` is called whenever what is in the board's memory is gone. One caller at a time.

    ``reset``: another way to reset the board than the control lines (emulated boards have a power switch).
    """

    def __init__(
        self,
        name: str,
        target: SerialTarget,
        on_lost: Callable[[str], None],
        reset: Callable[[], bool] | None = None,
    ) -> None:
        self.name = name
        self.log = LineLog()
        self._target = target
        self._on_lost = on_lost
        self._reset = reset
        self._lock = BoardLock(target.lock_dir, [lock_address(target)], "serial")
        self._opened: Opened | None = None
        self._boot: int | None = None
        self._wanted = False
        self._request = secrets.randbits(32)
        self._seq = 0
        self._mark = 0
        self._heard = time.monotonic()
        self._probe_after = _PROBE_FIRST_S
        self.resent = 0
        """Requests sent more than once, for the line's quality."""

    # ---- the link ------------------------------------------------------------------------------------------------

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Errors that pass through name the board; payloads that do not decode are :class:`BadData`."""
        try:
            yield
        except AgentError as error:
            error.board = error.board or self.name
            raise
        except Malformed as error:
            raise BadData(f"the board's reply does not fit the protocol: {error}", board=self.name) from error

    def connect(self, deadline: Deadline) -> Hello:
        """Takes the board's lock and opens the line, if it is not open.

        Raises:
            LeaseLost, LinkError, DeviceTimeout, BoardUnfit.
        """
        self._lock.acquire()
        self._wanted = True
        if self._opened is None:
            try:
                self._open(deadline)
            except BaseException:
                if self._boot is None:
                    self._wanted = False
                    self._lock.release()
                raise
        return self.hello(deadline)

    def hello(self, deadline: Deadline) -> Hello:
        return Hello.unpack(self.ask(Type.HELLO, b"", deadline))

    def renew(self, deadline: Deadline) -> Hello:
        """A new link, whatever the state of the old one; a board that does not answer is reset. Any boot will do."""
        self._lock.acquire()
        self._wanted = True
        self.drop()
        self._on_lost("the board was recovered since")
        self._boot = None
        self._persist(deadline, self._open)
        return self.hello(deadline)

    def drop(self) -> None:
        """Closes the port; what the board holds is still there."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def close(self) -> None:
        """Never raises."""
        self._wanted = False
        self.drop()
        self._lock.release()

    def forget(self) -> None:
        """The next boot id is as good as any."""
        self._boot = None

    @property
    def boot_id(self) -> str:
        return f"{self._boot or 0:016x}"

    @property
    def baud(self) -> int:
        return self._opened.baud if self._opened is not None else self._target.baud

    @property
    def round_trip_s(self) -> float:
        return self._opened.round_trip_s if self._opened is not None else 0.0

    def reset_board(self) -> bool:
        """By control lines or power switch; whether there is a way. What was in its memory is gone."""
        self._on_lost("the board was reset")
        done = self._reset() if self._reset is not None else False
        if not done and self._opened is not None:
            done = self._opened.port.reset()
        self._boot = None
        self.drop()
        return done

    def _open(self, deadline: Deadline) -> None:
        opened = open_board(self._target, self.log, deadline, self._reset)
        mark, self._mark = self._mark, self.log.mark()
        self._opened = opened
        self._heard = time.monotonic()
        before, self._boot = self._boot, opened.boot
        if before is not None and before != opened.boot:
            self._on_lost("the board has rebooted")
            raise crashed(self.log.crash(mark), "a dropped link", self.log.tail())

    def live(self, deadline: Deadline) -> Opened:
        """The open line, mended if it had dropped.

        Raises:
            LinkError: never connected, closed, or not to be mended before the deadline.
            DeviceReboot: the board is another boot than before.
        """
        if not self._wanted:
            raise LinkError("not connected", hint="connect() first")
        if self._opened is not None and not self._opened.reader.alive:
            self.drop()
        if self._opened is None:
            self._persist(deadline, self._open)
        if self._opened is None:
            raise LinkError("not connected")
        return self._opened

    def lost(self, error: LinkError, deadline: Deadline) -> None:
        """The line ended during a request: the next :meth:`live` mends it. Raised where there is no time for that."""
        self.drop()
        if not self._wanted or deadline.passed:
            raise error
        logger.info("board %r: %s; looking for it again", self.name, error.message)

    def _persist(self, deadline: Deadline, action: Callable[[Deadline], None]) -> None:
        pause = _RETRY_FIRST_S
        while True:
            try:
                return action(deadline)
            except (LinkError, DeviceTimeout) as error:
                if deadline.remaining() <= pause:
                    raise
                logger.debug("board %r: %s; again in %.1f s", self.name, error.message, pause)
            time.sleep(pause)
            pause = min(2 * pause, _RETRY_LAST_S)

    # ---- single requests -----------------------------------------------------------------------------------------

    def ask(self, type_: Type, payload: bytes, deadline: Deadline, *, quiet_s: float | None = None) -> bytes:
        """The body of the reply. Sends again as needed and mends a dropped line; the board works it out once.

        ``quiet_s``: give up once nothing at all has been heard for so long.

        Raises:
            DeviceTimeout: no reply before the deadline, or the board was quiet too long.
            LinkError: the line could not be mended before the deadline.
            DeviceCrash, DeviceReboot: the board went down meanwhile.
            Others: the typed error of a refusal.
        """
        request = self.new_request()
        while True:
            self.live(deadline)
            try:
                reply = self._ask_once(type_, request, payload, deadline, quiet_s)
            except LinkError as error:
                self.lost(error, deadline)
            else:
                return reply.checked()

    def _ask_once(self, type_: Type, request: int, payload: bytes, deadline: Deadline, quiet_s: float | None) -> Reply:
        pause = max(_RESEND_S, 3 * self.round_trip_s) + 20 * len(payload) / self.baud
        self.send(type_, request, payload)
        sent = self._heard = time.monotonic()
        while True:
            reply = self.receive(min(_TICK_S, deadline.remaining()), type_.name)
            if reply is not None and reply.request == request and reply.type == type_:
                return reply
            now = time.monotonic()
            quiet = now - self._heard
            if deadline.passed or (quiet_s is not None and quiet > quiet_s):
                raise self._timeout(type_, deadline, quiet)
            damaged = reply is not None and reply.type == Type.EVENT_DAMAGED
            if damaged or now - max(sent, self._heard) >= pause:
                self.resent += 1
                self.send(type_, request, payload)
                sent = now
                pause = pause if damaged else min(2 * pause, _RESEND_LAST_S)

    def _timeout(self, type_: Type, deadline: Deadline, quiet: float) -> DeviceTimeout:
        return DeviceTimeout(
            f"the board did not answer {type_.name} within {min(deadline.seconds, quiet):.1f} s",
            hint="boardtune boards console shows what its line says",
            detail=self.log.tail(),
        )

    # ---- for requests in flight together -------------------------------------------------------------------------

    def new_request(self) -> int:
        self._request = (self._request + 1) & 0xFFFFFFFF
        return self._request

    def send(self, type_: Type, request: int, payload: bytes) -> None:
        """One frame. Raises :class:`LinkError` if the line is not open or ends."""
        if self._opened is None:
            raise LinkError("the line dropped")
        self._seq = (self._seq + 1) & 0xFFFF
        boot = 0 if type_ == Type.HELLO else self._boot or 0
        self._opened.port.write(encode(Frame(type_, self._seq, request, boot, payload)))

    def receive(self, timeout_s: float, during: str) -> Reply | None:
        """The next reply of this boot, whichever request it answers; ``None`` if none came in time.

        Raises:
            LinkError: the line is gone.
            DeviceCrash, DeviceReboot: the board went down, or another boot answers.
        """
        if self._opened is None:
            raise LinkError("the line dropped")
        until = time.monotonic() + timeout_s
        while True:
            frame = self._opened.reader.next(until - time.monotonic())
            if frame is None:
                self._look_for_crash(during)
                self._probe_first_rate(during)
                return None
            self._heard = time.monotonic()
            self._probe_after = _PROBE_FIRST_S
            if frame.boot != self._boot:
                self._rebooted(frame, during)
            if frame.type == Type.EVENT_DAMAGED:
                return Reply(0, Type.EVENT_DAMAGED, Status.OK, b"")
            if frame.type == Type.EVENT_LOG:
                self.log.append(frame.payload[2:] + b"\n")
            elif frame.type & REPLY and len(frame.payload) >= 4:
                self._mark = self._opened.reader.mark
                status = Fields(frame.payload).u32()
                return Reply(frame.request, frame.type & ~REPLY, status, frame.payload[4:])

    def _rebooted(self, frame: Frame, during: str) -> None:
        before, self._boot = self._boot, frame.boot
        if before is not None:
            self.drop()  # it is at its first rate now
            crash, self._mark = self.log.crash(self._mark), self.log.mark()
            self._on_lost("the board has rebooted")
            raise crashed(crash, during, self.log.tail(), self.log.loop())

    def _probe_first_rate(self, during: str) -> None:
        """Asks a silent board at the rate it has after a reset. One that is busy answers later, at the agreed rate."""
        opened = self._opened
        if opened is None or opened.baud == self._target.baud or not opened.port.carries_baud:
            return
        if time.monotonic() - self._heard < self._probe_after:
            return
        self._probe_after = min(2 * self._probe_after, _PROBE_LAST_S)
        opened.port.set_baud(self._target.baud)
        self.send(Type.HELLO, self.new_request(), b"\1\1")
        frame = opened.reader.next(_PROBE_WAIT_S)
        if frame is not None and frame.boot != self._boot:
            self._rebooted(frame, during)
        opened.port.set_baud(opened.baud)

    def _look_for_crash(self, during: str) -> None:
        """A board that says it crashed, or resets again and again, and does not come up."""
        crash, loop = self.log.crash(self._mark), self.log.loop()
        if loop is None and (crash is None or time.monotonic() - self._heard < _DEAD_S):
            return
        if loop is not None or crash is not None:
            self._on_lost("the board crashed")
            self._mark = self.log.mark()
            self._boot = None
            self.drop()
            raise crashed(crash, during, self.log.tail(), loop)
