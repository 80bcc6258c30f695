"""The emulated board as the runner sees it: a clock that the cost model moves, and models that are really executed.

Runs inside the uploaded runner, so what comes from ``device_agents.runner`` here is the uploaded code (see
``board_process``).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from device_agents.runner.errors import RunnerError
from device_agents.runner.platform import KernelTime, Options, Platform, Process

from .machine import Machine
from .waiting import wait_until

if TYPE_CHECKING:
    from .session import EmulatedSession

_IDLE_PER_READING_NS = 1_000_000_000


class EmulatedPlatform(Platform):
    """``serve`` and each ``child`` hold one; ``life`` names the runner they belong to."""

    def __init__(self, folder: Path, life: str, command: Sequence[str]) -> None:
        self._machine = Machine(folder)
        self._life = life
        self._command = [*command]
        self._session: EmulatedSession | None = None

    # ---- the runner's seam ---------------------------------------------------------------------------------------

    def clock_ns(self) -> int:
        return time.perf_counter_ns() if self._machine.spec.pace == "real" else self._machine.read_clock()

    def sleep(self, seconds: float) -> None:
        if self._machine.spec.pace == "real":
            time.sleep(seconds)
        self._machine.read_clock()
        self._machine.advance(round(seconds * 1e9), busy=False)

    def boot_id(self) -> str:
        return self._machine.boot_id()

    def child_command(self) -> list[str]:
        return self._command

    def facts(self) -> dict[str, Any]:
        self._spoil_runtime()
        from device_agents.runner import ort

        version, _, extra = ort.versions()
        presents = self._machine.spec.presents
        return {
            "hardware_id": self._machine.hardware_id,
            "emulated": True,
            "machine": presents.machine,
            "cpu_model": presents.cpu_model,
            "cpu_count": self._machine.spec.cost_model.processor.cores,
            "memory_bytes": presents.memory_mb * 1_000_000,
            "os": presents.os,
            "python": ".".join(map(str, sys.version_info[:3])),
            "runtime": "onnxruntime",
            "runtime_version": presents.runtime_version or version,
            "providers": self._providers(),
            "extra": {
                **extra,
                **presents.extra,
                "cost_model": self._machine.spec.cost_model.name,
                "pace": self._machine.spec.pace,
            },
        }

    def state(self) -> dict[str, Any]:
        machine, presents = self._machine, self._machine.spec.presents
        machine.read_clock()
        if self._session is not None:
            self._session.next_block()
        else:
            self._read_from_outside()
        used = self.peak_memory_bytes() or 0
        reading: dict[str, Any] = {
            "clock_ns": self.clock_ns(),
            "temperature_c": machine.temperature_c,
            "frequency_khz": presents.frequency_khz,
            "max_frequency_khz": presents.frequency_khz,
            "governor": presents.governor,
            "power_mode": presents.power_mode,
            "load_average": 0.0,
            "throttled": machine.throttled,
            "memory_available_bytes": presents.memory_mb * 1_000_000 - used,
        }
        if machine.throttled and machine.spec.throttling is not None and presents.frequency_khz is not None:
            reading["frequency_khz"] = round(presents.frequency_khz / machine.spec.throttling.slow_down)
        return {key: value for key, value in reading.items() if value is not None}

    def _read_from_outside(self) -> None:
        from .noise import Contexts

        Contexts(self._machine, self._life).begin()
        if self._machine.spec.throttling is not None:
            # Nobody waits in virtual time: a reading stands for a second of idling, so that boards cool down.
            self._machine.advance(_IDLE_PER_READING_NS, busy=False)

    def begin_block(self, label: str) -> None:
        if self._session is not None:
            self._session.label = label

    def processing(self) -> Process | None:
        return self._session.process if self._session is not None else None

    def peak_memory_bytes(self) -> int | None:
        return self._session.peak_memory_bytes if self._session is not None else None

    def make_session(self, model_path: str, options: Options) -> EmulatedSession:
        started = time.perf_counter_ns()
        self._check_providers(options)
        if self._machine.strike("hang_in_load"):
            time.sleep(86400.0)
        if self._machine.strike("crash_in_load"):
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._machine.strike("out_of_memory"):
            raise RuntimeError(
                "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: BFCArena: "
                "Failed to allocate memory for requested buffer"
            )
        from .session import EmulatedSession

        session = EmulatedSession(self._machine, self._life, model_path, options)
        session.check_memory()
        self._session = session
        self._machine.read_clock()
        self._machine.advance(session.load_ns, busy=True)
        if self._machine.spec.pace == "real":
            wait_until(started + session.load_ns)
        return session

    def profile(self, model_path: str, options: Options, folder: str) -> list[KernelTime]:
        self._check_providers(options)
        from .costs import Costs, kernels

        estimate = Costs(self._machine.spec.cost_model, model_path, options).at_declared_shapes()
        return kernels(estimate, self._machine.spec.cost_model.processor.provider)

    def classify(self, error: BaseException, phase: str) -> tuple[str, str]:
        from device_agents.runner import ort

        return ort.classify(error, phase)

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _providers(self) -> list[str]:
        units = (self._machine.spec.cost_model.accelerator, self._machine.spec.cost_model.processor)
        return [unit.provider for unit in units if unit is not None]

    def _check_providers(self, options: Options) -> None:
        available = self._providers()
        for provider, _ in options.providers:
            if provider not in available:
                raise RunnerError(
                    "BoardUnfit",
                    f"the board's ONNX Runtime has no {provider}; it has {', '.join(available)}",
                    hint="change the board file's providers",
                )

    def _spoil_runtime(self) -> None:
        if self._machine.strike("no_runtime"):
            sys.modules["onnxruntime"] = None  # type: ignore[assignment]
        if self._machine.strike("old_runtime"):
            import onnxruntime

            onnxruntime.__version__ = "1.15.1"
