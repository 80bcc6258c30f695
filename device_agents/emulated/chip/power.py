"""Switches an emulated microcontroller on and off, and says at which port it is."""

from __future__ import annotations

import json
import logging
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path

from device_agents.contract import LinkError
from device_agents.serial.agent import SerialAgent
from device_agents.serial.port import Found, SerialTarget

from .spec import EmulatedChipSpec

logger = logging.getLogger(__name__)

_START_S = 20.0
_ROOT = Path(__file__).parents[3]


class EmulatedChip:
    """One board. It stays on, with its boot, from :meth:`ports` until :meth:`switch_off`.

    ``root`` holds its flash and is kept; ``None``: a temporary folder, gone with the board.
    """

    def __init__(self, name: str, spec: EmulatedChipSpec, root: Path | None = None) -> None:
        self._name = name
        self._spec = spec
        self._given = root
        self.root = root if root is not None else Path(tempfile.mkdtemp(prefix="boardtune-chip-"))
        if root is None:
            weakref.finalize(self, shutil.rmtree, self.root, ignore_errors=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._port: str | None = None
        self._text = b""

    def ports(self) -> list[Found]:
        """The port the board is at; switches it on if it is off.

        Raises:
            LinkError: it does not start.
        """
        if self._process is None or self._process.poll() is not None:
            self._switch_on()
        self._hear(0.0)
        return [Found(self._port, self._spec.chip.mac.replace(":", "").upper())] if self._port else []

    def _switch_on(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.root / "chip.json").write_text(self._spec.model_dump_json())
        self._port, self._text = None, b""
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])}
        with (self.root / "board.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "device_agents.emulated.chip.process", str(self.root)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environ,
            )
        until = time.monotonic() + _START_S
        while self._port is None and self._process.poll() is None and time.monotonic() < until:
            self._hear(0.2)
        if self._port is None:
            tail = (self.root / "board.log").read_text(errors="replace")[-2000:]
            self._end()
            raise LinkError("the emulated board did not start", board=self._name, detail=tail)

    def _hear(self, wait_s: float) -> None:
        """Takes what the board said of its port."""
        process = self._process
        if process is None or process.stdout is None:
            return
        while select.select([process.stdout], [], [], wait_s)[0]:
            data = os.read(process.stdout.fileno(), 4096)
            if not data:
                return
            self._text += data
            *lines, self._text = self._text.split(b"\n")
            for line in lines:
                self._port = str(json.loads(line)["port"])
            if lines:
                wait_s = 0.0

    def press_reset(self) -> bool:
        """What the control lines do to a real board; whether it was there to press."""
        process = self._process
        if process is None or process.stdin is None or process.poll() is not None:
            return False
        process.stdin.write(b"r")
        process.stdin.flush()
        return True

    def hang_up(self) -> None:
        """A board without a folder of its own is switched off; another one stays on, as boards do. Never raises."""
        if self._given is None:
            self.switch_off()

    def switch_off(self) -> None:
        """Never raises."""
        self._end()
        if self._given is None:
            shutil.rmtree(self.root, ignore_errors=True)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.communicate()


def chip_agent(
    name: str,
    spec: EmulatedChipSpec,
    *,
    root: Path | None = None,
    max_baud: int = 921_600,
    pack: bool = True,
) -> SerialAgent:
    """An agent, not yet connected, for a board that :meth:`connect` switches on and :meth:`close` switches off; with a
    ``root`` it stays on as long as this process lives."""
    return agent_of(EmulatedChip(name, spec, root), name, spec, max_baud=max_baud, pack=pack)


def agent_of(
    chip: EmulatedChip, name: str, spec: EmulatedChipSpec, *, max_baud: int = 921_600, pack: bool = True
) -> SerialAgent:
    """An agent for a board that its caller switches off."""
    target = SerialTarget(
        lock_dir=chip.root / "lock",
        mac=spec.chip.mac,
        chip=spec.chip.target,
        max_baud=max_baud,
        list_ports=chip.ports,
    )
    return SerialAgent(name, target, reset=chip.press_reset, on_close=chip.hang_up, pack=pack)
