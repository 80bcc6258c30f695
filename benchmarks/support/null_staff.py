"""A quantizer and a board that do nothing but sleep, to time the search around them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from device_agents.contract import BoardFacts, Placement, RuntimeOptions
from harness.boards.schema import Board
from harness.controller.actors import Quantizer, Session
from harness.controller.request import MeasureOutcome, MeasureRequest
from harness.measure.protocol import Measurement
from harness.quantize.contract import Artifact, QuantizeJob, Refusal
from harness.results import BoardResult, LatencyResult, MetricResult


class NullQuantizer:
    """Gives the float model back after ``seconds``, as a file of its own for each recipe."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds

    def quantize(self, job: QuantizeJob) -> Artifact | Refusal:
        time.sleep(self._seconds)
        # A whole model, as what follows looks into it; its doc string makes each recipe's a different file.
        content = job.model.read_bytes() + onnx.ModelProto(doc_string=job.recipe.digest).SerializeToString()
        job.out.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        return Artifact(job.out, digest, digest, len(content), 40.0, 1)

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class NullSession:
    """A board elsewhere: measuring takes wall time and no processor; its numbers follow from the artifact."""

    board: Board
    seconds: float
    busy: Callable[[float, float], None] = field(default=lambda start, end: None)
    quarantined: str | None = None
    spent_s: float = 0.0

    @property
    def name(self) -> str:
        return self.board.name

    @property
    def options(self) -> RuntimeOptions:
        return RuntimeOptions()

    def open(self) -> BoardFacts:
        return BoardFacts(
            boot_id="null", hardware_id="null", emulated=True, machine="none", cpu_model="none", cpu_count=1,
            memory_bytes=1, os="none", python="none", runtime="none", runtime_version="0",
            providers=("CPUExecutionProvider",), runner_sha256="",
        )  # fmt: skip

    def measure(self, request: MeasureRequest, deployed: Callable[[int], None]) -> MeasureOutcome:
        start = time.monotonic()
        deployed(0)
        time.sleep(self.seconds)
        rng = np.random.default_rng(int(request.artifact.identity[:12], 16))
        latency = float(rng.uniform(1e6, 2e6))
        metric = request.scoring.metrics[0].name if request.scoring else "top1"
        loss = float(rng.uniform(0, 0.02))
        result = BoardResult(
            emulated=True, verdict="valid", reasons=(), artifact=request.artifact, compiled_sha256=None,
            latency_ns=LatencyResult(latency, (latency * 0.99, latency * 1.01), 100, 3), load_ns=1, first_ns=1,
            peak_memory_bytes=1, placement=_plain(Placement({}, evidence=("null",))), phase=request.part.name,
            metrics={metric: MetricResult(0.9 - loss, -loss, (-loss - 0.001, -loss + 0.001), "met", 100)},
            device_seconds=self.seconds,
        )  # fmt: skip
        self.busy(start, time.monotonic())
        return MeasureOutcome(result, Measurement(request.settings).result(), {"blocks": []}, None)

    def close(self) -> None:
        """Nothing is open."""


def _plain(placement: Placement) -> dict[str, Any]:
    return {"nodes": {}, "evidence": list(placement.evidence), "offload_ratio": None}


@dataclass(frozen=True)
class NullQuantizers:
    seconds: float = 0.0

    def __call__(self) -> Quantizer:
        return NullQuantizer(self.seconds)


@dataclass(frozen=True)
class NullSessions:
    seconds: float = 0.0
    log: Path | None = None
    """Each measurement's start and end (monotonic seconds) are appended here."""

    def __call__(self, board: Board) -> Session:
        return NullSession(board, self.seconds, self._busy)

    def _busy(self, start: float, end: float) -> None:
        if self.log is not None:
            with self.log.open("a") as stream:
                stream.write(f"{start} {end}\n")
