"""The firmware's counterpart in Python: requests to replies, in virtual time. One object is one boot."""

from __future__ import annotations

import math
import secrets
import struct
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from device_agents.emulated.noise import factors
from device_agents.emulated.waiting import wait_until
from device_agents.serial.codes import (
    CANARY_SLOT,
    CHUNK_BYTES,
    MAX_WARMUP,
    REPLY,
    VERSION,
    WINDOW,
    Caps,
    ResetReason,
    Result,
    RunFlag,
    SlotKind,
    Status,
    Type,
)
from device_agents.serial.fields import Fields, Malformed
from device_agents.serial.fields import text as packed_text
from device_agents.serial.frames import Frame
from device_agents.serial.messages import (
    Chunk,
    Hello,
    LoadRequest,
    NodeTime,
    PutBegin,
    Ran,
    RunRequest,
    SelfTested,
    State,
)

from . import canary
from .executor import Canary, EspdlModel, Loaded, Refused
from .slots import Slots
from .spec import EmulatedChipSpec

FIRMWARE = "1.0.0"
STAGING_BYTES = 1 << 20
RESULTS_BYTES = 1 << 20
_KEPT = frozenset(
    {Type.PUT_BEGIN, Type.PUT_END, Type.LOAD, Type.RUN, Type.PROFILE, Type.SELFTEST, Type.UNLOAD, Type.ERASE}
    | {Type.SET_BAUD, Type.RESET}
)
_INLINE_TIMES = (CHUNK_BYTES - 64) // 8
_PROGRESS_NS = 1_000_000_000


class Reset(Exception):
    """The chip resets, for a reason."""

    def __init__(self, reason: ResetReason, log: str = "") -> None:
        super().__init__(reason.name)
        self.reason = reason
        self.log = log


class Clock:
    """Nanoseconds since the boot: counted, or with ``real`` the host's."""

    def __init__(self, real: bool, now_ns: int = 0) -> None:
        self._real = real
        self._zero = time.monotonic_ns() - now_ns
        self._now = now_ns

    def now(self) -> int:
        return time.monotonic_ns() - self._zero if self._real else self._now

    def spend(self, nanoseconds: int) -> None:
        if self._real:
            wait_until(time.perf_counter_ns() + nanoseconds)
        else:
            self._now += nanoseconds


class Device:
    """One boot. ``send`` takes frames; ``set_baud`` is called after the reply that announces it."""

    def __init__(
        self,
        spec: EmulatedChipSpec,
        folder: Path,
        send: Callable[[Frame], None],
        set_baud: Callable[[int], None],
        reason: ResetReason,
    ) -> None:
        self.spec = spec
        self.boot = secrets.randbits(64) | 1
        self.slots = Slots(spec.chip, folder)
        self.clock = Clock(spec.pace == "real")
        self.reason = reason
        self.baud = 115200
        self.new_baud: tuple[int, float] | None = None
        """A rate on trial, and when it began on the host's clock: (old rate, seconds)."""
        self.old_version = False
        self.wrong_results = False
        self._send = send
        self._set_baud = set_baud
        self._seq = 0
        self._kept: tuple[int, int, bytes] | None = None
        self._staging = bytearray(STAGING_BYTES)
        self._model: Loaded | None = None
        self._model_slot: int | None = None
        self._model_name = ""
        self._ran = False
        self._runs_since_load = 0
        self._times: list[int] = []
        self._outputs = b""
        self._profile = b""
        self._progress_at = 0
        self._turns: Counter[str] = Counter()
        """Runs by model since the last reading of the board's state without a model: what the noise depends on."""

    # ---- frames --------------------------------------------------------------------------------------------------

    def ready(self) -> None:
        self.emit(Type.EVENT_READY, 0, bytes([self.reason]))

    def emit(self, type_: int, request: int, payload: bytes) -> None:
        self._seq += 1
        self._send(Frame(type_, self._seq, request, self.boot, payload))

    def handle(self, frame: Frame) -> None:
        """Answers a request. Raises :class:`Reset` where the board is to reset."""
        if frame.version != VERSION or self.old_version:
            own = "0" if self.old_version else str(VERSION)
            self.emit(frame.type | REPLY, frame.request, struct.pack("<I", Status.BAD_VERSION) + packed_text(own))
            return
        if frame.type & REPLY or frame.type >= Type.EVENT_LOG:
            return
        if self._kept is not None and self._kept[:2] == (frame.request, frame.type):
            self.emit(frame.type | REPLY, frame.request, self._kept[2])
            return
        payload = self._answer(frame)
        if frame.type in _KEPT:
            self._kept = (frame.request, frame.type, payload)
        self.emit(frame.type | REPLY, frame.request, payload)
        if payload[:4] == bytes(4):
            if frame.type == Type.SET_BAUD:
                self._change_baud(Fields(frame.payload).u32())
            elif frame.type == Type.RESET:
                raise Reset(ResetReason.SOFTWARE)

    def _answer(self, frame: Frame) -> bytes:
        try:
            if frame.boot not in (0, self.boot):
                raise Refused(Status.REBOOTED, "the board has rebooted since")
            return bytes(4) + self._work(frame)
        except Refused as error:
            return struct.pack("<I", error.status) + packed_text(error.text)
        except (Malformed, ValueError) as error:
            return struct.pack("<I", Status.BAD_REQUEST) + packed_text(str(error))

    def _change_baud(self, baud: int) -> None:
        if baud == self.baud:
            self.new_baud = None
            return
        self.new_baud = (self.baud, time.monotonic())
        self.baud = baud
        self._set_baud(baud)

    def tick(self, revert_s: float) -> None:
        """Gives up a rate that was not confirmed."""
        if self.new_baud is not None and time.monotonic() - self.new_baud[1] > revert_s:
            self.baud, self.new_baud = self.new_baud[0], None
            self._set_baud(self.baud)

    # ---- requests ------------------------------------------------------------------------------------------------

    def _work(self, frame: Frame) -> bytes:
        fields = Fields(frame.payload)
        match frame.type:
            case Type.HELLO:
                return self._hello().pack()
            case Type.HAVE:
                found = self.slots.find(fields.take(32))
                return struct.pack("<BBHI", found is not None, found[0] if found else 0xFF, 0, found[1] if found else 0)
            case Type.PUT_BEGIN:
                return self.slots.begin(PutBegin.unpack(frame.payload), self._model_slot).pack()
            case Type.PUT_CHUNK:
                return self.slots.chunk(Chunk.unpack(frame.payload)).pack()
            case Type.PUT_END:
                return bytes([self.slots.end(fields.u32())])
            case Type.LOAD:
                return self._load(LoadRequest.unpack(frame.payload))
            case Type.SET_INPUT:
                return self._stage(fields.u32(), fields.rest())
            case Type.RUN:
                return self._run(RunRequest.unpack(frame.payload), frame.request).pack()
            case Type.PROFILE:
                return self._make_profile()
            case Type.SELFTEST:
                return self._self_test(fields.u8()).pack()
            case Type.UNLOAD:
                self._unload()
            case Type.READ:
                return self._read(*fields.unpack("BBHI"))
            case Type.STATE:
                return self._state().pack()
            case Type.ERASE:
                slot = fields.u8()
                if slot in (0xFF, self._model_slot):
                    self._unload()
                self.slots.erase(slot)
            case Type.SET_BAUD:
                if not 9600 <= fields.u32() <= 3_000_000:
                    raise Refused(Status.BAD_DATA, "a baud rate that this board does not have")
            case Type.RESET:
                pass
            case _:
                raise Refused(Status.UNKNOWN_TYPE, "this firmware does not know the request")
        return b""

    def _hello(self) -> Hello:
        chip = self.spec.chip
        caps = Caps.DEFLATE | Caps.DEFLATE_BASE | Caps.PROFILE | Caps.SET_BAUD | Caps.EMULATED | Caps.MODEL_TEST
        return Hello(
            window=WINDOW,
            reset_reason=self.reason,
            chunk_bytes=CHUNK_BYTES,
            caps=caps | (Caps.MULTI_CORE if chip.cores > 1 else 0),
            psram_bytes=chip.psram_kb * 1024,
            flash_bytes=chip.flash_kb * 1024,
            free_bytes=chip.internal_kb * 1024,
            largest_block_bytes=chip.internal_kb * 512,
            baud=self.baud,
            max_baud=3_000_000,
            staging_bytes=STAGING_BYTES,
            results_bytes=RESULTS_BYTES,
            cpu_hz=chip.cpu_mhz * 1_000_000,
            chip_revision=chip.revision,
            cores=chip.cores,
            mac=bytes.fromhex(chip.mac.replace(":", "")),
            canary_sha256=canary.SHA256,
            uptime_ns=self.clock.now(),
            target=chip.target,
            firmware=FIRMWARE,
            build="emulated",
            engine="espdl-interpreter",
            engine_version="1",
            system="emulated",
            cpu=chip.target,
            slots=self.slots.describe(),
        )

    def _state(self) -> State:
        chip = self.spec.chip
        if self._model is None:
            self._turns.clear()
        used = self._model.memory if self._model is not None else (0, 0, 0)
        return State(
            uptime_ns=self.clock.now(),
            temperature_c=chip.temperature_c,
            cpu_hz=chip.cpu_mhz * 1_000_000,
            free_bytes=max(0, chip.internal_kb * 1024 - used[0]),
            largest_block_bytes=chip.internal_kb * 512,
            free_psram_bytes=max(0, chip.psram_kb * 1024 - used[1]),
            damaged_frames=0,
            throttled=False,
        )

    def _load(self, request: LoadRequest) -> bytes:
        self._unload()
        if request.canary:
            model: Loaded = Canary(self.spec.cost_model.canary_us)
            self._model_name = "canary"
        else:
            data, kind = self.slots.content(request.slot, data=False)
            stays = kind == SlotKind.FLASH and not request.param_copy
            model = EspdlModel(data, self.spec, request, in_flash=stays)
            self._model_name = self.slots.describe()[request.slot].sha256.hex()
        self.clock.spend(model.load_ns)
        self._model, self._model_slot, self._ran, self._runs_since_load = model, request.slot, False, 0
        if request.slot == CANARY_SLOT:
            self._model_slot = None
        head = struct.pack("<QIIIHH", model.load_ns, *model.memory, len(model.inputs), len(model.outputs))
        return head + b"".join(info.pack() for info in (*model.inputs, *model.outputs))

    def _unload(self) -> None:
        self._model = self._model_slot = None
        self._times, self._outputs, self._profile = [], b"", b""

    def _stage(self, offset: int, data: bytes) -> bytes:
        if offset + len(data) > STAGING_BYTES:
            raise Refused(Status.TOO_LARGE, "past the end of the staging area")
        self._staging[offset : offset + len(data)] = data
        return b""

    def _loaded(self) -> Loaded:
        if self._model is None:
            raise Refused(Status.BAD_STATE, "no model is loaded")
        return self._model

    def _run(self, request: RunRequest, request_id: int) -> Ran:
        model = self._loaded()
        rows = self._rows(model, request)
        each = 8 + (sum(info.size_bytes for info in model.outputs) if request.flags & RunFlag.COLLECT else 0)
        if request.rows == 0 or request.max_count == 0 or request.warmup > MAX_WARMUP:
            raise Refused(Status.BAD_DATA, "no rows or no inferences are asked for")
        if request.max_count * each > RESULTS_BYTES:
            raise Refused(Status.TOO_LARGE, "more results than there is room for")
        self._turns[self._model_name] += 1
        turn = self._turns[self._model_name]
        noise = factors(self.spec.noise, self.spec.seed, self._model_name, request.stream, turn)
        base_ns = 1e6 * sum(node.ms for node in model.nodes)
        count = first_ns = 0
        outputs: list[bytes] = []
        times: list[int] = []

        def once(index: int) -> int:
            output = model.run(rows(index))
            if request.flags & RunFlag.COLLECT:
                outputs.append(bytes(256 - b & 0xFF for b in output) if self.wrong_results else output)
            spent = max(1, round(base_ns * self._cold() * next(noise)))
            self.clock.spend(spent)
            self._progress(request_id, count)
            return spent

        if not self._ran:
            first_ns = once(0)
            outputs.clear()
            self._ran = True
        for index in range(request.warmup):
            once(index)
            outputs.clear()
        before = self.clock.now()
        while True:
            times.append(once(count))
            count += 1
            spent = self.clock.now() - before
            if count >= request.max_count or spent >= request.max_ns:
                break
            if count >= request.min_count and spent >= request.min_ns:
                break
        self._times, self._outputs, self._profile = times, b"".join(outputs), b""
        inline = tuple(times[:_INLINE_TIMES])
        return Ran(count, len(self._outputs), first_ns, before, self.clock.now(), inline)

    def _cold(self) -> float:
        """How many times as long the next inference takes because few came before it."""
        warm = self.spec.warm_up
        index, self._runs_since_load = self._runs_since_load, self._runs_since_load + 1
        return 1.0 + (warm.cold_factor - 1.0) * math.exp(-index / warm.decay_inferences)

    def _progress(self, request_id: int, count: int) -> None:
        if self.clock.now() - self._progress_at >= _PROGRESS_NS and self.spec.pace == "real":
            self._progress_at = self.clock.now()
            self.emit(Type.EVENT_PROGRESS, request_id, struct.pack("<IQ", count, self._progress_at))

    def _rows(self, model: Loaded, request: RunRequest) -> Callable[[int], bytes]:
        size = sum(info.size_bytes for info in model.inputs)
        data = bytes(self._staging)
        if request.flags & RunFlag.FROM_SLOT:
            data, _ = self.slots.content(request.slot, data=True)
        if (request.first_row + request.rows) * size > len(data):
            raise Refused(Status.BAD_DATA, "more rows than there are")

        def row(index: int) -> bytes:
            at = (request.first_row + index % request.rows) * size
            return data[at : at + size]

        return row

    def _make_profile(self) -> bytes:
        model = self._loaded()
        records = [NodeTime(round(1e6 * node.ms), node.op, node.name) for node in model.nodes]
        total = sum(record.time_ns for record in records)
        self.clock.spend(total)
        self._ran = True
        self._times, self._outputs = [], b""
        self._profile = b"".join(record.pack() for record in records)
        return struct.pack("<IIQ", len(records), len(self._profile), total)

    def _self_test(self, what: int) -> SelfTested:
        if what == 0:
            return SelfTested(True, 1, 0, 0, 0, "canary")
        model = self._loaded()
        self._ran = True
        self.clock.spend(round(1e6 * sum(node.ms for node in model.nodes)))
        return model.self_test()

    def _read(self, what: int, _: int, length: int, offset: int) -> bytes:
        source = {
            Result.TIMES: lambda: struct.pack(f"<{len(self._times)}Q", *self._times),
            Result.OUTPUTS: lambda: self._outputs,
            Result.PROFILE: lambda: self._profile,
        }.get(Result(what)) if what in set(Result) else None  # fmt: skip
        data = source() if source is not None else b""
        if offset + length > len(data):
            raise Refused(Status.BAD_DATA, "there is no such result")
        if length > CHUNK_BYTES:
            raise Refused(Status.TOO_LARGE, "more than a frame carries")
        return data[offset : offset + length]
