"""A made-up world to search in: a tiny model and data, boards that answer by arithmetic, a quantizer that refuses and
repeats itself. Everything follows from the bytes of the artifact, so that any two searches can be compared."""

from __future__ import annotations

import hashlib
import io
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from device_agents.contract import (
    Agent,
    Block,
    BlockRequest,
    BoardFacts,
    BoardState,
    DataRef,
    DeployReport,
    Inference,
    LoadReport,
    Pipeline,
    Placement,
    RuntimeOptions,
    Tensors,
)
from harness.boards.schema import Board
from harness.controller.board_session import BoardSession
from harness.plan import Plan, make_plan
from harness.quantize.contract import Artifact, Cause, QuantizeJob, Refusal

WEIGHTS = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)


def board(name: str = "alpha", **sections: Any) -> Board:
    """A board file's content, checked. ``sections`` are added to it or replace it."""
    return Board.model_validate(
        {
            "apiVersion": "boardtune/v1",
            "kind": "Board",
            "metadata": {"name": name},
            "transport": {"kind": "ssh", "host": "192.0.2.1"},
            "recovery": {"cool_down_s": 0},
            **sections,
        }
    )


def write_model(path: Path) -> Path:
    """x [batch, 6] -> Gemm -> y [batch, 4]."""
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["y"], name="gemm")],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(WEIGHTS, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def write_data(path: Path, samples: int = 40, seed: int = 0, **changes: Any) -> Path:
    """``.npz`` whose labels the float model gets right; ``changes`` replace or (``None``) drop arrays."""
    x = np.random.default_rng(seed).normal(size=(samples, 6)).astype(np.float32)
    arrays: dict[str, Any] = {"x": x, "labels": (x @ WEIGHTS).argmax(axis=1).astype(np.int64), **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def tiny_plan(folder: Path, **changes: Any) -> Plan:
    """Six trials of the quick preset on the boards alpha and beta; files are made in ``folder`` unless there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model.onnx").exists():
        write_model(folder / "model.onnx")
        write_data(folder / "calib.npz", 16, seed=1)
        write_data(folder / "eval.npz", 60, seed=2)
    values = {
        "model": str(folder / "model.onnx"),
        "calib": str(folder / "calib.npz"),
        "eval": str(folder / "eval.npz"),
        "boards": "alpha,beta",
        "trials": 6,
        "top_k": 2,
        "effort": "quick",
        "min_accuracy": "-30pp",
        **changes,
    }
    return make_plan(values)


class MadeUpQuantizer:
    """Refuses dynamic recipes, and makes one artifact for all static recipes of the same activation type."""

    def quantize(self, job: QuantizeJob) -> Artifact | Refusal:
        recipe = job.recipe
        if recipe.scheme == "dynamic":
            return Refusal(Cause.LOW_SNR, "the worst output has 3 dB", 3.0, detail="Traceback: …")
        kind = f"{recipe.scheme}/{recipe.activation}"
        content = job.model.read_bytes()
        if not recipe.is_float32:
            content += onnx.ModelProto(doc_string=kind).SerializeToString()
        job.out.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        return Artifact(job.out, digest, digest, len(content), 40.0, 1)

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class _Session:
    sha256: str
    pipeline: Pipeline | None = None
    blocks: int = 0


@dataclass
class MadeUpDevice:
    """An agent without a board. Times and outputs follow from the artifact's digest and the place in the session.

    ``faults``: operation -> errors its next calls raise, in order (``None``: none). ``spot_differs``: outputs of a
    session that was timed are others than those of a fresh one. ``exclusive``: one model is in memory at a time, others
    are loaded again when used, as real agents do.
    """

    name: str = "made-up"
    faults: Mapping[str, list[Exception | None]] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    spot_differs: bool = False
    exclusive: bool = False
    levels: Callable[[str], float] = lambda sha256: 1e6 * (1 + int(sha256[:6], 16) / 0xFFFFFF)
    evidence: tuple[str, ...] = ("cpu-only",)
    boot_id: str = "boot"
    """Changes by itself with :class:`DeviceReboot` planted."""
    calls: list[str] = field(default_factory=list)
    requests: list[tuple[str, BlockRequest]] = field(default_factory=list)
    """(digest of the model, request) of each block."""
    batches: list[int] = field(default_factory=list)
    """Of each inference pass."""
    clock_ns: int = 0
    _files: dict[str, bytes] = field(default_factory=dict)
    _sessions: dict[str, _Session] = field(default_factory=dict)
    _count: int = 0
    _resident: str = ""
    reloaded: list[str] = field(default_factory=list)
    """Operations that found their model gone from memory."""

    def _call(self, operation: str) -> None:
        self.calls.append(operation)
        planted = self.faults.get(operation)
        if planted and (error := planted.pop(0)) is not None:
            raise error

    def _use(self, session: str) -> _Session:
        if self.exclusive and session != self._resident:
            self.reloaded.append(self.calls[-1])
            self._resident = session
        return self._sessions[session]

    def facts(self) -> BoardFacts:
        return BoardFacts(
            boot_id=self.boot_id, hardware_id=f"id of {self.name}", emulated=True, machine="none", cpu_model="none",
            cpu_count=1, memory_bytes=1 << 30, os="none", python="3.11", runtime="onnxruntime",
            runtime_version="1.20", providers=("CPUExecutionProvider",), runner_sha256="0" * 64,
        )  # fmt: skip

    def connect(self, deadline_s: float = 60.0) -> BoardFacts:
        self._call("connect")
        return self.facts()

    def describe(self, deadline_s: float = 30.0) -> BoardFacts:
        return self.facts()

    def recover(self, deadline_s: float = 120.0) -> BoardFacts:
        self._call("recover")
        self._sessions.clear()
        return self.facts()

    def has(self, sha256: str, deadline_s: float = 30.0) -> bool:
        return sha256 in self._files

    def deploy(self, path: Path, sha256: str, deadline_s: float = 600.0) -> DeployReport:
        self._call("deploy")
        size = path.stat().st_size
        sent = 0 if sha256 in self._files else size
        self._files[sha256] = path.read_bytes()
        return DeployReport(sha256, size, sent)

    def load(
        self, sha256: str, options: RuntimeOptions, pipeline: Pipeline | None = None, deadline_s: float = 300.0
    ) -> LoadReport:
        self._call("load")
        self._count += 1
        handle = f"s{self._count}"
        self._sessions[handle] = _Session(sha256, pipeline)
        self._resident = handle
        graph = onnx.load_from_string(self._files[sha256]).graph
        inputs = tuple(
            (value.name, "float32", tuple(d.dim_value or d.dim_param for d in value.type.tensor_type.shape.dim))
            for value in graph.input
        )
        placement = Placement({"CPUExecutionProvider": ("gemm",)}, evidence=self.evidence)
        return LoadReport(handle, self.boot_id, 5_000_000, placement, inputs, ("y",), peak_memory_bytes=1 << 20)

    def measure(
        self, session: str, inputs: Tensors | DataRef, request: BlockRequest, deadline_s: float = 120.0
    ) -> Block:
        self._call("measure")
        loaded = self._use(session)
        self.requests.append((loaded.sha256, request))
        level = self.levels(loaded.sha256)
        count = min(100, max(request.min_count, int(np.ceil(request.min_ns / level))))
        rng = np.random.default_rng([int(loaded.sha256[:12], 16), loaded.blocks])
        samples = (level * np.exp(rng.normal(0, 0.003, count))).astype(np.int64)
        first = int(4 * level) if loaded.blocks == 0 else None
        loaded.blocks += 1
        before = self.health()
        self.clock_ns += int(samples.sum())
        return Block(self.boot_id, samples, first, before, self.health(), peak_memory_bytes=1 << 20)

    def infer(self, session: str, inputs: Tensors | DataRef, batch: int = 1, deadline_s: float = 600.0) -> Inference:
        self._call("infer")
        loaded = self._use(session)
        if not isinstance(inputs, DataRef):
            raise TypeError("samples are on the board")
        x = np.load(io.BytesIO(self._files[inputs.sha256]))["x"]
        digest = int(loaded.sha256[:12], 16)
        noise = np.random.default_rng(digest).normal(0, 0.02 * (digest % 7), size=(len(x), 4))
        y = (x @ WEIGHTS + noise).astype(np.float32)
        if self.spot_differs and loaded.blocks:
            y = -y
        self.batches.append(batch)
        if loaded.pipeline is not None and loaded.pipeline.post == "argmax":
            y = y.argmax(axis=-1)
        rows = slice(None) if inputs.rows is None else list(inputs.rows)
        self.clock_ns += 1000 * len(y[rows])
        return Inference(self.boot_id, {"y": y[rows]}, peak_memory_bytes=2 << 20)

    def unload(self, session: str, deadline_s: float = 30.0) -> None:
        self._call("unload")
        self._sessions.pop(session, None)

    def health(self, deadline_s: float = 30.0) -> BoardState:
        self._call("health")
        return BoardState(boot_id=self.boot_id, clock_ns=self.clock_ns, **self.state)

    def self_test(self, seconds: float = 1.0, deadline_s: float = 60.0) -> Mapping[str, str]:
        return {}

    def clean(self, deadline_s: float = 60.0) -> Sequence[str]:
        return ()

    def close(self) -> None:
        self.calls.append("close")


def session_on(device: Agent, made: Board | None = None) -> BoardSession:
    return BoardSession(
        made or board(), clock_lock=nullcontext, agent_factory=lambda _: device, sleep=lambda seconds: None
    )


@dataclass(frozen=True)
class MadeUpSessions:
    """Opens boards by name; ``faults``: board -> operation -> errors, as for :class:`MadeUpDevice`."""

    faults: Mapping[str, Mapping[str, list[Exception | None]]] = field(default_factory=lambda: defaultdict(dict))

    def __call__(self, made: Board) -> BoardSession:
        return session_on(MadeUpDevice(made.name, self.faults.get(made.name, {})), made)


def write_boards(folder: Path) -> None:
    """Limits by which alpha is not tried with float16 recipes, and beta neither with uint8 and uint16 ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, largest in (("alpha", 207), ("beta", 206)):
        (folder / f"{name}.yaml").write_text(
            "apiVersion: boardtune/v1\nkind: Board\ntransport: {kind: ssh, host: 192.0.2.1}\n"
            f"recovery: {{cool_down_s: 0}}\nmetadata: {{name: {name}}}\nlimits: {{max_model_bytes: {largest}}}\n"
        )
