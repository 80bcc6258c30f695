"""Payloads of the wire protocol as values. docs/wire-protocol.md lists the fields in the same order."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .codes import CANARY_SLOT, DTYPES, VERSION, Codec, Kind, SlotKind, SlotState, chunk_count
from .fields import Fields, Malformed, text

_HELLO = "BBBBHHIIIIIIIIIHBB"


@dataclass(frozen=True)
class Slot:
    """One place for an object. Sizes in bytes."""

    id: int
    kind: SlotKind
    state: SlotState
    capacity: int
    size: int = 0
    sha256: bytes = bytes(32)

    def pack(self) -> bytes:
        return struct.pack("<BBBBII", self.id, self.kind, self.state, 0, self.capacity, self.size) + self.sha256

    @classmethod
    def read(cls, fields: Fields) -> Slot:
        id_, kind, state, _, capacity, size = fields.unpack("BBBBII")
        try:
            return cls(id_, SlotKind(kind), SlotState(state), capacity, size, fields.take(32))
        except ValueError as error:
            raise Malformed(str(error)) from error


@dataclass(frozen=True)
class Hello:
    """Reply to HELLO: what the board is. Sizes in bytes, rates in Hz and baud."""

    window: int
    reset_reason: int
    chunk_bytes: int
    caps: int
    psram_bytes: int
    flash_bytes: int
    free_bytes: int
    largest_block_bytes: int
    baud: int
    max_baud: int
    staging_bytes: int
    results_bytes: int
    cpu_hz: int
    chip_revision: int
    cores: int
    mac: bytes
    canary_sha256: bytes
    uptime_ns: int
    target: str
    firmware: str
    build: str
    engine: str
    engine_version: str
    system: str
    cpu: str
    slots: tuple[Slot, ...]
    version: int = VERSION

    def pack(self) -> bytes:
        head = struct.pack(
            "<" + _HELLO,
            self.version,
            len(self.slots),
            self.window,
            self.reset_reason,
            self.chunk_bytes,
            self.caps,
            self.psram_bytes,
            self.flash_bytes,
            self.free_bytes,
            self.largest_block_bytes,
            self.baud,
            self.max_baud,
            self.staging_bytes,
            self.results_bytes,
            self.cpu_hz,
            self.chip_revision,
            self.cores,
            0,
        )
        words = (self.target, self.firmware, self.build, self.engine, self.engine_version, self.system, self.cpu)
        return (
            head
            + self.mac
            + self.canary_sha256
            + struct.pack("<Q", self.uptime_ns)
            + b"".join(map(text, words))
            + b"".join(slot.pack() for slot in self.slots)
        )

    @classmethod
    def unpack(cls, payload: bytes) -> Hello:
        fields = Fields(payload)
        version, slots, window, reason, chunk, caps, *numbers, revision, cores, _ = fields.unpack(_HELLO)
        psram, flash, free, largest, baud, max_baud, staging, results, cpu_hz = numbers
        mac, canary, uptime = fields.take(6), fields.take(32), fields.u64()
        target, firmware, build, engine, engine_version, system, cpu = (fields.text() for _ in range(7))
        return cls(
            window, reason, chunk, caps, psram, flash, free, largest, baud, max_baud, staging, results, cpu_hz,
            revision, cores, mac, canary, uptime, target, firmware, build, engine, engine_version, system, cpu,
            tuple(Slot.read(fields) for _ in range(slots)), version,
        )  # fmt: skip


@dataclass(frozen=True)
class PutBegin:
    """Request: an object is coming. ``base`` is the sha256 of the dictionary's object, or zeros."""

    sha256: bytes
    size: int
    slot: int
    kind: Kind
    base_slot: int
    base_sha256: bytes = bytes(32)

    def pack(self) -> bytes:
        return (
            self.sha256 + struct.pack("<IBBBB", self.size, self.slot, self.kind, self.base_slot, 0) + self.base_sha256
        )

    @classmethod
    def unpack(cls, payload: bytes) -> PutBegin:
        fields = Fields(payload)
        sha256 = fields.take(32)
        size, slot, kind, base_slot, _ = fields.unpack("IBBBB")
        return cls(sha256, size, slot, Kind(kind), base_slot, fields.take(32))


@dataclass(frozen=True)
class Begun:
    """Reply to PUT_BEGIN: ``received[i]`` says whether chunk i is there."""

    transfer: int
    received: tuple[bool, ...]

    def pack(self) -> bytes:
        bits = bytearray(-(-len(self.received) // 8))
        for index, there in enumerate(self.received):
            bits[index // 8] |= there << index % 8
        return struct.pack("<II", self.transfer, len(self.received)) + bytes(bits)

    @classmethod
    def unpack(cls, payload: bytes) -> Begun:
        fields = Fields(payload)
        transfer, count = fields.unpack("II")
        bits = fields.take(-(-count // 8))
        return cls(transfer, tuple(bool(bits[i // 8] >> i % 8 & 1) for i in range(count)))


@dataclass(frozen=True)
class Chunk:
    """Request: one chunk. ``length`` is its size unpacked."""

    transfer: int
    index: int
    codec: Codec
    length: int
    data: bytes

    def pack(self) -> bytes:
        return struct.pack("<IIBBH", self.transfer, self.index, self.codec, 0, self.length) + self.data

    @classmethod
    def unpack(cls, payload: bytes) -> Chunk:
        fields = Fields(payload)
        transfer, index, codec, _, length = fields.unpack("IIBBH")
        return cls(transfer, index, Codec(codec), length, fields.rest())


@dataclass(frozen=True)
class Acknowledged:
    """Reply to PUT_CHUNK: all chunks before ``first_missing`` are there, and of the next 32 those whose bit is set."""

    transfer: int
    first_missing: int
    later: int

    def pack(self) -> bytes:
        return struct.pack("<III", self.transfer, self.first_missing, self.later)

    @classmethod
    def unpack(cls, payload: bytes) -> Acknowledged:
        return cls(*Fields(payload).unpack("III"))

    def has(self, index: int) -> bool:
        after = index - self.first_missing - 1
        return index < self.first_missing or (0 <= after < 32 and bool(self.later >> after & 1))


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of the loaded model: ``value = integer * 2 ** exponent``; shape as on the board (NHWC)."""

    name: str
    dtype: str
    exponent: int
    shape: tuple[int, ...]
    size_bytes: int

    def pack(self) -> bytes:
        code = next(code for code, name in DTYPES.items() if name == self.dtype)
        head = struct.pack("<BbBBI", code, self.exponent, len(self.shape), 0, self.size_bytes)
        return head + struct.pack(f"<{len(self.shape)}i", *self.shape) + text(self.name)

    @classmethod
    def read(cls, fields: Fields) -> TensorInfo:
        code, exponent, rank, _, size = fields.unpack("BbBBI")
        if code not in DTYPES or rank > 8:
            raise Malformed(f"a tensor of type {code} with {rank} axes")
        shape = fields.unpack(f"{rank}i")
        return cls(fields.text(), DTYPES[code], exponent, shape, size)


@dataclass(frozen=True)
class LoadRequest:
    slot: int
    multi_core: bool = False
    param_copy: bool = True
    max_internal_bytes: int = 0

    def pack(self) -> bytes:
        return struct.pack("<BBBBI", self.slot, self.multi_core, self.param_copy, 0, self.max_internal_bytes)

    @classmethod
    def unpack(cls, payload: bytes) -> LoadRequest:
        slot, multi, copy, _, internal = Fields(payload).unpack("BBBBI")
        return cls(slot, bool(multi), bool(copy), internal)

    @property
    def canary(self) -> bool:
        return self.slot == CANARY_SLOT


@dataclass(frozen=True)
class Loaded:
    """Reply to LOAD. Memory in bytes, as the engine accounts for it."""

    load_ns: int
    internal_bytes: int
    psram_bytes: int
    flash_bytes: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]

    def pack(self) -> bytes:
        numbers = (self.load_ns, self.internal_bytes, self.psram_bytes, self.flash_bytes)
        head = struct.pack("<QIIIHH", *numbers, len(self.inputs), len(self.outputs))
        return head + b"".join(info.pack() for info in (*self.inputs, *self.outputs))

    @classmethod
    def unpack(cls, payload: bytes) -> Loaded:
        fields = Fields(payload)
        load_ns, internal, psram, flash, inputs, outputs = fields.unpack("QIIIHH")
        if inputs > 64 or outputs > 64:
            raise Malformed(f"{inputs} inputs and {outputs} outputs")
        infos = [TensorInfo.read(fields) for _ in range(inputs + outputs)]
        return cls(load_ns, internal, psram, flash, tuple(infos[:inputs]), tuple(infos[inputs:]))

    @property
    def row_bytes(self) -> int:
        """Bytes of one set of inputs, in order."""
        return sum(info.size_bytes for info in self.inputs)

    @property
    def output_bytes(self) -> int:
        return sum(info.size_bytes for info in self.outputs)


@dataclass(frozen=True)
class RunRequest:
    """Inference k takes row ``first_row + k % rows``. Ends when both minima hold, at ``max_ns`` or ``max_count``."""

    flags: int
    slot: int
    first_row: int
    rows: int
    warmup: int
    min_count: int
    max_count: int
    min_ns: int
    max_ns: int
    stream: int = 0
    """What the run is part of, 16 bits, for boards that make up their noise: another number is another draw."""

    _LAYOUT = "BBHIIIIIQQ"

    def pack(self) -> bytes:
        return struct.pack(
            "<" + self._LAYOUT, self.flags, self.slot, self.stream, self.first_row, self.rows, self.warmup,
            self.min_count, self.max_count, self.min_ns, self.max_ns,
        )  # fmt: skip

    @classmethod
    def unpack(cls, payload: bytes) -> RunRequest:
        numbers = Fields(payload).unpack(cls._LAYOUT)
        flags, slot, stream, first_row, rows, warmup, min_count, max_count, min_ns, max_ns = numbers
        return cls(flags, slot, first_row, rows, warmup, min_count, max_count, min_ns, max_ns, stream)


@dataclass(frozen=True)
class Ran:
    """Reply to RUN. ``times_ns`` are as many of the ``count`` times as fit; READ gives all. ``first_ns``: the loaded
    model's first inference ever if this run made it, else 0."""

    count: int
    output_bytes: int
    first_ns: int
    before_ns: int
    after_ns: int
    times_ns: tuple[int, ...]

    def pack(self) -> bytes:
        head = struct.pack("<IIQQQ", self.count, self.output_bytes, self.first_ns, self.before_ns, self.after_ns)
        return head + struct.pack(f"<I{len(self.times_ns)}Q", len(self.times_ns), *self.times_ns)

    @classmethod
    def unpack(cls, payload: bytes) -> Ran:
        fields = Fields(payload)
        count, outputs, first, before, after = fields.unpack("IIQQQ")
        inline = fields.u32()
        if inline > count:
            raise Malformed(f"{inline} of {count} times")
        return cls(count, outputs, first, before, after, fields.unpack(f"{inline}Q"))


@dataclass(frozen=True)
class State:
    """Reply to STATE. ``temperature_c`` is ``None`` where there is no sensor."""

    uptime_ns: int
    temperature_c: float | None
    cpu_hz: int
    free_bytes: int
    largest_block_bytes: int
    free_psram_bytes: int
    damaged_frames: int
    throttled: bool

    def pack(self) -> bytes:
        centi = -32768 if self.temperature_c is None else round(self.temperature_c * 100)
        return struct.pack(
            "<QhBBIIIII", self.uptime_ns, centi, self.throttled, 0, self.cpu_hz, self.free_bytes,
            self.largest_block_bytes, self.free_psram_bytes, self.damaged_frames,
        )  # fmt: skip

    @classmethod
    def unpack(cls, payload: bytes) -> State:
        uptime, centi, throttled, _, hz, free, largest, psram, damaged = Fields(payload).unpack("QhBBIIIII")
        return cls(uptime, None if centi == -32768 else centi / 100, hz, free, largest, psram, damaged, bool(throttled))


@dataclass(frozen=True)
class SelfTested:
    """Reply to SELFTEST. ``where`` names the first tensor that differs, or what failed."""

    passed: bool
    checked: int
    index: int
    expected: int
    got: int
    where: str

    def pack(self) -> bytes:
        return struct.pack("<BBHIIii", self.passed, 0, 0, self.checked, self.index, self.expected, self.got) + text(
            self.where
        )

    @classmethod
    def unpack(cls, payload: bytes) -> SelfTested:
        fields = Fields(payload)
        passed, _, _, checked, index, expected, got = fields.unpack("BBHIIii")
        return cls(bool(passed), checked, index, expected, got, fields.text())


@dataclass(frozen=True)
class NodeTime:
    """One record of a profile: an operator node and its time on the device's clock."""

    time_ns: int
    operator: str
    name: str

    def pack(self) -> bytes:
        return struct.pack("<Q", self.time_ns) + text(self.operator) + text(self.name)

    @classmethod
    def read_all(cls, data: bytes, count: int) -> tuple[NodeTime, ...]:
        fields = Fields(data)
        return tuple(cls(fields.u64(), fields.text(), fields.text()) for _ in range(count))


def first_missing(received: list[bool], size: int) -> Acknowledged:
    """What to acknowledge for a transfer (id 0) of ``size`` bytes."""
    first = next((i for i, there in enumerate(received) if not there), chunk_count(size))
    bits = sum(1 << k for k, there in enumerate(received[first + 1 : first + 33]) if there)
    return Acknowledged(0, first, bits)
