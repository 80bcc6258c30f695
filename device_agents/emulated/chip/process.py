"""The process of one emulated board: ``process.py FOLDER``.

The board is on as long as its stdin is open; a byte there presses its reset button.

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

from device_agents.serial.codes import BAUD_REVERT_S, SHORTEST_FRAME, ResetReason, Type
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
        self._foreign: ChipFaultKind | None = None
        """What comes instead of frames, at every boot."""
        self.button = threading.Event()
        """Set when somebody presses reset."""
        self._stale: Frame | None = None
        self._last: Frame | None = None
        self._line = self._new_line()
        self._announce()

    def _new_line(self) -> SerialLine:
        return SerialLine(self._spec.line, self._theirs.fileno(), self._spec.seed, lambda: self._baud)

    def _announce(self) -> None:
        print(json.dumps({"port": self._line.port}), flush=True)

    def run(self) -> None:
        """For ever."""
        reason, text = ResetReason.POWER_ON, ""
        while True:
            self._set_baud(115200)
            self._say(f"{_ROM.get(self._spec.chip.target, 'ESP-ROM')}\r\n")
            self._say(_BANNERS.get(reason, "rst:0xc (RTC_SW_CPU_RST),boot:0x8 (SPI_FAST_FLASH_BOOT)") + "\r\n")
            device = Device(self._spec, self._folder, self._send, self._set_baud, reason)
            self._silent = False
            try:
                if self._foreign is not None:
                    self._be_foreign()
                self._serve(device)
            except Reset as reset:
                reason, text = reset.reason, reset.log
                self._say(text)

    def _serve(self, device: Device) -> None:
        device.ready()
        decoder = Decoder()
        while True:
            self._look_at_button()
            device.tick(BAUD_REVERT_S)
            readable, _, _ = select.select([self._ours], [], [], _POLL_S)
            if not readable:
                continue
            for item in decoder.feed(self._ours.recv(65536)):
                if isinstance(item, Frame):
                    self._take(device, item)
                elif len(item) >= SHORTEST_FRAME and not self._silent:
                    device.emit(Type.EVENT_DAMAGED, 0, b"")

    def _look_at_button(self, wait_s: float = 0.0) -> None:
        if self.button.wait(wait_s):
            self.button.clear()
            raise Reset(ResetReason.EXTERNAL)

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
                self._look_at_button(threading.TIMEOUT_MAX)
            case "silent":
                self._silent = True
            case "garbage" | "text":
                self._foreign = fault
                self._be_foreign()
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
                gone = self._line
                self._ours, self._theirs = self._fresh_sockets()
                self._line = self._new_line()  # before, so that it gets another name
                gone.unplug()
                time.sleep(_UNPLUGGED_S)
                self._announce()

    def _fresh_sockets(self) -> tuple[socket.socket, socket.socket]:
        for old in (self._ours, self._theirs):
            with contextlib.suppress(OSError):
                old.shutdown(socket.SHUT_RDWR)
        return socket.socketpair()

    def _loop(self) -> None:
        while True:
            self._say(_BROWNOUT)
            self._say(_BANNERS[ResetReason.BROWNOUT] + "\r\n")
            self._look_at_button(0.2)

    def _be_foreign(self) -> None:
        while self._foreign == "text":
            self._say("I (1234) hello_world: Hello world! Restarting in 10 seconds...\r\n")
            self._look_at_button(0.05)
        while True:
            self._ours.sendall(os.urandom(64).replace(b"\0", b"\1"))
            self._look_at_button(0.01)

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


def _watch_stdin(button: threading.Event) -> None:
    while os.read(0, 4096):
        button.set()
    os._exit(0)


def main(argv: list[str]) -> int:
    folder = Path(argv[0])
    spec = EmulatedChipSpec.model_validate_json((folder / "chip.json").read_text())
    board = Board(spec, folder)
    threading.Thread(target=_watch_stdin, args=[board.button], daemon=True).start()
    board.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
