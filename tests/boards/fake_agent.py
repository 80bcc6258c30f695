"""An agent without a board: says what it is told to, and remembers what was asked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from device_agents.contract import (
    AgentError,
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

FACTS = BoardFacts(
    boot_id="boot-1",
    hardware_id="serial-1",
    emulated=False,
    machine="aarch64",
    cpu_model="Cortex-A76",
    cpu_count=4,
    memory_bytes=4 * 2**30,
    os="Debian 12",
    python="3.11.2",
    runtime="onnxruntime",
    runtime_version="1.20.0",
    providers=("CPUExecutionProvider",),
    runner_sha256="0" * 64,
)
STATE = BoardState(
    boot_id="boot-1",
    temperature_c=50.0,
    frequency_khz=2_400_000,
    max_frequency_khz=2_400_000,
    governor="performance",
    power_mode="balanced",
    load_average=0.1,
    throttled=False,
    memory_available_bytes=3 * 2**30,
    disk_free_bytes=50 * 2**30,
)
SELF_TEST = {"arithmetic": "ok: exact", "runtime": "ok: right", "noise": "ok: 2 %", "temperature": "ok: 50 °C"}


@dataclass
class FakeAgent:
    facts: BoardFacts = FACTS
    state: BoardState = STATE
    findings: Mapping[str, str] = field(default_factory=lambda: dict(SELF_TEST))
    canary_ns: int = 1_000_000
    fails: Mapping[str, AgentError] = field(default_factory=dict)
    """Method -> what it raises."""
    left: Sequence[str] = ()
    calls: list[str] = field(default_factory=list)
    options: RuntimeOptions | None = None

    name = "fake"

    def _call(self, method: str) -> None:
        self.calls.append(method)
        if method in self.fails:
            raise self.fails[method]

    def connect(self, deadline_s: float = 60.0) -> BoardFacts:
        self._call("connect")
        return self.facts

    def describe(self, deadline_s: float = 30.0) -> BoardFacts:
        return self.facts

    def has(self, sha256: str, deadline_s: float = 30.0) -> bool:
        return False

    def deploy(self, path: Path, sha256: str, deadline_s: float = 600.0) -> DeployReport:
        self._call("deploy")
        size = path.stat().st_size
        return DeployReport(sha256, size, size)

    def load(
        self, sha256: str, options: RuntimeOptions, pipeline: Pipeline | None = None, deadline_s: float = 300.0
    ) -> LoadReport:
        self._call("load")
        self.options = options
        inputs = (("input", "float32", (1, 8, 32, 32)),)
        return LoadReport("s1", self.facts.boot_id, 5_000_000, Placement({}), inputs, ("output",))

    def measure(
        self, session: str, inputs: Tensors | DataRef, request: BlockRequest, deadline_s: float = 120.0
    ) -> Block:
        self._call("measure")
        samples = np.full(request.min_count, self.canary_ns, dtype=np.int64)
        return Block(self.facts.boot_id, samples, None, self.state, self.state)

    def infer(self, session: str, inputs: Tensors | DataRef, batch: int = 1, deadline_s: float = 600.0) -> Inference:
        return Inference(self.facts.boot_id, {})

    def unload(self, session: str, deadline_s: float = 30.0) -> None:
        self._call("unload")

    def health(self, deadline_s: float = 30.0) -> BoardState:
        self._call("health")
        return self.state

    def self_test(self, seconds: float = 1.0, deadline_s: float = 60.0) -> Mapping[str, str]:
        self._call("self_test")
        return self.findings

    def recover(self, deadline_s: float = 120.0) -> BoardFacts:
        return self.facts

    def clean(self, deadline_s: float = 60.0) -> Sequence[str]:
        self._call("clean")
        return self.left

    def close(self) -> None:
        self.calls.append("close")


def with_state(**changes: object) -> FakeAgent:
    return FakeAgent(state=replace(STATE, **changes))  # type: ignore[arg-type]


def with_facts(**changes: object) -> FakeAgent:
    return FakeAgent(facts=replace(FACTS, **changes))  # type: ignore[arg-type]
