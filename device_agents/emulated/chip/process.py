"""The process of one emulated board: ``process.py FOLDER``. The board is on as long as its stdin is open.

Every line on stdout is the port at which the board is now, as JSON; there is another one after it was unplugged.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import threading
import time
from pathlib import Path

from device_agents.serial.codes import BAUD_REVERT_S, ResetReason, Type
from device_agents.serial.frames import Decoder, Frame, encode

from .device import Device, Reset
from .faults import Faults
from .line import SerialLine
from .spec import ChipFaultKind, EmulatedChipSpec

_POLL_S = 0.05
_UNPLUGGED_S = 0.3
_ROM = {"esp32s3": "ESP-ROM:esp32s3-20210327", "esp32p4": "ESP-ROM:esp32p4-eco2-20240710"}
_BANNERS = {
    ResetReason.POWER_ON: "rst:0x1 (POWERON),boot:0x8 (SPI_FAST_FLASH_BOOT)",
    ResetReason.BROWNOUT: "rst:0xf (RTCWDT_BROWN_OUT_RESET),boot:0x8 (SPI_FAST_FLASH_BOOT)",
}
_PANIC = (
    "\r\nGuru Meditation Error: Core  0 panic'ed (LoadProhibited). Exception was unhandled.\r\n\r\n"
    "Core  0 register dump:\r\nPC      : 0x4200c5d2  PS      : 0x00060430  A0      : 0x8200c6a4\r\n\r\n"
    "Backtrace: 0x4200c5cf:0x3fc96e70 0x4200c6a1:0x3fc96e90\r\n\r\nRebooting...\r\n"
)
_WATCHDOG = (
    "E (51234) task_wdt: Task watchdog got triggered. The following tasks/users did not reset the watchdog in time:\r\n"
    "E (51234) task_wdt:  - IDLE0 (CPU 0)\r\nE (51234) task_wdt: Aborting.\r\n\r\n"
    "abort() was called at PC 0x42009f3d on core 0\r\n\r\nRebooting...\r\n"
)
_BROWNOUT = "\r\nBrownout detector was triggered\r\n\r\n"


class Board:
    """Boots the chip again and again, with its line and its faults."""

    def __init__(self, spec: EmulatedChipSpec, folder: Path) -> None:
        self._spec = spec
        self._folder = folder
        self._faults = Faults(spec.faults)
        self._ours, self._theirs = socket.socketpair()
        self._baud = 115200
        self._silent = False
        self._stale: Frame | None = None
        self._last: Frame | None = None
        self._line = self._plug_in()

    def _plug_in(self) -> SerialLine:
        line = SerialLine(self._spec.line, self._theirs.fileno(), self._spec.seed, lambda: self._baud)
        print(json.dumps({"port": line.port}), flush=True)
        return line

    def run(self) -> None:
        """For ever."""
        reason, text = ResetReason.POWER_ON, ""
        while True:
            self._set_baud(115200)
            self._say(f"{_ROM.get(self._spec.chip.target, 'ESP-ROM')}\r\n")
            self._say(_BANNERS.get(reason, "rst:0xc (RTC_SW_CPU_RST),boot:0x8 (SPI_FAST_FLASH_BOOT)") + "\r\n")
            device = Device(self._spec, self._folder, self._send, self._set_baud, reason)
            try:
                self._serve(device)
            except Reset as reset:
                reason, text = reset.reason, reset.log
                self._say(text)

    def _serve(self, device: Device) -> None:
        device.ready()
        decoder = Decoder()
        while True:
            device.tick(BAUD_REVERT_S)
            readable, _, _ = select.select([self._ours], [], [], _POLL_S)
            if not readable:
                continue
            for item in decoder.feed(self._ours.recv(65536)):
                if isinstance(item, Frame):
                    self._take(device, item)

    def _take(self, device: Device, frame: Frame) -> None:
        name = Type(frame.type).name if frame.type in set(Type) else "?"
        fault = self._faults.strike(name)
        if fault is not None:
            self._strike(fault, device)
        if self._silent:
            return
        device.handle(frame)

    def _strike(self, fault: ChipFaultKind, device: Device) -> None:
        match fault:
            case "panic":
                raise Reset(ResetReason.PANIC, _PANIC)
            case "task_watchdog":
                raise Reset(ResetReason.TASK_WATCHDOG, _WATCHDOG)
            case "brownout":
                raise Reset(ResetReason.BROWNOUT, _BROWNOUT)
            case "reset":
                raise Reset(ResetReason.EXTERNAL)
            case "reset_loop":
                self._loop()
            case "hang":
                time.sleep(86_400)
            case "silent":
                self._silent = True
            case "garbage":
                self._babble()
            case "text":
                self._chatter()
            case "old_firmware":
                device.old_version = True
            case "full_slots":
                device.slots.full = True
            case "flash_fails":
                device.slots.flash_fails = True
            case "wrong_results":
                device.wrong_results = True
            case "stale_reply":
                self._stale = self._last
            case "unplug":
                self._line.unplug()
                time.sleep(_UNPLUGGED_S)
                self._ours, self._theirs = self._fresh_sockets()
                self._line = self._plug_in()

    def _fresh_sockets(self) -> tuple[socket.socket, socket.socket]:
        for old in (self._ours, self._theirs):
            with contextlib.suppress(OSError):
                old.shutdown(socket.SHUT_RDWR)
        return socket.socketpair()

    def _loop(self) -> None:
        while True:
            self._say(_BROWNOUT)
            self._say(_BANNERS[ResetReason.BROWNOUT] + "\r\n")
            time.sleep(0.2)

    def _babble(self) -> None:
        while True:
            self._ours.sendall(os.urandom(64).replace(b"\0", b"\1"))
            time.sleep(0.01)

    def _chatter(self) -> None:
        while True:
            self._say("I (1234) hello_world: Hello world! Restarting in 10 seconds...\r\n")
            time.sleep(0.05)

    def _send(self, frame: Frame) -> None:
        if self._stale is not None:
            stale, self._stale = self._stale, None
            self._ours.sendall(encode(stale))
        self._last = frame
        self._ours.sendall(encode(frame))

    def _say(self, text: str) -> None:
        self._ours.sendall(text.encode())

    def _set_baud(self, baud: int) -> None:
        if baud != self._baud:
            time.sleep(0.02)  # what was sent is on the line by then
        self._baud = baud


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def main(argv: list[str]) -> int:
    folder = Path(argv[0])
    spec = EmulatedChipSpec.model_validate_json((folder / "chip.json").read_text())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    Board(spec, folder).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
