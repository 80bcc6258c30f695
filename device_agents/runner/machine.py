"""The machine the runner runs on: :class:`Platform` with the operating system's facts and ONNX Runtime."""

from __future__ import annotations

import os
import platform as host
import sys
import time
import uuid
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from .platform import KernelTime, Options, Platform, ProfileNotes, Session
from .sensors import Sensors, read_text

_ISA_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimd", "asimddp", "i8mm", "sve", "bf16")
"""Processor features that decide how fast integer kernels are."""


class MachinePlatform(Platform):
    def __init__(self) -> None:
        self._sensors = Sensors()
        self._boot_id = read_boot_id()
        self._profile_notes = ProfileNotes()

    # The clock around every inference, without a method call of our own.
    clock_ns = staticmethod(time.perf_counter_ns)

    def boot_id(self) -> str:
        # A process does not outlive a boot, so once is enough.
        return self._boot_id

    def facts(self) -> Dict[str, Any]:
        from . import ort

        version, providers, extra = ort.versions()
        flags = cpu_flags()
        if flags:
            extra["isa"] = " ".join(flags)
        return {
            "hardware_id": hardware_id(),
            "emulated": False,
            "machine": host.machine(),
            "cpu_model": cpu_model(),
            "cpu_count": usable_cpus(),
            "memory_bytes": self._sensors.memory("MemTotal") or _memory_bytes(),
            "os": os_name(),
            "python": host.python_version(),
            "runtime": "onnxruntime",
            "runtime_version": version,
            "providers": providers,
            "extra": extra,
        }

    def state(self) -> Dict[str, Any]:
        state = self._sensors.read()
        state["clock_ns"] = time.perf_counter_ns()
        return state

    def peak_memory_bytes(self) -> Optional[int]:
        for line in (read_text(Path("/proc/self/status")) or "").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        if sys.platform == "darwin":
            import resource

            return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return None

    def make_session(self, model_path: str, options: Options) -> Session:
        from . import ort

        return ort.OrtSession(model_path, options)

    def profile(self, model_path: str, options: Options, folder: str) -> List[KernelTime]:
        from . import ort

        kernels, self._profile_notes = ort.profile(model_path, options, folder)
        return kernels

    def profile_notes(self) -> ProfileNotes:
        return self._profile_notes

    def classify(self, error: BaseException, phase: str) -> Tuple[str, str]:
        from . import ort

        return ort.classify(error, phase)


def read_boot_id() -> str:
    """Linux: the kernel's; macOS: the boot session; Windows: the boot counter; else from the uptime, to the minute."""
    text = read_text(Path("/proc/sys/kernel/random/boot_id"))
    if text:
        return text
    if sys.platform == "win32":
        import winreg

        path = r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters"
        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, path) as key:
                return "boot-{}".format(winreg.QueryValueEx(key, "BootId")[0])
        except OSError:
            pass
    if sys.platform == "darwin":
        import subprocess

        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], stdout=subprocess.PIPE, timeout=5.0, check=False
        )
        if done.returncode == 0:
            return done.stdout.decode("ascii", "replace").strip()
    # time.monotonic counts from boot on the systems that come here.
    return "boot-{}".format(round((time.time() - time.monotonic()) / 60))


def hardware_id() -> str:
    """Serial number of the board, else the installation's machine id, else a network address."""
    for path in ("/proc/device-tree/serial-number", "/etc/machine-id", "/var/lib/dbus/machine-id"):
        text = read_text(Path(path))
        if text:
            return text
    if sys.platform == "win32":
        import winreg

        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SOFTWARE\Microsoft\Cryptography") as key:
                return str(winreg.QueryValueEx(key, "MachineGuid")[0])
        except OSError:
            pass
    return "mac-{:012x}".format(uuid.getnode())


def cpu_model() -> str:
    text = read_text(Path("/proc/cpuinfo")) or ""
    for key in ("model name", "Model", "Hardware"):
        for line in text.splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key and value.strip():
                return value.strip()
    return read_text(Path("/proc/device-tree/model")) or host.processor() or host.machine()


def cpu_flags() -> List[str]:
    text = read_text(Path("/proc/cpuinfo")) or ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            present = set(value.split())
            return [flag for flag in _ISA_FLAGS if flag in present]
    return []


def usable_cpus() -> int:
    """Processors this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def os_name() -> str:
    for line in (read_text(Path("/etc/os-release")) or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return "{} (kernel {})".format(line.partition("=")[2].strip('"'), host.release())
    return "{} {}".format(host.system(), host.release())


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0
