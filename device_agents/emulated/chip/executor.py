"""A loaded model of the emulated chip: integers in, integers out, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from device_agents.contract import ModelRejected, OutOfMemory, UnsupportedOperator
from device_agents.emulated.espdl.errors import EncryptedModel
from device_agents.emulated.espdl.interpreter import Interpreter, first_difference
from device_agents.emulated.espdl.model import DTYPES, ValueInfo
from device_agents.emulated.espdl.reader import read_model
from device_agents.emulated.espdl.target import Semantics
from device_agents.serial.codes import Status
from device_agents.serial.messages import LoadRequest, SelfTested, TensorInfo

from . import canary
from .costs import NodeCost, node_costs
from .spec import EmulatedChipSpec


class Refused(Exception):
    """The chip refuses a request."""

    def __init__(self, status: Status, text: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Loaded(Protocol):
    """What the device runs."""

    inputs: Sequence[TensorInfo]
    outputs: Sequence[TensorInfo]
    nodes: Sequence[NodeCost]
    load_ns: int
    memory: tuple[int, int, int]
    """Bytes of internal memory, PSRAM, flash."""

    def run(self, row: bytes) -> bytes:
        """All inputs to all outputs, one after the other."""

    def self_test(self) -> SelfTested: ...


@dataclass
class Canary:
    """The model that the firmware contains."""

    us: float

    def __post_init__(self) -> None:
        self.inputs: Sequence[TensorInfo] = (canary.INPUT_INFO,)
        self.outputs: Sequence[TensorInfo] = (canary.OUTPUT_INFO,)
        self.nodes: Sequence[NodeCost] = (NodeCost("canary", "Conv", self.us / 1e3),)
        self.load_ns = 20_000
        self.memory = (3280, 0, 0)

    def run(self, row: bytes) -> bytes:
        return canary.run(row)

    def self_test(self) -> SelfTested:
        return SelfTested(True, 1, 0, 0, 0, "sums")


class EspdlModel:
    """An ``.espdl`` file, run by the interpreter as the chip's kernels compute.

    Raises :class:`Refused` with what the firmware would say.
    """

    def __init__(self, data: bytes, spec: EmulatedChipSpec, request: LoadRequest, *, in_flash: bool) -> None:
        try:
            self._model = read_model(data)
            self._interpreter = Interpreter(self._model, spec.chip.target, Semantics.DEVICE)
        except EncryptedModel as error:
            raise Refused(Status.ENCRYPTED, error.message) from error
        except UnsupportedOperator as error:
            raise Refused(Status.UNSUPPORTED_OPERATOR, error.message) from error
        except OutOfMemory as error:
            raise Refused(Status.NO_MEMORY, error.message) from error
        except ModelRejected as error:
            raise Refused(Status.BAD_MODEL, error.message) from error
        self.inputs: Sequence[TensorInfo] = tuple(map(_info, self._model.inputs))
        self._known: dict[bytes, bytes] = {}
        shapes, largest = self._shapes()
        if largest > spec.chip.arena_kb * 1024:
            raise Refused(
                Status.NO_MEMORY, f"activations of {largest} bytes; there is room for {spec.chip.arena_kb * 1024}"
            )
        self.outputs: Sequence[TensorInfo] = tuple(
            TensorInfo(info.name, info.dtype, info.exponent, shapes[info.name], info.size_bytes)
            for info in map(_info, self._model.outputs)
        )
        self.nodes: Sequence[NodeCost] = node_costs(
            self._model, shapes, spec.cost_model, in_flash=in_flash, multi_core=request.multi_core
        )
        self.load_ns = round(spec.cost_model.load_ms * 1e6 + len(data) / spec.cost_model.load_mb_per_s * 1e3)
        self.memory = (0, largest + (0 if in_flash else len(data)), len(data) if in_flash else 0)

    def _shapes(self) -> tuple[dict[str, tuple[int, ...]], int]:
        """(shape of every activation, bytes of the largest pair of neighbours: the least an arena must hold)."""
        zeros = {info.name: np.zeros((1, *info.shape), np.dtype(info.dtype)) for info in self.inputs}
        shapes = {info.name: tuple(info.shape) for info in self.inputs}
        sizes = {info.name: info.size_bytes for info in self.inputs}
        try:
            for name, array in self._interpreter.tensors(zeros):
                shapes[name] = tuple(array.shape[1:])
                sizes[name] = array.nbytes
        except ModelRejected as error:
            raise Refused(Status.BAD_MODEL, error.message) from error
        largest = max(
            (sum(sizes.get(name, 0) for name in {*node.inputs, *node.outputs}) for node in self._model.nodes),
            default=0,
        )
        return shapes, largest

    def run(self, row: bytes) -> bytes:
        if row not in self._known:
            if len(self._known) > 4096:
                self._known.clear()
            self._known[row] = self._compute(row)
        return self._known[row]

    def _compute(self, row: bytes) -> bytes:
        arrays = {}
        at = 0
        for info in self.inputs:
            values = np.frombuffer(row[at : at + info.size_bytes], np.dtype(info.dtype).newbyteorder("<"))
            arrays[info.name] = values.reshape(1, *info.shape)
            at += info.size_bytes
        outputs = self._interpreter.run(arrays)
        return b"".join(
            outputs[info.name].astype(np.dtype(info.dtype).newbyteorder("<")).tobytes() for info in self.outputs
        )

    def self_test(self) -> SelfTested:
        wanted = self._model.test_outputs
        if not wanted or set(self._model.test_inputs) != {info.name for info in self.inputs}:
            raise Refused(Status.NOT_FOUND, "the model has no test values")
        arrays = {info.name: self._model.test_inputs[info.name].values.reshape(1, *info.shape) for info in self.inputs}
        got = {name: array.ravel() for name, array in self._interpreter.tensors(arrays)}
        expected = [(name, wanted[name].values.ravel()) for name in got if name in wanted]
        differs = first_difference(expected, got, tolerance_wide=1)
        if differs is None:
            return SelfTested(True, len(expected), 0, 0, 0, "")
        want, have = wanted[differs].values.ravel(), got[differs]
        index = int(np.flatnonzero(want.astype(np.int64) != have.astype(np.int64))[0]) if want.size == have.size else 0
        return SelfTested(False, len(expected), index, int(want[index]), int(have[index]), differs)


def _info(value: ValueInfo) -> TensorInfo:
    dtype = DTYPES[value.dtype]
    size = int(np.prod(value.shape, dtype=np.int64)) * dtype.itemsize
    return TensorInfo(value.name, dtype.name, value.exponent, value.shape, size)
