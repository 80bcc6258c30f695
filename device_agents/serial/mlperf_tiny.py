"""Drives a board with MLPerf Tiny firmware: times and checks the one model that is compiled into it.

Nothing can be sent but inputs: :meth:`~MlperfTinyAgent.deploy` of a model notes the digest that the caller says the
firmware contains, and takes the names and shapes of its outputs from the file. Nothing on the board can prove that, so
placement comes without evidence. The canary is that same model, on the row that is in the firmware's buffer.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

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
    DeviceReboot,
    DeviceTimeout,
    Inference,
    LinkError,
    LoadReport,
    ModelRejected,
    Pipeline,
    Placement,
    RuntimeOptions,
    Tensors,
)
from device_agents.runner_sessions import Loaded, Sessions
from device_agents.transport import Deadline

from .agent import PROVIDER, check_options
from .mlperf_line import Identity, MlperfLine, Ran
from .port import SerialTarget
from .samples import read_rows

RUNTIME = "mlperf-tiny"
WARM_RUNS = 3
"""Inferences before the first timed one of a block: a row has just gone through the processor's caches."""
_FIRST_QUIET_S = 120.0
_LEAST_QUIET_S = 10.0
_QUIET_FACTOR = 5.0
_STAMPS = 8
"""Read at the start, to learn in which steps the clock counts."""
_RATE_TOLERANCE = 0.2

Specs = tuple[tuple[str, str, tuple[int | str, ...]], ...]
"""(name, dtype, shape) each."""


@dataclass(frozen=True)
class _Claimed:
    """The model that the firmware is said to contain; nothing is known of a canary's."""

    inputs: Specs = ()
    outputs: Specs = ()


class MlperfTinyAgent:
    """The :class:`~device_agents.contract.Agent` of one board."""

    def __init__(self, name: str, target: SerialTarget) -> None:
        self.name = name
        self._target = target
        self._line = MlperfLine(target)
        self._sessions = Sessions(exclusive=False)
        self._models: dict[str, _Claimed] = {}
        self._samples: dict[str, Path] = {}
        self._identity: Identity | None = None
        self._boot_id = ""
        self._row: bytes | None = None
        """What is in the firmware's buffer."""
        self._longest_s: float | None = None
        self._count = self._blocks = 0

    # ---- the board -----------------------------------------------------------------------------------------------

    def connect(self, deadline_s: float = 60.0) -> BoardFacts:
        with self._blamed():
            return self._connect(Deadline(deadline_s))

    def describe(self, deadline_s: float = 30.0) -> BoardFacts:
        with self._blamed():
            return self._facts(self._line.identify(Deadline(deadline_s)))

    def health(self, deadline_s: float = 30.0) -> BoardState:
        with self._blamed():
            return self._state(Deadline(deadline_s))

    def self_test(self, seconds: float = 1.0, deadline_s: float = 60.0) -> Mapping[str, str]:
        """Compares the device's clock with this computer's."""
        deadline = Deadline(deadline_s)
        with self._blamed():
            began_us, began = self._line.timestamp(deadline), time.monotonic()
            time.sleep(seconds)
            here = time.monotonic() - began
            there = (self._line.timestamp(deadline) - began_us) / 1e6
            wrong = abs(there / here - 1) > _RATE_TOLERANCE
            step = self._line.clock.step_us
            identity = self._identity or self._line.identify(deadline)
            return {
                "clock": f"{'problem' if wrong else 'ok'}: it counts {there:.3f} s where {here:.3f} s pass here, "
                f"in steps of {step} µs",
                "model": f"ok: the firmware says {identity.model!r}; that it is the model you name cannot be checked",
            }

    def recover(self, deadline_s: float = 120.0) -> BoardFacts:
        with self._blamed():
            self._line.drop()
            self._lose_all("the board was recovered since")
            return self._connect(Deadline(deadline_s))

    def clean(self, deadline_s: float = 60.0) -> Sequence[str]:
        """Nothing is ever left on the board."""
        return ()

    def close(self) -> None:
        self._lose_all("the agent was closed")
        self._line.close()

    @property
    def line_log(self) -> str:
        """The last of what the board said."""
        return self._line.log.tail(16_000)

    # ---- files ---------------------------------------------------------------------------------------------------

    def has(self, sha256: str, deadline_s: float = 30.0) -> bool:
        return sha256 in self._models or sha256 in self._samples

    def deploy(self, path: Path, sha256: str, deadline_s: float = 600.0) -> DeployReport:
        """Sends nothing. A model is an ``.onnx`` file; samples are an ``.npz`` file; a text names the canary."""
        with self._blamed():
            data = path.read_bytes()
            actual = hashlib.sha256(data).hexdigest()
            if actual != sha256:
                raise BadData(f"{path} has the sha256 {actual}, not {sha256}", hint="the file changed")
            if zipfile.is_zipfile(path):
                self._samples[sha256] = path
            else:
                self._models[sha256] = _Claimed() if path.suffix == ".txt" else _read_model(path)
            return DeployReport(sha256, len(data), 0)

    # ---- models --------------------------------------------------------------------------------------------------

    def load(
        self, sha256: str, options: RuntimeOptions, pipeline: Pipeline | None = None, deadline_s: float = 300.0
    ) -> LoadReport:
        with self._blamed():
            check_options(options, pipeline)
            model = self._models.get(sha256)
            if model is None:
                raise BadData(f"the model {sha256[:12]}… was not named", hint="deploy it first")
            self._state(Deadline(deadline_s))  # a board that is gone or was reset says so here
            self._count += 1
            loaded = Loaded(sha256, options, pipeline, handle=f"s{self._count}", remote=f"s{self._count}")
            self._sessions.add(loaded)
            return LoadReport(
                session=loaded.handle,
                boot_id=self._boot_id,
                load_ns=0,
                placement=Placement({}),
                inputs=model.inputs,
                outputs=tuple(name for name, _, _ in model.outputs),
            )

    def measure(
        self, session: str, inputs: Tensors | DataRef, request: BlockRequest, deadline_s: float = 120.0
    ) -> Block:
        """One sample per ``infer 1 0%``, from the device's own stamps; the next block takes the next row, as a row is
        slow to send. ``min_ns`` and ``max_ns`` count the device's clock, the line's pauses between inferences too."""
        deadline = Deadline(deadline_s)
        with self._blamed():
            if request.batch != 1:
                raise BadData(f"{request.batch} samples per inference are asked for; the firmware takes 1")
            rows = self._rows(session, inputs, request.rows)
            before = self._state(deadline)
            if rows:
                self._put(rows[self._blocks % len(rows)], deadline)
                self._blocks += 1
            samples = self._timed(request, deadline, checked=bool(rows))
            return Block(self._boot_id, samples, None, before, self._state(deadline))

    def infer(self, session: str, inputs: Tensors | DataRef, batch: int = 1, deadline_s: float = 600.0) -> Inference:
        deadline = Deadline(deadline_s)
        with self._blamed():
            if batch != 1:
                raise BadData(f"{batch} samples per inference are asked for; the firmware takes 1")
            outputs: list[tuple[float, ...]] = []
            rows = self._rows(session, inputs, None)
            if not rows:
                raise BadData("there are no rows to infer")
            for row in rows:
                self._put(row, deadline)
                ran = self._run(0, deadline, checked=True)
                outputs.append(self._line.results(deadline) if ran.results is None else ran.results)
            model = self._models[self._sessions.get(session).sha256]
            return Inference(self._boot_id, _named(model.outputs, outputs))

    def unload(self, session: str, deadline_s: float = 30.0) -> None:
        self._sessions.remove(session)

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _connect(self, deadline: Deadline) -> BoardFacts:
        self._line.open(deadline)
        if not self._boot_id:
            self._boot_id = secrets.token_hex(8)
            self._row = None
        self._identity = self._line.identify(deadline)
        for _ in range(_STAMPS):
            self._line.timestamp(deadline)
        return self._facts(self._identity)

    def _lose_all(self, why: str) -> None:
        self._sessions.lose_all(why)
        self._boot_id = ""

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """Errors name the board. Sessions are lost with their boot; no boot id outlives a line of unknown state."""
        try:
            yield
        except AgentError as error:
            error.board = error.board or self.name
            if isinstance(error, DeviceTimeout | LinkError | DeviceReboot):
                self._lose_all(error.message)
            raise

    def _timed(self, request: BlockRequest, deadline: Deadline, *, checked: bool) -> npt.NDArray[np.int64]:
        times: list[int] = []
        begun_us: int | None = None
        while True:
            ran = self._run(0 if times else WARM_RUNS, deadline, checked=checked)
            begun_us = ran.start_us if begun_us is None else begun_us
            if ran.end_us <= ran.start_us:
                raise BoardUnfit(
                    f"the device's clock does not move during an inference: it counts in steps of "
                    f"{self._line.clock.step_us} µs",
                    hint="give th_timestamp() of the firmware a finer clock",
                )
            times.append(1000 * (ran.end_us - ran.start_us))
            spent = 1000 * (ran.end_us - begun_us)
            if spent >= request.max_ns or (len(times) >= request.min_count and spent >= request.min_ns):
                return np.array(times, np.int64)

    def _run(self, warmup: int, deadline: Deadline, *, checked: bool) -> Ran:
        known = self._longest_s
        quiet = _FIRST_QUIET_S if known is None else max(_LEAST_QUIET_S, _QUIET_FACTOR * known * (1 + warmup))
        ran = self._line.infer(warmup, deadline, quiet)
        self._longest_s = max(known or 0.0, (ran.end_us - ran.start_us) / 1e6)
        if checked and ran.remark:
            raise BadData(
                f"the rows do not fit the firmware's model: {ran.remark}",
                hint="they are sent as the bytes they are: give samples of the type that the firmware takes",
            )
        return ran

    def _put(self, row: bytes, deadline: Deadline) -> None:
        """``infer`` copies the buffer to the input each time, so the same row is sent once."""
        if row != self._row:
            self._row = None
            self._line.put(row, deadline)
            self._row = row

    def _rows(self, session: str, inputs: Tensors | DataRef, most: int | None) -> list[bytes]:
        """Bytes of each row, little-endian, inputs one after the other; none where there are no inputs."""
        model = self._models[self._sessions.get(session).sha256]
        arrays = (
            read_rows(self._samples.get(inputs.sha256), inputs)
            if isinstance(inputs, DataRef)
            else {name: np.asarray(array) for name, array in inputs.items()}
        )
        names = [name for name, _, _ in model.inputs]
        if sorted(names) != sorted(arrays):
            raise BadData(f"the model's inputs are {sorted(names)}; given are {sorted(arrays)}")
        for name, dtype, shape in model.inputs:
            _check_rows(name, arrays[name], dtype, shape)
        if len({len(array) for array in arrays.values()}) > 1:
            raise BadData("the inputs have different numbers of samples")
        count = len(arrays[names[0]]) if names else 0
        plain = [arrays[name].astype(arrays[name].dtype.newbyteorder("<")) for name in names]
        return [b"".join(array[row].tobytes() for array in plain) for row in range(count)][:most]

    def _state(self, deadline: Deadline) -> BoardState:
        now_us = self._line.timestamp(deadline)
        return BoardState(boot_id=self._boot_id, clock_ns=1000 * now_us)

    def _facts(self, identity: Identity) -> BoardFacts:
        words = (identity.name, identity.profile, identity.model)
        found = self._line.found
        return BoardFacts(
            boot_id=self._boot_id,
            hardware_id=found.serial_number or found.device,
            emulated=False,
            machine="microcontroller",
            cpu_model=identity.name,
            cpu_count=1,
            memory_bytes=0,
            os="MLPerf Tiny firmware",
            python="",
            runtime=RUNTIME,
            runtime_version=identity.profile,
            providers=(PROVIDER,),
            runner_sha256=hashlib.sha256("\0".join(words).encode()).hexdigest(),
            extra={
                "firmware_model": identity.model,
                "clock_step_us": str(self._line.clock.step_us),
                "baud": str(self._target.baud),
            },
        )


def _read_model(path: Path) -> _Claimed:
    """Names, types and shapes of inputs and outputs of an ``.onnx`` file."""
    try:
        graph = onnx.load(path, load_external_data=False).graph
    except Exception as error:  # protobuf raises several kinds
        raise ModelRejected(
            f"{path} is not an ONNX model: {error}", hint="name the firmware's model as .onnx"
        ) from None
    constants = {tensor.name for tensor in graph.initializer}
    return _Claimed(_specs(v for v in graph.input if v.name not in constants), _specs(graph.output))


def _specs(values: Iterator[onnx.ValueInfoProto] | Sequence[onnx.ValueInfoProto]) -> Specs:
    specs = []
    for value in values:
        tensor = value.type.tensor_type
        dims = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim)
        specs.append((value.name, str(helper.tensor_dtype_to_np_dtype(tensor.elem_type)), dims))
    return tuple(specs)


def _check_rows(name: str, array: npt.NDArray[np.generic], dtype: str, shape: tuple[int | str, ...]) -> None:
    same = array.ndim == len(shape) and all(
        not isinstance(size, int) or size == given for size, given in zip(shape[1:], array.shape[1:], strict=False)
    )
    if array.ndim == 0 or len(array) == 0 or not same or str(array.dtype) != dtype:
        wanted = ", ".join(["n", *map(str, shape[1:])])
        raise BadData(f"input {name!r} takes {dtype} [{wanted}]; got {array.dtype} {list(array.shape)}")


def _named(specs: Specs, rows: Sequence[tuple[float, ...]]) -> dict[str, npt.NDArray[np.generic]]:
    """The firmware's numbers as the model's outputs, in its order, float32 [rows, *shape without its first axis]."""
    sizes = [[size if isinstance(size, int) else -1 for size in shape[1:]] for _, _, shape in specs]
    counts = [abs(math.prod(size)) for size in sizes]
    wanted = sum(counts)
    for row in rows:
        if len(row) != wanted:
            raise BadData(
                f"the firmware gives {len(row)} numbers, the outputs of the model have {wanted}",
                hint="name the model that is in the firmware, its outputs as m-results has them (one score, say)",
            )
    whole = np.array(rows, np.float32)
    ends = np.cumsum(counts)[:-1]
    parts = np.split(whole, ends, axis=1)
    return {spec[0]: part.reshape(len(rows), *size) for spec, part, size in zip(specs, parts, sizes, strict=True)}
