"""The text protocol of MLPerf Tiny firmware (EEMBC's ``th_`` API): commands end in ``%``, replies in ``m-ready``.

Source: mlcommons/tiny, ``benchmark/api/internally_implemented.cpp`` (commands, messages, the buffer of 80 characters)
and ``benchmark/runner`` (31 bytes per ``db`` command, 115200 baud). The protocol has no check sums.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from device_agents.contract import AgentError, BadData, BoardUnfit, DeviceReboot, DeviceTimeout, LinkError
from device_agents.ssh.lock import BoardLock
from device_agents.transport import Deadline

from .errors import crashed
from .handshake import lock_address
from .linelog import LineLog
from .port import Found, Port, SerialTarget, candidates

DATA_BYTES = 31
"""Of a row in one ``db`` command: 3 + 62 characters of the 80 that the firmware keeps."""
_QUIET_S = 5.0
"""Longest silence of a command other than ``infer``; upstream's runner waits as long."""
_HELLO_S = 0.6
_HELLO_TRIES = 3
_BOOT_S = 5.0
_DRAIN_S = 0.15
_LINE_BYTES = 64 * 1024
_MOST_LINES = 10_000
_WRAP_US = 2**32
"""Stamps are printed as ``unsigned long``, which has 32 bits on microcontrollers: they wrap after 71 minutes."""
_CLOCK_SLACK_S = 60.0

_READY = re.compile(r"m-ready$")
_ERROR = re.compile(r"^e-\[(.*)\]$")
_MISFIT = re.compile(r"(?:e-\[)?(Input db has .*?)\]?$")
"""What most ``th_load_tensor()`` say of a row that does not fit the model, some as an error; they run all the same."""
_BOOT = re.compile(r"m-(?:init-done|timestamp-mode-\w+)$")
_LAP = re.compile(r"m-lap-us-(\d{1,20})")
_RESULTS = re.compile(r"m-results-\[(.*)\]")


@dataclass(frozen=True)
class Identity:
    """What the firmware says of itself."""

    name: str
    """``name%``: what its vendor calls the board."""
    profile: str
    model: str
    """``profile%``: the version string of the model compiled in, e.g. ``ic01``."""


@dataclass(frozen=True)
class Ran:
    """One ``infer`` command. Times are microseconds of the device's clock since it was first read."""

    start_us: int
    end_us: int
    results: tuple[float, ...] | None
    """As the firmware prints them, usually with three decimals; ``None`` where ``infer`` prints none."""
    remark: str
    """What the firmware says of an input that does not fit the model; it runs all the same."""


class Clock:
    """The device's clock from its stamps: without wraps, and with the step it counts in."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._at = 0.0
        self.now_us = 0
        self.step_us = 0
        """Greatest common divisor of all differences seen; 0 while the clock was not seen to move."""

    def take(self, stamp: int) -> int:
        """Microseconds since the first stamp.

        Raises:
            DeviceReboot: it went back, other than by a wrap.
            BadData: it is far ahead of this computer's: a damaged number, or a clock with a wrong rate.
        """
        at = time.monotonic()
        if self._last is not None:
            passed = stamp - self._last
            most_us = 1e6 * (2 * (at - self._at) + _CLOCK_SLACK_S)
            if passed < 0:
                passed += _WRAP_US
                if not 0 <= passed <= most_us:
                    raise DeviceReboot(f"the device's clock went back from {self._last} to {stamp} µs: it was reset")
            elif passed > most_us:
                raise BadData(
                    f"the device's clock went from {self._last} to {stamp} µs in {at - self._at:.3f} s here",
                    hint="the line damages bytes, or th_timestamp() of the firmware counts wrong",
                )
            self.now_us += passed
            self.step_us = math.gcd(self.step_us, passed)
        self._last, self._at = stamp, at
        return self.now_us


class MlperfLine:
    """The line to one board. After any error but a refusal it is closed: what state the firmware is in is unknown."""

    def __init__(self, target: SerialTarget) -> None:
        self._target = target
        self._lock = BoardLock(target.lock_dir, [lock_address(target)], "serial")
        self._port: Port | None = None
        self._mark = 0
        self._held = ""
        """What came after the last reply, or the beginning of a line."""
        self.log = LineLog()
        self.clock = Clock()
        self.found = Found("")

    # ---- opening -------------------------------------------------------------------------------------------------

    def open(self, deadline: Deadline) -> None:
        """Takes the board's lock and opens the line, if it is not open; a board that is silent is reset.

        Raises:
            LeaseLost, LinkError, DeviceTimeout, BoardUnfit, DeviceCrash, DeviceReboot.
        """
        self._lock.acquire()
        if self._port is not None:
            return
        try:
            self.found = candidates(self._target)[0]
            self._port = Port(self.found, self._target.baud, self._target.reset)
            self.clock = Clock()
            self._greet(deadline)
        except BaseException:
            self.drop()
            self._lock.release()
            raise

    def _greet(self, deadline: Deadline) -> None:
        """Until ``name%`` is answered: half a command may be left in the firmware, and it may be starting."""
        mark = self.log.mark()
        for was_reset in (False, True):
            if was_reset and not self._live().reset():
                break
            until = time.monotonic() + (_BOOT_S if was_reset else 0.0)
            tries = 0
            while tries < _HELLO_TRIES or time.monotonic() < until:
                tries += 1
                if self._answers("name", "m-name-", deadline):
                    self._drain()
                    return
        raise self._not_this(mark)

    def _answers(self, command: str, begin: str, deadline: Deadline) -> bool:
        """Whether a reply has such a line. What else comes meanwhile is of before."""
        self._send(command)
        until = time.monotonic() + min(_HELLO_S, deadline.remaining())
        text = ""
        while time.monotonic() < until:
            text = (text + self._hear())[-_LINE_BYTES:]
            lines = [line.strip() for line in text.splitlines()]
            named = [at for at, line in enumerate(lines) if line.startswith(begin)]
            if named and any(_READY.search(line) for line in lines[named[0] :]):
                return True
        return False

    def _drain(self) -> None:
        """Replies to what was asked before must not be taken for those of the next command."""
        quiet = time.monotonic() + _DRAIN_S
        until = time.monotonic() + _BOOT_S
        while time.monotonic() < min(quiet, until):
            if self._hear():
                quiet = time.monotonic() + _DRAIN_S
        self._mark = self.log.mark()
        self._held = ""

    def _not_this(self, mark: int) -> AgentError:
        name, text = self._live().name, self.log.since(mark)
        if not text:
            return DeviceTimeout(
                f"no answer on {name}: not a byte came",
                hint="is it the right port, and MLPerf Tiny firmware with a UART at this rate on the board?",
            )
        loop = self.log.loop()
        if (crash := self.log.crash(mark)) or loop:
            return crashed(crash, "start", self.log.tail(), loop)
        readable = sum(0x20 <= byte < 0x7F or byte in b"\r\n\t" for byte in text)
        if readable > 0.9 * len(text):
            return BoardUnfit(
                f"the board on {name} answers with text, and not as MLPerf Tiny firmware does to name%",
                hint="other firmware is on it, or its energy mode: see boardtune boards console NAME",
                detail=self.log.tail(),
            )
        return LinkError(
            f"{len(text)} bytes came on {name}, and no answer was among them",
            hint="wrong baud rate, a bad cable, or another device",
            detail=self.log.tail(),
        )

    def drop(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None

    def close(self) -> None:
        self.drop()
        self._lock.release()

    # ---- commands ------------------------------------------------------------------------------------------------

    def identify(self, deadline: Deadline) -> Identity:
        name = self._value("name", r"m-name-\S+?-\[(.*)\]", deadline)
        lines = self.ask("profile", deadline)
        return Identity(
            name,
            _only(lines, r"m-profile-\[(.*)\]", "profile%"),
            _only(lines, r"m-model-\[(.*)\]", "profile%"),
        )

    def timestamp(self, deadline: Deadline) -> int:
        """Microseconds of the device's clock since its first stamp."""
        laps = _laps(self.ask("timestamp", deadline))
        if len(laps) != 1:
            raise _no_stamps(len(laps), 1)
        return self._take(laps[0])

    def put(self, row: bytes, deadline: Deadline) -> None:
        """Fills the firmware's input buffer.

        Raises:
            BoardUnfit: it is too small.
            BadData: the firmware does not confirm.
        """
        lines = self.ask(f"db load {len(row)}", deadline)
        if f"m-[Expecting {len(row)} bytes]" not in lines:
            if too_large := next((line for line in lines if "exceeds maximum" in line), ""):
                raise BoardUnfit(f"a row has {len(row)} bytes, and the firmware has no room for it: {too_large}")
            raise BadData(f"the firmware does not expect {len(row)} bytes: {_shown(lines)}")
        for at in range(0, len(row), DATA_BYTES):
            lines = self.ask(f"db {row[at : at + DATA_BYTES].hex()}", deadline)
            last = at + DATA_BYTES >= len(row)
            if ("m-load-done" in lines) != last:
                raise BadData(
                    f"of a row of {len(row)} bytes the firmware counts another number: {_shown(lines)} after "
                    f"{min(at + DATA_BYTES, len(row))}",
                    hint="the line loses bytes",
                )

    def infer(self, warmup: int, deadline: Deadline, quiet_s: float) -> Ran:
        """One timed inference after ``warmup`` others.

        Raises:
            BoardUnfit: the firmware prints no stamps.
            BadData: a reply that is not whole.
        """
        lines = self.ask(f"infer 1 {warmup}", deadline, quiet_s)
        for wanted in (f"m-warmup-start-{warmup}", "m-infer-start-1", "m-infer-done"):
            if wanted not in lines:
                raise BadData(f"the reply to infer is not whole: {wanted} is missing in {_shown(lines)}")
        laps = _laps(lines)
        if len(laps) != 2:
            raise _no_stamps(len(laps), 2)
        start, end = self._take(laps[0]), self._take(laps[1])
        results = _numbers(lines) if any(line.startswith("m-results") for line in lines) else None
        remark = next((match[1] for line in lines if (match := _MISFIT.match(line))), "")
        return Ran(start, end, results, remark)

    def results(self, deadline: Deadline) -> tuple[float, ...]:
        """Outputs of the last inference."""
        return _numbers(self.ask("results", deadline))

    def ask(self, command: str, deadline: Deadline, quiet_s: float = _QUIET_S) -> tuple[str, ...]:
        """The lines of the reply before ``m-ready``.

        Raises:
            BadData, BoardUnfit: the firmware refuses with ``e-[…]``.
            DeviceTimeout: no reply, or half of one.
            DeviceReboot, DeviceCrash: it was reset since the last command, or by this one.
            LinkError: the port is gone, or only noise came.
        """
        during = f"{command.partition(' ')[0]}%"
        try:
            *before, self._held = (self._held + self._hear(wait=False)).split("\n")
            self._check_boot(before, "a pause")
            self._send(command)
            lines = self._reply(during, deadline, quiet_s)
        except AgentError as error:
            # What still runs there is stopped by a reset: there is nothing else.
            if isinstance(error, DeviceTimeout) and not self._live().reset():
                error.hint = error.hint or "it has no reset line: press its reset button, then try again"
            self.drop()
            raise
        self._mark = self.log.mark()
        for line in lines:
            if (refused := _ERROR.search(line)) and not _MISFIT.match(line):
                kind = BoardUnfit if "nknown command" in refused[1] else BadData
                raise kind(f"the firmware refuses {during}: {refused[1]}", hint="is it MLPerf Tiny's firmware?")
        return lines

    def _reply(self, during: str, deadline: Deadline, quiet_s: float) -> tuple[str, ...]:
        lines: list[str] = []
        quiet = Deadline(quiet_s)
        while not (quiet.passed or deadline.passed):
            self._held = (self._held + self._hear())[-_LINE_BYTES:]
            while "\n" in self._held:
                line, _, self._held = self._held.partition("\n")
                text = line.strip()
                self._check_boot((text,), during)
                if _READY.search(text):
                    return tuple(lines)
                if text:
                    lines.append(text)
                if text.startswith(("m-", "e-")):
                    quiet = Deadline(quiet_s)
            if len(lines) > _MOST_LINES:
                raise BadData(f"the reply to {during} does not end", detail=self.log.tail())
        if crash := self.log.crash(self._mark):
            raise crashed(crash, during, self.log.tail())
        if any(line.startswith(("m-", "e-")) for line in lines):
            raise DeviceTimeout(f"the reply to {during} breaks off after {lines[-1][:80]!r}", detail=self.log.tail())
        if heard := self.log.mark() - self._mark:
            raise LinkError(f"{heard} bytes came, and no reply to {during} was among them", detail=self.log.tail())
        raise DeviceTimeout(f"no reply to {during} in {min(quiet_s, deadline.seconds):.0f} s")

    def _check_boot(self, lines: Sequence[str], during: str) -> None:
        if any(_BOOT.search(line.strip()) for line in lines):
            raise crashed(self.log.crash(self._mark), during, self.log.tail(), self.log.loop())

    def _value(self, command: str, pattern: str, deadline: Deadline) -> str:
        return _only(self.ask(command, deadline), pattern, f"{command}%")

    def _take(self, stamp: int) -> int:
        try:
            return self.clock.take(stamp)
        except AgentError:
            self.drop()
            raise

    def _send(self, command: str) -> None:
        self._live().write(f"{command}%".encode("ascii"))

    def _hear(self, *, wait: bool = True) -> str:
        port = self._live()
        data = port.read() if wait else port.pending()
        if data:
            self.log.append(data)
        return data.decode("ascii", "replace")

    def _live(self) -> Port:
        if self._port is None:
            raise LinkError("the line is not open", hint="connect or recover first")
        return self._port


def _only(lines: Sequence[str], pattern: str, what: str) -> str:
    for line in lines:
        if match := re.fullmatch(pattern, line):
            return match[1]
    raise BadData(f"the reply to {what} is not whole: {_shown(lines)}")


def _laps(lines: Sequence[str]) -> list[int]:
    return [int(match[1]) for line in lines if (match := _LAP.fullmatch(line))]


def _no_stamps(count: int, wanted: int) -> AgentError:
    if count == 0:
        return BoardUnfit(
            "the firmware prints no m-lap-us-…: it is built for energy, or its th_timestamp() only moves a pin",
            hint="build it for performance (EE_CFG_ENERGY_MODE 0)",
        )
    return BadData(f"{count} stamps came where {wanted} are due")


def _numbers(lines: Sequence[str]) -> tuple[float, ...]:
    for line in lines:
        if match := _RESULTS.fullmatch(line):
            try:
                return tuple(float(text) for text in match[1].split(",") if text.strip())
            except ValueError:
                break
    raise BadData(f"no whole m-results-[…] in {_shown(lines)}")


def _shown(lines: Sequence[str]) -> str:
    return repr(" / ".join(lines)[:200]) if lines else "an empty reply"
