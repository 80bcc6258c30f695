"""The loaded model on the board: rows to it, timed runs, outputs, profile."""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from device_agents.contract import BadData, BlockRequest, BoardUnfit
from device_agents.emulated.espdl.axes import Axes
from device_agents.transport import Deadline

from .board_files import BoardFiles
from .codes import CHUNK_BYTES, Kind, Result, RunFlag, SlotKind, Status, Type
from .errors import refusal
from .fields import Fields
from .link import Reply, SerialLink
from .messages import Hello, Loaded, NodeTime, Ran, RunRequest, SelfTested
from .pipeline import Pipeline

_FIRST_QUIET_S = 120.0
"""Before anything is known of a model's latency: YOLO11n at 640x640 takes 26 s on an ESP32-S3."""
_LEAST_QUIET_S = 10.0
_QUIET_FACTOR = 5.0
"""A board that is silent for this many times the longest inference seen hangs."""
_TIME_BYTES = 8


@dataclass(frozen=True)
class Rows:
    """Inputs on the board: rows of the staging area, or of a data slot."""

    count: int
    slot: int | None


@dataclass
class ModelRuns:
    """Runs of one loaded model."""

    link: SerialLink
    files: BoardFiles
    hello: Hello
    model: Loaded
    longest_s: float | None = None
    """Of the host's clock: the longest time one inference kept the line silent."""
    axes: Axes | None = None
    """In which order the file has the float model's axes, where it says it."""
    _staged: bytes = field(default=b"", repr=False)

    def quiet_s(self, inferences: int = 1) -> float:
        """How long the board may be silent. It reports once a second between inferences, not within one."""
        if self.longest_s is None:
            return _FIRST_QUIET_S
        return max(_LEAST_QUIET_S, _QUIET_FACTOR * self.longest_s * inferences)

    def place(self, rows: bytes, count: int, deadline: Deadline) -> Rows:
        """Puts rows where runs can take them: one frame into the staging area, more into a data slot, by digest."""
        slots = [slot for slot in self.hello.slots if slot.kind == SlotKind.DATA and slot.capacity >= len(rows)]
        if len(rows) <= CHUNK_BYTES or not slots:
            if len(rows) > self.hello.staging_bytes:
                raise BoardUnfit(f"{len(rows)} bytes of inputs do not fit on the board", hint="fewer rows at a time")
            if rows != self._staged:
                self._stage(rows, deadline)
            return Rows(count, None)
        sha256 = hashlib.sha256(rows).hexdigest()
        slot = self.files.slot_of(sha256, deadline)
        if slot is None:
            self.files.put(rows, Kind.DATA, set(), deadline)
            slot = self.files.slot_of(sha256, deadline)
        return Rows(count, slot)

    def room_for_rows(self) -> int:
        """Rows that fit on the board at once."""
        room = max(
            [slot.capacity for slot in self.hello.slots if slot.kind == SlotKind.DATA] + [self.hello.staging_bytes]
        )
        return max(1, room // max(1, self.model.row_bytes))

    def _stage(self, rows: bytes, deadline: Deadline) -> None:
        def payload(offset: int, attempt: int) -> bytes:
            return struct.pack("<I", offset) + rows[offset : offset + CHUNK_BYTES]

        pipeline: Pipeline[int] = Pipeline(self.link, Type.SET_INPUT, payload, lambda key, reply: _accepted(reply))
        pipeline.run(range(0, len(rows), CHUNK_BYTES), deadline)
        self._staged = rows

    # ---- timed ---------------------------------------------------------------------------------------------------

    def block(
        self, rows: Rows, request: BlockRequest, warmup: int, deadline: Deadline
    ) -> tuple[Ran, npt.NDArray[np.int64]]:
        """(the block as one run, times in ns). Made of several runs where one has no room for all the times."""
        most = max(1, self.hello.results_bytes // _TIME_BYTES)
        times: list[npt.NDArray[np.int64]] = []
        first_ns = begun_ns = done = spent = 0
        while True:
            ran, these = self._run(
                RunRequest(
                    flags=RunFlag.FROM_SLOT if rows.slot is not None else 0,
                    slot=rows.slot or 0,
                    first_row=0,
                    rows=min(request.rows, rows.count),
                    warmup=0 if times else warmup,
                    min_count=max(1, min(request.min_count - done, 0xFFFFFFFF)),
                    max_count=most,
                    min_ns=max(0, request.min_ns - spent),
                    max_ns=max(1, request.max_ns - spent),
                    stream=zlib.crc32(request.label.encode()) & 0xFFFF,
                ),
                deadline,
            )
            if not times:
                first_ns, begun_ns = ran.first_ns, ran.before_ns
            times.append(these)
            done += len(these)
            spent += ran.after_ns - ran.before_ns
            if ran.count < most or spent >= request.max_ns or (done >= request.min_count and spent >= request.min_ns):
                whole = Ran(done, 0, first_ns, begun_ns, ran.after_ns, ())
                return whole, np.concatenate(times)

    def outputs(self, rows: Rows, deadline: Deadline) -> bytes:
        """Outputs of every row, one after the other."""
        each = _TIME_BYTES + self.model.output_bytes
        most = self.hello.results_bytes // each
        if most == 0:
            raise BoardUnfit(f"{self.model.output_bytes} bytes of outputs do not fit into the board's results area")
        parts: list[bytes] = []
        for first in range(0, rows.count, most):
            count = min(most, rows.count - first)
            flags = RunFlag.COLLECT | (RunFlag.FROM_SLOT if rows.slot is not None else 0)
            request = RunRequest(flags, rows.slot or 0, first, count, 0, count, count, 0, 2**63)
            ran, _ = self._run(request, deadline, times=False)
            if ran.output_bytes != count * self.model.output_bytes:
                raise BadData(f"{ran.output_bytes} bytes of outputs for {count} rows")
            parts.append(self._read(Result.OUTPUTS, ran.output_bytes, deadline))
        return b"".join(parts)

    def _run(self, request: RunRequest, deadline: Deadline, *, times: bool = True) -> tuple[Ran, npt.NDArray[np.int64]]:
        body = self.link.ask(Type.RUN, request.pack(), deadline, quiet_s=self.quiet_s())
        ran = Ran.unpack(body)
        spent = (ran.after_ns - ran.before_ns) / 1e9
        self.longest_s = max(self.longest_s or 0.0, spent / max(1, ran.count), ran.first_ns / 1e9)
        if not times or ran.count == len(ran.times_ns):
            return ran, np.array(ran.times_ns, np.int64)
        data = self._read(Result.TIMES, ran.count * _TIME_BYTES, deadline)
        return ran, np.frombuffer(data, "<u8").astype(np.int64)

    # ---- other ---------------------------------------------------------------------------------------------------

    def profile(self, deadline: Deadline) -> tuple[NodeTime, ...]:
        """Time per node, of one inference on the rows staged last."""
        fields = Fields(self.link.ask(Type.PROFILE, b"", deadline, quiet_s=self.quiet_s()))
        count, size = fields.unpack("II")
        return NodeTime.read_all(self._read(Result.PROFILE, size, deadline), count)

    def self_test(self, deadline: Deadline) -> SelfTested:
        """The model on the test inputs that are in its file, tensor by tensor.

        Raises:
            BadData: the file has none.
        """
        return SelfTested.unpack(self.link.ask(Type.SELFTEST, b"\x01", deadline, quiet_s=self.quiet_s(4)))

    def _read(self, what: Result, size: int, deadline: Deadline) -> bytes:
        parts: dict[int, bytes] = {}

        def payload(offset: int, attempt: int) -> bytes:
            return struct.pack("<BBHI", what, 0, min(CHUNK_BYTES, size - offset), offset)

        def done(offset: int, reply: Reply) -> tuple[int, ...]:
            _accepted(reply)
            parts[offset] = reply.body
            return ()

        pipeline: Pipeline[int] = Pipeline(self.link, Type.READ, payload, done)
        pipeline.run(range(0, size, CHUNK_BYTES), deadline)
        data = b"".join(parts[offset] for offset in sorted(parts))
        if len(data) != size:
            raise BadData(f"{len(data)} of {size} bytes of results came")
        return data


def _accepted(reply: Reply) -> tuple[int, ...]:
    if reply.status != Status.OK:
        raise refusal(reply.status, Fields(reply.body).text())
    return ()
