"""Serial ports: found by what is behind them, opened without resetting it, reset on purpose."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import serial
from serial.tools import list_ports

from device_agents.contract import LinkError

logger = logging.getLogger(__name__)

ResetKind = Literal["auto", "classic", "usb_jtag", "none"]
_ESPRESSIF_VID, _USB_JTAG_PID = 0x303A, 0x1001
_READ_WAIT_S = 0.05
_WRITE_WAIT_S = 5.0
_PULSE_S = 0.1


@dataclass(frozen=True)
class Found:
    """A port of this computer."""

    device: str
    serial_number: str = ""
    usb_jtag: bool = False


def system_ports() -> list[Found]:
    """The serial ports of this computer."""
    return [
        Found(
            port.device,
            port.serial_number or "",
            (port.vid, port.pid) == (_ESPRESSIF_VID, _USB_JTAG_PID),
        )
        for port in list_ports.comports()
    ]


@dataclass(frozen=True)
class SerialTarget:
    """Which board, and how to talk to it. At least one of ``port``, ``mac``, ``usb_serial`` is given."""

    lock_dir: Path
    port: str | None = None
    """A device name or a URL that pyserial's ``serial_for_url`` takes."""
    mac: str | None = None
    """``aa:bb:cc:dd:ee:ff``; the board on the port must have it."""
    usb_serial: str | None = None
    baud: int = 115200
    """Rate after a reset."""
    max_baud: int = 921600
    """Highest rate to try."""
    reset: ResetKind = "auto"
    chip: str | None = None
    """``esp32s3`` …; the board on the port must be one."""
    list_ports: Callable[[], Sequence[Found]] = field(default=system_ports)


def candidates(target: SerialTarget) -> list[Found]:
    """Ports that may be the board's, the likeliest first.

    A USB serial number decides. A MAC does where it is the serial number (USB-Serial-JTAG); a UART bridge has none, so
    then every port may be the one, and the board's HELLO decides.

    Raises:
        LinkError: there is no such port.
    """
    ports = list(target.list_ports())
    named = [port for port in ports if port.device == target.port]
    if target.usb_serial is not None:
        wanted = target.usb_serial.lower()
        found = [port for port in ports if port.serial_number.lower() == wanted]
        if not found:
            raise LinkError(
                f"no port has the USB serial number {target.usb_serial!r}",
                hint=f"plug the board in; there are: {_names(ports)}",
            )
        return found
    if target.mac is not None:
        wanted = target.mac.replace(":", "").lower()
        exact = [port for port in ports if port.serial_number.replace(":", "").lower() == wanted]
        if exact:
            return exact
    if target.port is not None:
        first = named or [Found(target.port)]
        return first + ([port for port in ports if port not in first] if target.mac is not None else [])
    if not ports:
        raise LinkError("this computer has no serial port", hint="plug the board in, or install its USB driver")
    return ports


def _names(ports: Sequence[Found]) -> str:
    return ", ".join(f"{port.device} ({port.serial_number or 'no serial number'})" for port in ports) or "none"


class Port:
    """An open port. Reading in one thread and writing in another is allowed."""

    def __init__(self, found: Found, baud: int, reset: ResetKind) -> None:
        self.name = found.device
        self.carries_baud = "://" not in found.device or found.device.startswith("rfc2217://")
        self._reset_kind: ResetKind = reset
        if reset == "auto":
            self._reset_kind = "usb_jtag" if found.usb_jtag else "classic"
        try:
            line: Any = serial.serial_for_url(found.device, do_not_open=True)
            line.baudrate = baud
            line.timeout = _READ_WAIT_S
            line.write_timeout = _WRITE_WAIT_S
            # Before open: both asserted or both released is idle, and opening must not reset the board.
            line.dtr = False
            line.rts = False
            if "://" not in found.device:
                line.exclusive = True
            line.open()
        except (serial.SerialException, OSError, ValueError) as error:
            raise _cannot_open(found.device, error) from error
        self._line = line

    def read(self) -> bytes:
        """What has come, after at most 50 ms; ``b""`` if nothing did. Raises :class:`LinkError`."""
        try:
            data: bytes = self._line.read(max(1, self._line.in_waiting))
        except (serial.SerialException, OSError, TypeError) as error:
            raise LinkError(f"{self.name} is gone: {error}", hint="is the board still plugged in?") from error
        return data

    def pending(self) -> bytes:
        """What has come already, without waiting. Raises :class:`LinkError`."""
        parts = []
        try:
            while self._line.in_waiting:
                parts.append(self._line.read(self._line.in_waiting))
        except (serial.SerialException, OSError, TypeError) as error:
            raise LinkError(f"{self.name} is gone: {error}", hint="is the board still plugged in?") from error
        return b"".join(parts)

    def write(self, data: bytes) -> None:
        """All of it, or :class:`LinkError`."""
        try:
            self._line.write(data)
        except serial.SerialTimeoutException as error:
            raise LinkError(f"{self.name} takes no bytes", hint="is something else holding the line?") from error
        except (serial.SerialException, OSError, TypeError) as error:
            raise LinkError(f"{self.name} is gone: {error}", hint="is the board still plugged in?") from error

    def set_baud(self, baud: int) -> None:
        try:
            self._line.baudrate = baud
        except (serial.SerialException, OSError, ValueError) as error:
            raise LinkError(f"{self.name} has no rate of {baud} baud: {error}") from error

    def reset(self) -> bool:
        """Resets the board by its control lines; whether the port has them.

        Classic (two transistors): RTS pulls EN down. USB-Serial-JTAG: the same, and the port goes and comes back.
        """
        if self._reset_kind == "none":
            return False
        try:
            self._line.dtr = False
            self._line.rts = True
            time.sleep(_PULSE_S)
            self._line.rts = False
            if self._reset_kind == "usb_jtag":
                time.sleep(_PULSE_S)
        except (serial.SerialException, OSError, ValueError, NotImplementedError) as error:
            if getattr(error, "errno", None) in (errno.ENOTTY, errno.EINVAL):
                return False
            logger.debug("%s: reset by control lines: %s", self.name, error)
            return False
        return not self.name.startswith("socket://")

    def close(self) -> None:
        try:
            self._line.close()
        except (serial.SerialException, OSError, TypeError) as error:
            logger.debug("%s: close: %s", self.name, error)


def _cannot_open(name: str, error: Exception) -> LinkError:
    text = str(error)
    code = getattr(error, "errno", None)
    if code == errno.ENOENT or "No such file" in text or "could not find" in text.lower():
        return LinkError(f"there is no port {name}", hint="plug the board in, or correct transport.port", detail=text)
    if code == errno.EACCES or "Permission denied" in text:
        return LinkError(
            f"no permission for {name}",
            hint="add yourself to its group (dialout or uucp) and log in again",
            detail=text,
        )
    if code in (errno.EBUSY, errno.EAGAIN) or "lock" in text.lower() or "Access is denied" in text:
        return LinkError(f"{name} is busy: another program holds it", hint="close the other program", detail=text)
    return LinkError(f"{name} cannot be opened: {text}", hint="correct transport.port", detail=text)
