"""What boards say when they go down: texts as ESP-IDF prints them."""

from __future__ import annotations

import pytest

from device_agents.contract import DeviceCrash, DeviceReboot
from device_agents.serial.errors import crashed
from device_agents.serial.linelog import LineLog, find_crash

PANIC = (
    b"Guru Meditation Error: Core  0 panic'ed (LoadProhibited). Exception was unhandled.\r\n\r\n"
    b"Core  0 register dump:\r\nPC      : 0x4200c5d2  PS      : 0x00060430\r\n\r\n"
    b"Backtrace: 0x4200c5cf:0x3fc96e70 0x4200c6a1:0x3fc96e90\r\n\r\nELF file SHA256: 9b1d\r\n\r\nRebooting...\r\n"
)
TEXTS = [
    (PANIC, "panic", "LoadProhibited"),
    (b"Guru Meditation Error: Core  1 panic'ed (Cache error). \r\n", "panic", "core 1: Cache error"),
    (b"\r\nabort() was called at PC 0x403a9c6b on core 0\r\n", "abort", "0x403a9c6b"),
    (b"assert failed: heap_caps_free heap_caps.c:381 (heap != NULL)\r\n", "abort", "heap_caps_free"),
    (b"E (10396) task_wdt: Task watchdog got triggered. The following tasks did not\r\n", "task_watchdog", "watchdog"),
    (b"Brownout detector was triggered\r\n\r\n", "brownout", "voltage"),
    (b"***ERROR*** A stack overflow in task main has been detected.\r\n", "stack_overflow", "task main"),
]


@pytest.mark.parametrize(("text", "kind", "word"), TEXTS)
def test_crashes_are_recognised(text: bytes, kind: str, word: str) -> None:
    crash = find_crash(b"I (100) app: all is well\r\n" + text)
    assert crash is not None
    assert crash.kind == kind
    assert word in crash.text


def test_a_backtrace_is_kept() -> None:
    crash = find_crash(PANIC)
    assert crash is not None
    assert crash.backtrace == "0x4200c5cf:0x3fc96e70 0x4200c6a1:0x3fc96e90"


def test_an_ordinary_boot_is_no_crash() -> None:
    assert find_crash(b"ESP-ROM:esp32s3-20210327\r\nrst:0x1 (POWERON),boot:0x8 (SPI_FAST_FLASH_BOOT)\r\n") is None


def test_brownout_is_the_boards_fault_and_a_panic_the_models() -> None:
    brownout = crashed(find_crash(b"Brownout detector was triggered"), "RUN", "")
    assert type(brownout) is DeviceReboot
    assert "supply" in brownout.hint
    assert type(crashed(find_crash(PANIC), "RUN", "")) is DeviceCrash
    assert type(crashed(None, "RUN", "")) is DeviceReboot


def test_a_reset_loop_is_noticed_however_the_banners_come() -> None:
    now = [0.0]
    log = LineLog(clock=lambda: now[0])
    banner = b"rst:0xf (RTCWDT_BROWN_OUT_RESET),boot:0x8 (SPI_FAST_FLASH_BOOT)\r\n"
    for _ in range(3):
        for byte in banner:
            log.append(bytes([byte]))
        now[0] += 1.0
    assert log.loop() is None
    log.append(banner)
    assert log.loop() == "RTCWDT_BROWN_OUT_RESET"
    log.answered()
    assert log.loop() is None
    for _ in range(4):
        log.append(banner)
    assert log.loop() is not None
    now[0] += 60.0
    assert log.loop() is None


def test_the_log_is_bounded_and_places_stay_right() -> None:
    log = LineLog()
    log.append(b"x" * 200_000)
    mark = log.mark()
    log.append(b"tail")
    assert log.since(mark) == b"tail"
    assert len(log.since(0)) == 64 * 1024
