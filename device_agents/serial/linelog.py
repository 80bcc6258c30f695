"""What a board says outside frames, kept and understood: boot log, panic text, resets.

Texts are those of ESP-IDF 5 and of the ROM bootloaders of the ESP32 family.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

_KEPT_BYTES = 64 * 1024
_LOOP_BOOTS, _LOOP_S = 4, 20.0
"""So many boots in so many seconds are a reset loop."""

CrashKind = Literal[
    "panic", "abort", "task_watchdog", "interrupt_watchdog", "brownout", "stack_overflow", "out_of_memory"
]

_PANIC = re.compile(rb"Guru Meditation Error: Core\s+(\d+) panic'ed \(([^)\r\n]{1,80})\)")
_PATTERNS: tuple[tuple[CrashKind, re.Pattern[bytes]], ...] = (
    ("brownout", re.compile(rb"Brownout detector was triggered|rst:0xf \(RTCWDT_BROWN_OUT_RESET\)|\(BROWN_OUT_RST\)")),
    ("task_watchdog", re.compile(rb"Task watchdog got triggered")),
    ("interrupt_watchdog", re.compile(rb"Interrupt wdt timeout on CPU ?\d|rst:0x8 \(TG1WDT_SYS_RST\)")),
    ("stack_overflow", re.compile(rb"A stack overflow in task (\S+)|Stack (?:smashing|canary watchpoint triggered)")),
    ("out_of_memory", re.compile(rb"(?:std::bad_alloc|Mem(?:ory)? alloc(?:ation)? fail\w*)")),
    ("abort", re.compile(rb"abort\(\) was called at PC (0x[0-9a-fA-F]+)|assert failed: [^\r\n]{1,160}")),
)
_BOOT = re.compile(rb"rst:(0x[0-9a-fA-F]+) \(([A-Z0-9_]+)\)")
_BACKTRACE = re.compile(rb"Backtrace:((?: ?0x[0-9a-fA-F]+:0x[0-9a-fA-F]+)+)")
_WORDS: dict[CrashKind, str] = {
    "panic": "the processor stopped with an exception",
    "abort": "the firmware called abort()",
    "task_watchdog": "the task watchdog struck: something ran too long without giving way",
    "interrupt_watchdog": "the interrupt watchdog struck",
    "brownout": "the brown-out detector struck: the supply voltage fell",
    "stack_overflow": "a task's stack overflowed",
    "out_of_memory": "an allocation failed",
}
HINTS: dict[CrashKind, str] = {
    "brownout": "use a shorter cable, a powered hub or another supply",
    "task_watchdog": "build the firmware with the task watchdog off or longer (CONFIG_ESP_TASK_WDT_TIMEOUT_S)",
}


@dataclass(frozen=True)
class Crash:
    """Why a board went down, in words."""

    kind: CrashKind
    text: str
    backtrace: str = ""


class LineLog:
    """The last 64 kB outside frames. Written by the reader thread, read by any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._kept = bytearray()
        self._boots: deque[tuple[float, str]] = deque(maxlen=16)
        self._clock = clock
        self._total = 0
        self._scanned = 0
        self.listener: Callable[[bytes], None] | None = None
        """Called with every piece, by the reader thread."""

    def append(self, data: bytes) -> None:
        with self._lock:
            self._kept += data
            self._total += len(data)
            del self._kept[:-_KEPT_BYTES]
            self._count_boots()
        if self.listener is not None:
            self.listener(data)

    def answered(self) -> None:
        """The board answers: its resets are no loop."""
        with self._lock:
            self._boots.clear()

    def _count_boots(self) -> None:
        # A banner may come in pieces: only whole ones count, each once.
        begin = max(0, len(self._kept) - (self._total - self._scanned))
        for match in _BOOT.finditer(bytes(self._kept), begin):
            self._boots.append((self._clock(), match[2].decode()))
            self._scanned = self._total - len(self._kept) + match.end()

    def mark(self) -> int:
        """A place to look from: see :meth:`since`."""
        with self._lock:
            return self._total

    def since(self, mark: int) -> bytes:
        with self._lock:
            return bytes(self._kept[max(0, len(self._kept) - (self._total - mark)) :])

    def tail(self, size: int = 2000) -> str:
        """The last of it, as text."""
        with self._lock:
            return bytes(self._kept[-size:]).decode("utf-8", "backslashreplace").strip()

    def crash(self, mark: int) -> Crash | None:
        """What brought the board down after ``mark``, if its log says so."""
        return find_crash(self.since(mark))

    def loop(self) -> str | None:
        """The reset reason, if the board has been resetting again and again."""
        now = self._clock()
        with self._lock:
            recent = [reason for at, reason in self._boots if now - at < _LOOP_S]
        return recent[-1] if len(recent) >= _LOOP_BOOTS else None


def find_crash(text: bytes) -> Crash | None:
    """The first crash that a log tells of."""
    found = _BACKTRACE.search(text)
    backtrace = found[1].decode().strip() if found else ""
    match = _PANIC.search(text)
    if match:
        return Crash("panic", f"Guru Meditation Error on core {match[1].decode()}: {match[2].decode()}", backtrace)
    for kind, pattern in _PATTERNS:
        if match := pattern.search(text):
            return Crash(kind, f"{_WORDS[kind]} ({match[0].decode('ascii', 'replace')[:100]})", backtrace)
    return None
