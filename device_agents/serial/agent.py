"""Drives a board on a serial line that runs boardtune's firmware: the whole agent contract over the wire protocol.

One model is loaded at a time; sessions are this side's, and using another one loads its model again, which the board
still holds, and runs it warm before a measurement. A reset of the board empties its PSRAM: sessions are lost, and the
call that notices raises :class:`~device_agents.contract.DeviceReboot` or :class:`DeviceCrash`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from device_agents.contract import (
    AgentError,
    BadData,
    Block,
    BlockRequest,
    BoardFacts,
    BoardState,
    BoardUnfit,
    DataRef,
    DeployReport,
    DeviceCrash,
    DeviceTimeout,
    Inference,
    LinkError,
    LoadReport,
    Pipeline,
    Placement,
    RuntimeOptions,
    Tensors,
)
from device_agents.runner_sessions import Loaded, Sessions
from device_agents.transport import Deadline

from . import messages, tensors
from .board_files import BoardFiles
from .codes import Caps, ResetReason, SlotKind, Type
from .link import SerialLink
from .port import SerialTarget
from .runs import ModelRuns, Rows

PROVIDER = "CPUExecutionProvider"
"""All of a microcontroller's operators run on its processor."""
_WARM_RUNS = 3
_CORE_TEST = b"\x00"


class SerialAgent:
    """The :class:`~device_agents.contract.Agent` of one board. ``reset``: another way to reset it than control lines.

    ``pack``: whether uploads are deflated where that is shorter.
    """

    def __init__(
        self,
        name: str,
        target: SerialTarget,
        *,
        reset: Callable[[], bool] | None = None,
        on_close: Callable[[], None] = lambda: None,
        pack: bool = True,
    ) -> None:
        self._on_close = on_close
        self._sessions = Sessions(exclusive=True)
        self._link = SerialLink(name, target, on_lost=self._lose_all, reset=reset)
        self._files = BoardFiles(self._link, pack=pack)
        self._runs: ModelRuns | None = None
        self._nodes: dict[str, tuple[str, ...]] = {}
        """Names of a model's nodes, as its first load's profile gave them."""
        self._count = 0

    @property
    def name(self) -> str:
        return self._link.name

    # ---- the board -----------------------------------------------------------------------------------------------

    def connect(self, deadline_s: float = 60.0) -> BoardFacts:
        with self._link.blamed():
            return self._facts(self._link.connect(Deadline(deadline_s)))

    def describe(self, deadline_s: float = 30.0) -> BoardFacts:
        with self._link.blamed():
            return self._facts(self._link.hello(Deadline(deadline_s)))

    def health(self, deadline_s: float = 30.0) -> BoardState:
        with self._link.blamed():
            return self._state(Deadline(deadline_s))

    def self_test(self, seconds: float = 1.0, deadline_s: float = 60.0) -> Mapping[str, str]:
        deadline = Deadline(deadline_s)
        with self._link.blamed():
            tested = messages.SelfTested.unpack(self._link.ask(Type.SELFTEST, _CORE_TEST, deadline))
            hello = self._link.hello(deadline)
            reason = _reset_reason(hello)
            right = "ok: the canary's sum is right" if tested.passed else f"problem: {tested.where} is wrong"
            bad = reason in ("panic", "brownout", "task_watchdog", "interrupt_watchdog")
            return {
                "arithmetic": right,
                "runtime": f"ok: {hello.engine} {hello.engine_version}",
                "line": f"ok: {self._link.baud} baud, {1e3 * self._link.round_trip_s:.0f} ms there and back, "
                f"{self._link.resent} requests sent again",
                "last reset": f"{'problem' if bad else 'ok'}: {reason}",
            }

    def recover(self, deadline_s: float = 120.0) -> BoardFacts:
        with self._link.blamed():
            return self._facts(self._link.renew(Deadline(deadline_s)))

    def clean(self, deadline_s: float = 60.0) -> Sequence[str]:
        deadline = Deadline(deadline_s)
        with self._link.blamed():
            removed = self._files.clean(deadline)
            self._lose_all("the board was cleaned")
            return removed

    def close(self) -> None:
        self._lose_all("the agent was closed")
        self._link.close()
        self._link.forget()
        self._on_close()

    @property
    def line_log(self) -> str:
        """The last of what the board said outside frames: boot log, panic text."""
        return self._link.log.tail(16_000)

    # ---- files ---------------------------------------------------------------------------------------------------

    def has(self, sha256: str, deadline_s: float = 30.0) -> bool:
        with self._link.blamed():
            self._link.live(deadline := Deadline(deadline_s))
            return self._files.has(sha256, deadline)

    def deploy(self, path: Path, sha256: str, deadline_s: float = 600.0) -> DeployReport:
        with self._link.blamed():
            self._link.live(deadline := Deadline(deadline_s))
            return self._files.deploy(path, sha256, self._sessions.digests(), deadline)

    # ---- models --------------------------------------------------------------------------------------------------

    def load(
        self, sha256: str, options: RuntimeOptions, pipeline: Pipeline | None = None, deadline_s: float = 300.0
    ) -> LoadReport:
        deadline = Deadline(deadline_s)
        with self._link.blamed():
            check_options(options, pipeline)
            loaded = Loaded(sha256, options, pipeline)
            runs = self._bring_in(loaded, deadline)
            self._count += 1
            loaded.handle = loaded.remote = f"s{self._count}"
            self._sessions.add(loaded)
            if sha256 not in self._nodes and runs.hello.caps & Caps.PROFILE:
                self._nodes[sha256] = tuple(node.name for node in runs.profile(deadline))
                # Profiling was an inference: the first one that is reported is of a fresh load.
                runs = self._bring_in(loaded, deadline)
            return _report(loaded, runs, self._nodes.get(sha256, ()), self._link.boot_id)

    def measure(
        self, session: str, inputs: Tensors | DataRef, request: BlockRequest, deadline_s: float = 120.0
    ) -> Block:
        deadline = Deadline(deadline_s)
        with self._link.blamed():
            if request.batch != 1:
                raise BadData(f"{request.batch} samples per inference are asked for; the model takes 1")
            runs, again = self._make_resident(session, deadline)
            with self._stopping(session):
                rows = self._place(runs, inputs, request.rows, deadline)
                before = self._state(deadline)
                ran, times = runs.block(rows, request, _WARM_RUNS if again else 0, deadline)
                after = self._state(deadline)
            loaded = self._sessions.get(session)
            first_ns = None if loaded.measured or ran.first_ns == 0 else ran.first_ns
            loaded.measured = True
            peak = runs.model.internal_bytes + runs.model.psram_bytes
            return Block(self._link.boot_id, times, first_ns, before, after, peak)

    def infer(self, session: str, inputs: Tensors | DataRef, batch: int = 1, deadline_s: float = 600.0) -> Inference:
        deadline = Deadline(deadline_s)
        with self._link.blamed():
            runs, _ = self._make_resident(session, deadline)
            data, count = tensors.rows_to_bytes(runs.model, self._samples(inputs), runs.hello.target, runs.axes)
            room = runs.room_for_rows()
            parts: list[bytes] = []
            with self._stopping(session):
                for first in range(0, count, room):
                    these = min(room, count - first)
                    part = data[first * runs.model.row_bytes : (first + these) * runs.model.row_bytes]
                    parts.append(runs.outputs(runs.place(part, these, deadline), deadline))
            outputs = tensors.outputs_from_bytes(runs.model, b"".join(parts), count, runs.axes)
            return Inference(self._link.boot_id, outputs, runs.model.internal_bytes + runs.model.psram_bytes)

    def test_model(self, session: str, deadline_s: float = 300.0) -> messages.SelfTested:
        """The board's own check of the model with the test values in its file; names the first tensor that differs."""
        deadline = Deadline(deadline_s)
        with self._link.blamed():
            runs, _ = self._make_resident(session, deadline)
            return runs.self_test(deadline)

    def profile(
        self, session: str, inputs: Tensors | DataRef, deadline_s: float = 300.0
    ) -> tuple[messages.NodeTime, ...]:
        """Time per node of one inference."""
        deadline = Deadline(deadline_s)
        with self._link.blamed():
            runs, _ = self._make_resident(session, deadline)
            self._place(runs, inputs, 1, deadline)
            return runs.profile(deadline)

    def unload(self, session: str, deadline_s: float = 30.0) -> None:
        with self._link.blamed():
            loaded = self._sessions.remove(session)
            if loaded is not None and loaded.remote is not None:
                self._link.ask(Type.UNLOAD, b"", Deadline(deadline_s))
                self._runs = None

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _lose_all(self, why: str) -> None:
        self._sessions.lose_all(why)
        self._runs = None

    def _bring_in(self, loaded: Loaded, deadline: Deadline) -> ModelRuns:
        """Loads the model into the board's memory in place of the one that is there."""
        slot = self._files.slot_of(loaded.sha256, deadline)
        if slot is None:
            raise BadData(f"the model {loaded.sha256[:12]}… is not on the board", hint="deploy it first")
        for other in self._sessions.resident():
            other.remote = None
        known = self._runs.longest_s if self._runs is not None and loaded.remote is not None else None
        self._runs = None
        settings = dict(loaded.options.session_config)
        request = messages.LoadRequest(
            slot,
            multi_core=loaded.options.intra_op_threads > 1,
            param_copy=settings.get("esp_dl.param_copy", "1") != "0",
            max_internal_bytes=int(settings.get("esp_dl.max_internal_bytes", "0")),
        )
        model = messages.Loaded.unpack(self._link.ask(Type.LOAD, request.pack(), deadline, quiet_s=120.0))
        loaded.remote = loaded.handle or "loading"
        self._runs = ModelRuns(
            self._link, self._files, self._link.hello(deadline), model, known, self._files.axes(loaded.sha256)
        )
        return self._runs

    def _make_resident(self, session: str, deadline: Deadline) -> tuple[ModelRuns, bool]:
        """(the session's runs, whether its model had to be loaded again)."""
        self._link.live(deadline)
        loaded = self._sessions.get(session)
        if loaded.remote is not None and self._runs is not None:
            return self._runs, False
        return self._bring_in(loaded, deadline), True

    def _place(self, runs: ModelRuns, inputs: Tensors | DataRef, most: int, deadline: Deadline) -> Rows:
        samples = {name: array[:most] if array.ndim else array for name, array in self._samples(inputs).items()}
        data, count = tensors.rows_to_bytes(runs.model, samples, runs.hello.target, runs.axes)
        room = runs.room_for_rows()
        if count > room:
            data, count = data[: room * runs.model.row_bytes], room
        return runs.place(data, count, deadline)

    def _samples(self, inputs: Tensors | DataRef) -> dict[str, tensors.Array]:
        if isinstance(inputs, DataRef):
            return self._files.samples(inputs)
        return {name: np.asarray(array) for name, array in inputs.items()}

    def _stopping(self, session: str) -> _Stopping:
        return _Stopping(self, session)

    def _state(self, deadline: Deadline) -> BoardState:
        state = messages.State.unpack(self._link.ask(Type.STATE, b"", deadline))
        return BoardState(
            boot_id=self._link.boot_id,
            temperature_c=state.temperature_c,
            frequency_khz=state.cpu_hz // 1000 or None,
            max_frequency_khz=state.cpu_hz // 1000 or None,
            throttled=state.throttled,
            memory_available_bytes=state.free_bytes + state.free_psram_bytes,
            clock_ns=state.uptime_ns,
        )

    def _facts(self, hello: messages.Hello) -> BoardFacts:
        slots = ", ".join(f"{SlotKind(slot.kind).name.lower()} {slot.capacity}" for slot in hello.slots)
        return BoardFacts(
            boot_id=self._link.boot_id,
            hardware_id=hello.mac.hex(":"),
            emulated=bool(hello.caps & Caps.EMULATED),
            machine=hello.target,
            cpu_model=hello.cpu or hello.target,
            cpu_count=max(1, hello.cores),
            memory_bytes=hello.psram_bytes + hello.free_bytes,
            os=hello.system,
            python="",
            runtime="esp-dl",
            runtime_version=f"{hello.engine} {hello.engine_version}",
            providers=(PROVIDER,),
            runner_sha256=_firmware_id(hello),
            extra={
                "firmware": f"{hello.firmware} ({hello.build})",
                "chip_revision": f"{hello.chip_revision // 100}.{hello.chip_revision % 100}",
                "cpu_mhz": str(hello.cpu_hz // 1_000_000),
                "flash_bytes": str(hello.flash_bytes),
                "slots": slots,
                "baud": str(self._link.baud),
                "reset_reason": _reset_reason(hello),
            },
        )


class _Stopping:
    """What ran when a call was given up is stopped: by a reset, since a microcontroller has nothing else."""

    def __init__(self, agent: SerialAgent, session: str) -> None:
        self._agent = agent
        self._session = session

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        agent = self._agent
        if isinstance(error, DeviceTimeout):
            agent._sessions.lose(self._session, error.message)
            with suppress(AgentError):
                if not agent._link.reset_board():
                    error.hint = error.hint or "it has no reset line: unplug it and plug it in again"
        elif isinstance(error, DeviceCrash | LinkError):
            agent._sessions.lose(self._session, error.message)


def _reset_reason(hello: messages.Hello) -> str:
    known = hello.reset_reason in set(ResetReason)
    return ResetReason(hello.reset_reason).name.lower() if known else str(hello.reset_reason)


def _firmware_id(hello: messages.Hello) -> str:
    """Names the firmware in the key of a result, as the runner's digest does on other boards."""
    words = (hello.firmware, hello.build, hello.engine, hello.engine_version, hello.system, hello.target)
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def check_options(options: RuntimeOptions, pipeline: Pipeline | None) -> None:
    """Raises :class:`BoardUnfit` for what no firmware does."""
    for provider, _ in options.providers:
        if provider != PROVIDER:
            raise BoardUnfit(
                f"the board has no {provider}; it has {PROVIDER}", hint="change the board file's providers"
            )
    if pipeline is not None and pipeline != Pipeline():
        raise BoardUnfit(
            "pre- and post-processing do not run on a microcontroller's firmware",
            hint="measure the model alone: scope: model",
        )


def _report(loaded: Loaded, runs: ModelRuns, nodes: Sequence[str], boot_id: str) -> LoadReport:
    model = runs.model
    return LoadReport(
        session=loaded.handle,
        boot_id=boot_id,
        load_ns=model.load_ns,
        placement=Placement(
            {PROVIDER: tuple(nodes)}, evidence=("esp-dl-profile", "cpu-only") if nodes else ("cpu-only",)
        ),
        inputs=tuple((info.name, "float32", info.shape) for info in model.inputs),
        outputs=tuple(info.name for info in model.outputs),
        peak_memory_bytes=model.internal_bytes + model.psram_bytes,
    )
