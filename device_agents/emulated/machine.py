"""What the processes of one emulated board share: its clock, temperature, boot id, planted faults, and what it is.

Everything is in one folder that no SFTP client sees. The clock is a word of shared memory, the rest small files under
one ``flock``.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import math
import mmap
import os
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .spec import EmulatedSpec, Fault, FaultKind

_WORDS = struct.Struct("<qd")
"""Clock in nanoseconds, temperature in degrees Celsius."""


class Machine:
    """One board. Any number of processes may hold it; one at a time advances the clock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._settings: dict[str, Any] = json.loads((folder / "machine.json").read_text())
        self.host_lock = Path(self._settings["host_lock"]) if self._settings["host_lock"] else None
        self.hardware_id = str(self._settings["hardware_id"])
        with (folder / "clock").open("r+b") as file:
            self._words = mmap.mmap(file.fileno(), _WORDS.size)
        self.clock_ns: int = 0
        self._temperature_c: float = 0.0
        self.read_clock()

    @classmethod
    def switch_on(cls, folder: Path, spec: EmulatedSpec, name: str, host_lock: Path | None) -> Machine:
        """A new boot, with the clock near zero and the planted faults armed; or the old one if it was suspended."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        settings = {
            "spec": spec.model_dump(mode="json"),
            "host_lock": str(host_lock) if host_lock else None,
            "hardware_id": f"emulated-{name}",
        }
        (folder / "machine.json").write_text(json.dumps(settings))
        for stale in ("no-nursery", *(path.name for path in folder.glob("life-*.json"))):
            (folder / stale).unlink(missing_ok=True)
        try:
            (folder / "suspended").unlink()
        except FileNotFoundError:
            ambient = spec.throttling.ambient_c if spec.throttling else 0.0
            (folder / "clock").write_bytes(_WORDS.pack(1_000_000_000, ambient))
            (folder / "struck.json").write_text("{}")
            (folder / "blocks.json").write_text("{}")
            _new_boot(folder)
        return cls(folder)

    @staticmethod
    def suspend(folder: Path) -> None:
        """The board is left alone, not switched off: the next :meth:`switch_on` is no boot."""
        (folder / "suspended").touch()

    @functools.cached_property
    def spec(self) -> EmulatedSpec:
        from .spec import EmulatedSpec  # only where it is wanted: importing pydantic takes a while

        return EmulatedSpec.model_validate(self._settings["spec"])

    # ---- boots ---------------------------------------------------------------------------------------------------

    def boot_id(self) -> str:
        return (self._folder / "boot_id").read_text()

    def reboot(self) -> None:
        """The power is cut and comes back."""
        _new_boot(self._folder)

    # ---- time and heat -------------------------------------------------------------------------------------------

    def read_clock(self) -> int:
        """Nanoseconds since the board was switched on, whoever advanced it."""
        self.clock_ns, self._temperature_c = _WORDS.unpack(self._words)
        return self.clock_ns

    def advance(self, nanoseconds: int, *, busy: bool) -> None:
        """Lets time pass; the board heats up or cools down meanwhile."""
        self.clock_ns += nanoseconds
        heat = self.spec.throttling
        if heat is not None:
            target = heat.ambient_c + (heat.rise_c if busy else 0.0)
            kept = math.exp(-nanoseconds / (heat.time_constant_s * 1e9))
            self._temperature_c = target + (self._temperature_c - target) * kept
        _WORDS.pack_into(self._words, 0, self.clock_ns, self._temperature_c)

    @property
    def temperature_c(self) -> float | None:
        return self._temperature_c if self.spec.throttling is not None else self.spec.presents.temperature_c

    @property
    def throttled(self) -> bool:
        heat = self.spec.throttling
        return heat is not None and self._temperature_c >= heat.threshold_c

    @property
    def slow_down(self) -> float:
        """Factor on the time of everything, from throttling."""
        heat = self.spec.throttling
        return heat.slow_down if heat is not None and self._temperature_c >= heat.threshold_c else 1.0

    # ---- faults --------------------------------------------------------------------------------------------------

    def planted(self, kind: FaultKind) -> Fault | None:
        """The fault if it still has strikes left; nothing is counted."""
        return self._fault(kind, strike=False)

    def strike(self, kind: FaultKind, *, blocks: int | None = None) -> Fault | None:
        """The fault if it strikes now, counted. ``blocks``: measured so far, for faults that wait for some."""
        return self._fault(kind, strike=True, blocks=blocks)

    def _fault(self, kind: FaultKind, *, strike: bool, blocks: int | None = None) -> Fault | None:
        for index, fault in enumerate(self.spec.faults):
            if fault.kind != kind or (blocks is not None and blocks < fault.after_blocks):
                continue
            with self.shared("struck.json") as struck:
                done = struck.get(str(index), 0)
                if fault.times is not None and done >= fault.times:
                    continue
                if strike:
                    struck[str(index)] = done + 1
            return fault
        return None

    def count_block(self) -> int:
        """Blocks begun in the life of the board, this one not included."""
        with self.shared("blocks.json") as blocks:
            begun = int(blocks.get("begun", 0))
            blocks["begun"] = begun + 1
        return begun

    @contextlib.contextmanager
    def shared(self, name: str) -> Iterator[dict[str, Any]]:
        """A small mapping kept in a file, changed by one process at a time."""
        descriptor = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            text = file.read()
            value: dict[str, Any] = json.loads(text) if text else {}
            before = dict(value)
            yield value
            if value != before:
                file.seek(0)
                file.truncate()
                file.write(json.dumps(value))


def _new_boot(folder: Path) -> None:
    fresh = folder / "boot_id.new"
    fresh.write_text(str(uuid.uuid4()))
    fresh.replace(folder / "boot_id")
