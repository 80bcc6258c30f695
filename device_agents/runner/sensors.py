"""Readings of what may disturb a measurement, from where Linux shows them. What is not shown is left out.

Sources: sysfs (cpufreq, thermal, hwmon, thermal_throttle, platform_profile), procfs, and the Raspberry Pi firmware's
throttle word (bits 0-3: under-voltage, frequency capped, throttled, soft temperature limit, at this moment).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Optional

_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal")
_PI_THROTTLE = "devices/platform/soc/soc:firmware/get_throttled"


def read_text(path: Path) -> Optional[str]:
    """Stripped text of a small file (at most 64 kB), ``None`` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(65536).replace(b"\x00", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return None


def _read_int(path: Path) -> Optional[int]:
    text = read_text(path)
    try:
        return int(text, 0) if text else None
    except ValueError:
        return None


class Sensors:
    """``sys`` and ``proc`` are the mount points, so that tests can give a copy of a board's."""

    def __init__(self, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        self._sys = sys
        self._proc = proc
        self._throttle_count = self._core_throttle_count()
        self._vcgencmd = shutil.which("vcgencmd")

    def read(self) -> Dict[str, Any]:
        """Fields of ``contract.BoardState``; those not known are missing."""
        policy = self._fastest_policy()
        state: Dict[str, Any] = {
            "temperature_c": self.temperature_c(),
            "frequency_khz": _read_int(policy / "scaling_cur_freq") if policy else None,
            "max_frequency_khz": _read_int(policy / "scaling_max_freq") if policy else None,
            "governor": read_text(policy / "scaling_governor") if policy else None,
            "power_mode": read_text(self._sys / "firmware/acpi/platform_profile"),
            "load_average": self._load_average(),
            "throttled": self.throttled(),
            "memory_available_bytes": self.memory("MemAvailable"),
        }
        return {key: value for key, value in state.items() if value is not None}

    def temperature_c(self) -> Optional[float]:
        """Hottest thermal zone, else hottest processor sensor; degrees Celsius."""
        values = [_read_int(zone) for zone in self._sys.glob("class/thermal/thermal_zone*/temp")]
        if not any(values):
            for chip in self._sys.glob("class/hwmon/hwmon*"):
                if read_text(chip / "name") in _CPU_SENSORS:
                    values += [_read_int(reading) for reading in chip.glob("temp*_input")]
        plausible = [value / 1000.0 for value in values if value is not None and -40_000 < value < 150_000]
        return max(plausible) if plausible else None

    def throttled(self) -> Optional[bool]:
        """Throttled at this moment (Raspberry Pi) or since the last reading (x86 counters)."""
        text = read_text(self._sys / _PI_THROTTLE)
        if text is None and self._vcgencmd is not None:
            text = self._ask_firmware()
        if text is not None:
            try:
                return bool(int(text.rpartition("=")[2], 16) & 0xF)
            except ValueError:
                return None
        count = self._core_throttle_count()
        if count is None or self._throttle_count is None:
            return None
        before, self._throttle_count = self._throttle_count, count
        return count > before

    def memory(self, key: str) -> Optional[int]:
        """A line of /proc/meminfo, in bytes."""
        for line in (read_text(self._proc / "meminfo") or "").splitlines():
            name, _, value = line.partition(":")
            if name == key:
                return int(value.split()[0]) * 1024
        return None

    def oom_kills(self) -> Optional[int]:
        """Processes the kernel has killed for memory since boot; ``None`` before Linux 4.13."""
        for line in (read_text(self._proc / "vmstat") or "").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return None

    def _fastest_policy(self) -> Optional[Path]:
        policies = list(self._sys.glob("devices/system/cpu/cpufreq/policy*"))
        return max(policies, key=lambda p: _read_int(p / "cpuinfo_max_freq") or 0) if policies else None

    def _load_average(self) -> Optional[float]:
        text = read_text(self._proc / "loadavg")
        return float(text.split()[0]) if text else None

    def _core_throttle_count(self) -> Optional[int]:
        counts: List[Optional[int]] = [
            _read_int(cpu / name)
            for cpu in self._sys.glob("devices/system/cpu/cpu[0-9]*/thermal_throttle")
            for name in ("core_throttle_count", "package_throttle_count")
        ]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    def _ask_firmware(self) -> Optional[str]:
        try:
            done = subprocess.run(
                [str(self._vcgencmd), "get_throttled"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=2.0,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        text = done.stdout.decode("ascii", "replace").strip()
        return text if done.returncode == 0 and os.linesep not in text else None
