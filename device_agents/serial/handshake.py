"""Finds the board, opens its line without resetting it, makes sure that it is the one, and raises the rate."""

from __future__ import annotations

import logging
import secrets
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from device_agents.contract import AgentError, BoardUnfit, DeviceTimeout, LinkError
from device_agents.transport import Deadline

from .codes import BAUD_REVERT_S, REPLY, VERSION, Caps, Status, Type
from .errors import crashed, refusal
from .fields import Fields
from .frames import Frame, encode
from .linelog import LineLog
from .messages import Hello
from .port import Found, Port, SerialTarget, candidates
from .reader import Reader

logger = logging.getLogger(__name__)

_RATES = (3_000_000, 2_000_000, 1_500_000, 921_600, 460_800, 230_400, 115_200)
_HELLO_S = 0.3
_HELLO_TRIES = 3
_BOOT_S = 3.0
"""A chip of the ESP32 family with a large PSRAM takes about a second from reset to the application."""
_SETTLE_S = 0.03
_TRIALS = 3


@dataclass
class Opened:
    """An open line to the right board."""

    port: Port
    reader: Reader
    boot: int
    hello: Hello
    baud: int
    round_trip_s: float

    def close(self) -> None:
        self.reader.close()
        self.port.close()


def lock_address(target: SerialTarget) -> str:
    """What the board's lock is named after."""
    return target.mac or target.usb_serial or target.port or "serial"


def open_board(
    target: SerialTarget, log: LineLog, deadline: Deadline, reset: Callable[[], bool] | None = None
) -> Opened:
    """Tries every port that may be the board's. With ``reset``, a board that does not answer is reset by it.

    Raises:
        LinkError: no port, busy, no permission, only noise.
        DeviceTimeout: a port, and silence.
        BoardUnfit: another board, other firmware, another version of it.
        DeviceReboot, DeviceCrash: it resets again and again.
    """
    errors: list[AgentError] = []
    for found in candidates(target):
        try:
            return _open_port(found, target, log, deadline, reset)
        except AgentError as error:
            logger.debug("%s: %s", found.device, error)
            errors.append(error)
            if deadline.passed:
                break
    # A board that says what is wrong with it tells more than a silent port.
    raise min(errors, key=lambda error: isinstance(error, LinkError) + isinstance(error, DeviceTimeout))


def _open_port(
    found: Found, target: SerialTarget, log: LineLog, deadline: Deadline, reset: Callable[[], bool] | None
) -> Opened:
    port = Port(found, target.baud, target.reset)
    reader = Reader(port, log)
    try:
        talk = _Talk(port, reader, log)
        hello, baud = _hello_at_any_rate(talk, target, deadline, reset)
        _check_identity(hello, target, found.device)
        opened = Opened(port, reader, talk.boot, hello, baud, talk.round_trip_s)
        if port.carries_baud and hello.caps & Caps.SET_BAUD:
            opened.baud = _raise_rate(talk, baud, min(target.max_baud, hello.max_baud))
        return opened
    except BaseException:
        reader.close()
        port.close()
        raise


class _Talk:
    """Single requests on a fresh line, without what :class:`SerialLink` knows of boots."""

    def __init__(self, port: Port, reader: Reader, log: LineLog) -> None:
        self.port = port
        self.reader = reader
        self.log = log
        self.boot = 0
        self.round_trip_s = 0.0
        self.frames = 0

    def ask(self, type_: Type, payload: bytes, timeout_s: float) -> bytes | None:
        """The body of the reply; ``None`` if none came in time. Raises a refusal as its typed error."""
        request = secrets.randbits(32)
        began = time.monotonic()
        self.port.write(encode(Frame(type_, 0, request, 0, payload)))
        until = began + timeout_s
        while (left := until - time.monotonic()) > 0:
            frame = self.reader.next(left)
            if frame is None:
                return None
            self.frames += 1
            if frame.request == request and frame.type == type_ | REPLY and len(frame.payload) >= 4:
                self.boot = frame.boot
                self.round_trip_s = time.monotonic() - began
                fields = Fields(frame.payload)
                if (status := fields.u32()) != Status.OK:
                    raise refusal(status, fields.text())
                return fields.rest()
        return None

    def hello(self, timeout_s: float = _HELLO_S) -> Hello | None:
        body = self.ask(Type.HELLO, struct.pack("<BB", VERSION, VERSION), timeout_s)
        return None if body is None else Hello.unpack(body)


def _hello_at_any_rate(
    talk: _Talk, target: SerialTarget, deadline: Deadline, reset: Callable[[], bool] | None
) -> tuple[Hello, int]:
    """The board's HELLO and the rate it answered at. A controller that was killed leaves the board at a higher rate."""
    rates = [target.baud]
    if talk.port.carries_baud:
        rates += [rate for rate in dict.fromkeys((target.max_baud, *_RATES)) if target.baud < rate <= target.max_baud]
    began = talk.reader.bytes_read
    for rate in rates:
        if rate != target.baud:
            talk.port.set_baud(rate)
        for _ in range(_HELLO_TRIES if rate == target.baud else 1):
            if (hello := talk.hello(min(_HELLO_S, deadline.remaining()))) is not None:
                return hello, rate
    talk.port.set_baud(target.baud)
    mark = talk.log.mark()  # before, at other rates, text looked like noise
    talk.frames = 0
    was_reset = reset() if reset is not None else talk.port.reset()
    until = time.monotonic() + min(_BOOT_S if was_reset else _HELLO_S, deadline.remaining())
    while time.monotonic() < until:
        if (hello := talk.hello()) is not None:
            return hello, target.baud
        if (loop := talk.log.loop()) is not None:
            raise crashed(talk.log.crash(mark), "start", talk.log.tail(), loop)
    raise _silence(talk, mark, talk.reader.bytes_read - began)


def _silence(talk: _Talk, mark: int, heard: int) -> AgentError:
    name, text = talk.port.name, talk.log.since(mark)
    if heard == 0 and talk.frames == 0:
        return DeviceTimeout(
            f"no answer on {name}: not a byte came",
            hint="is it the right port, and is boardtune's firmware on the board? boardtune boards flash NAME",
        )
    if talk.frames > 0:
        return DeviceTimeout(
            f"the board on {name} starts, and does not answer",
            hint="boardtune boards console NAME",
            detail=talk.log.tail(),
        )
    if b"waiting for download" in text:
        return BoardUnfit(f"the board on {name} is in its bootloader", hint="press reset, without holding BOOT")
    if crash := talk.log.crash(mark):
        return crashed(crash, "start", talk.log.tail())
    text = text[-1000:]  # what came before may still be of another rate
    readable = sum(0x20 <= byte < 0x7F or byte in b"\r\n\t" for byte in text)
    if text and readable > 0.9 * len(text):
        return BoardUnfit(
            f"the board on {name} answers with text, not with frames: other firmware is on it",
            hint="put boardtune's firmware on it: boardtune boards flash NAME",
            detail=talk.log.tail(),
        )
    return LinkError(
        f"{heard} bytes came on {name}, and no frame was among them",
        hint="wrong baud rate, a bad cable, or another device",
        detail=talk.log.tail(),
    )


def _check_identity(hello: Hello, target: SerialTarget, device: str) -> None:
    mac = hello.mac.hex(":")
    if target.mac is not None and mac != target.mac.lower():
        raise BoardUnfit(
            f"the board on {device} is {hello.target} with MAC {mac}, not {target.mac}",
            hint="plug the right one in, or correct transport.mac",
        )
    if target.chip is not None and hello.target != target.chip:
        raise BoardUnfit(
            f"the board on {device} is an {hello.target}, its file says {target.chip}",
            hint="correct transport.target, or plug the right board in",
        )


def _raise_rate(talk: _Talk, baud: int, most: int) -> int:
    """The highest rate at which three HELLOs in a row are answered. Two phases: a rate that is not confirmed at
    itself is left again by both sides."""
    for rate in sorted({most, *(rate for rate in _RATES if rate <= most)}, reverse=True):
        if rate <= baud:
            break
        if _try_rate(talk, baud, rate):
            return rate
        logger.info("%s: %d baud do not work", talk.port.name, rate)
    return baud


def _try_rate(talk: _Talk, baud: int, rate: int) -> bool:
    request = struct.pack("<I", rate)
    try:
        if talk.ask(Type.SET_BAUD, request, 2 * _HELLO_S) is None:
            return False
    except AgentError as error:
        logger.debug("%d baud: %s", rate, error)
        return False
    time.sleep(_SETTLE_S)
    talk.port.set_baud(rate)
    began = time.monotonic()
    good = all(talk.hello(_HELLO_S / 2) is not None for _ in range(_TRIALS))
    if good and time.monotonic() - began < 0.8 * BAUD_REVERT_S:
        for _ in range(_TRIALS):
            if talk.ask(Type.SET_BAUD, request, _HELLO_S) is not None:
                return True
    talk.port.set_baud(baud)
    time.sleep(BAUD_REVERT_S + 2 * _SETTLE_S)
    return False
