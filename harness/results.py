"""The values a trial ends in: what is ranked, recorded in the ledger, written to candidates.json and reported.

Frozen, JSON-serialisable through :func:`to_json` and back through the classes' ``from_json``. A number that is
missing is ``None``, and ``None`` is unrankable: it can never win.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter

Verdict = Literal["valid", "suspect", "invalid"]
Outcome = Literal["met", "broken", "undecided", "none"]
"""Of a constraint decided on a confidence interval; ``none`` where nothing was asked."""
TrialStatus = Literal["done", "failed", "pruned", "duplicate"]


@dataclass(frozen=True)
class LatencyResult:
    """Steady-state latency per inference of as many samples as the plan's ``batch`` says, from the device's clock."""

    p50: float
    """Nanoseconds: median of the raw samples scaled so the canary reads its median over the whole measurement."""
    ci95: tuple[float, float]
    """Student's t on the logs of block-median ratios to the canary, in nanoseconds."""
    n: int
    """Raw samples behind it."""
    blocks: int
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    """Only from 64, 130, 662 samples on (LoadGen early-stopping rule)."""
    minimum_block_median: float | None = None
    """Lowest block median, nanoseconds."""


@dataclass(frozen=True)
class LimitStanding:
    """What is known of a limit on a metric, beside its outcome."""

    text: str
    """As it was asked for, such as ``-1pp``."""
    relative: bool
    """Of the difference to float; float itself keeps such a limit by definition."""
    slack: float
    """How far a relative limit lets the metric fall behind float, in its unit; 0 for others."""
    estimate: Outcome
    """Met or broken by the best estimate."""
    samples: int | None = None
    """Where it is undecided: how many would decide it if the rates stay as they are; ``None``: decided, or unknown."""


@dataclass(frozen=True)
class MetricResult:
    value: float
    difference: float | None
    """Paired difference to float on the same samples, in the metric's own unit; ``None`` for the float model."""
    ci95: tuple[float, float] | None
    """Interval of the paired difference; of the value where ``difference`` is ``None``."""
    outcome: Outcome = "none"
    n: int = 0
    """Samples."""
    higher_is_better: bool = True
    extras: Mapping[str, Any] = field(default_factory=dict)
    unit: str = ""
    """``fraction``, ``dB``, or empty for a metric's own."""
    limit: LimitStanding | None = None
    """``None``: nothing is asked of it."""


@dataclass(frozen=True)
class ArtifactInfo:
    sha256: str
    """Of the file that was sent."""
    identity: str
    """Of the canonical content; see ``harness.quantize.identity``."""
    size_bytes: int


@dataclass(frozen=True)
class BoardResult:
    """One artifact on one board."""

    emulated: bool
    verdict: Verdict
    reasons: tuple[str, ...]
    """Why the verdict is not ``valid``; empty when it is."""
    artifact: ArtifactInfo
    compiled_sha256: str | None
    latency_ns: LatencyResult | None
    load_ns: int | None
    first_ns: int | None
    peak_memory_bytes: int | None
    metrics: Mapping[str, MetricResult]
    placement: Mapping[str, Any]
    """JSON form of ``device_agents.contract.Placement``."""
    constraints: Mapping[str, Outcome] = field(default_factory=dict)
    """latency, accuracy, size, memory, offload -> outcome."""
    reason: str | None = None
    """Why the candidate was picked, or was not."""
    phase: Literal["search", "final"] = "search"
    device_seconds: float = 0.0
    accuracy_from: Literal["device", "host-verified"] = "device"
    """``host-verified``: the metrics are the interpreter's on this host, with which the board agreed to the bit."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> BoardResult:
        return _BOARD_RESULT.validate_python(value)


@dataclass(frozen=True)
class Candidate:
    """A finished trial that may be in the top-K."""

    trial: int
    recipe: Mapping[str, Any]
    """Canonical JSON of the recipe."""
    label: str
    """Short human name of the recipe, e.g. ``static QDQ s8/s8 per-channel percentile 99.99``."""
    boards: Mapping[str, BoardResult]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Candidate:
        return _CANDIDATE.validate_python(value)


_BOARD_RESULT: TypeAdapter[BoardResult] = TypeAdapter(BoardResult)
_CANDIDATE: TypeAdapter[Candidate] = TypeAdapter(Candidate)


def to_json(value: LatencyResult | MetricResult | ArtifactInfo | BoardResult | Candidate) -> dict[str, Any]:
    """Plain JSON types, nested; tuples become lists."""
    return _plain(asdict(value))  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
