"""What a measurement leaves: everything needed to compute its summary again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from device_agents.contract import BoardState
from harness.measure.outliers import OutlierCounts
from harness.measure.settings import MeasurementSettings
from harness.results import LatencyResult, Verdict

Kind = Literal["warmup", "block"]
StopReason = Literal["interval", "futility", "max_blocks", "device_budget", "void", "failed", "unfinished"]


@dataclass(frozen=True, eq=False)
class BlockRecord:
    """One window or block as it was told, in order of time."""

    index: int
    """Position in the measurement, from 0."""
    round: int
    """Set the block belongs to: 0, and one more for each time the set was redone."""
    kind: Kind
    target: str
    session: int
    """Number of the target's session, from 0."""
    samples_ns: npt.NDArray[np.int64]
    first_ns: int | None
    before: BoardState
    after: BoardState
    peak_memory_bytes: int | None

    @cached_property
    def device_ns(self) -> int:
        return int(self.samples_ns.sum()) + (self.first_ns or 0)

    @cached_property
    def median_ns(self) -> float:
        return float(np.median(self.samples_ns))

    def to_json(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "round": self.round,
            "kind": self.kind,
            "target": self.target,
            "session": self.session,
            "n": len(self.samples_ns),
            "median_ns": self.median_ns if len(self.samples_ns) else None,
            "device_ns": self.device_ns,
            "first_ns": self.first_ns,
            "before": asdict(self.before),
            "after": asdict(self.after),
        }


@dataclass(frozen=True)
class DriftRecord:
    """Signs of drift in the set that counts."""

    level_change: float | None
    """Relative change of the fence (canary; the candidate itself where there is none), first to last block."""
    worst_slope: float | None
    """Largest relative change across one block, with its sign."""
    drifted: bool


@dataclass(frozen=True)
class MeasurementResult:
    target: str
    verdict: Verdict
    reasons: tuple[str, ...]
    """Why the verdict is not ``valid``."""
    notices: tuple[str, ...]
    """What is worth knowing and does not weigh on the verdict."""
    stop_reason: StopReason
    latency: LatencyResult | None
    """``None`` where the verdict is ``invalid``."""
    ratio_to_canary: float | None
    """Geometric mean of the block ratios; ``None`` without a canary or a result."""
    ratio_ci95: tuple[float, float] | None
    percentile_bounds: Mapping[str, float]
    """p90, p95, p99 -> bound the true percentile is below at 99 % confidence (LoadGen), nanoseconds."""
    canary_ns: tuple[float, ...]
    """Medians of the canary blocks of the set that counts, in order."""
    drift: DriftRecord
    outliers: OutlierCounts
    quarantine: bool
    """The board should measure no more until someone looks at it."""
    redone: int
    """Sets dropped and measured again."""
    first_ns: int | None
    """Of the target's first session."""
    peak_memory_bytes: int | None
    device_ns: int
    """Device time of the whole measurement: all targets, warm-up, canary and dropped sets."""
    settings: MeasurementSettings
    records: tuple[BlockRecord, ...]
    """Of all targets, warm-up and dropped sets included."""

    def to_json(self) -> dict[str, Any]:
        """All but the raw samples (:func:`sample_table`), in plain JSON types."""
        plain = {
            k: v for k, v in vars(self).items() if k not in ("records", "latency", "drift", "outliers", "settings")
        }
        for key in ("reasons", "notices", "canary_ns", "ratio_ci95"):
            plain[key] = None if plain[key] is None else list(plain[key])
        plain["percentile_bounds"] = dict(self.percentile_bounds)
        latency = asdict(self.latency) if self.latency else None
        if latency is not None:
            latency["ci95"] = list(latency["ci95"])
        return {
            **plain,
            "latency_ns": latency,
            "drift": asdict(self.drift),
            "outliers": asdict(self.outliers),
            "settings": asdict(self.settings),
            "blocks": [record.to_json() for record in self.records],
        }


def sample_table(records: Sequence[BlockRecord]) -> dict[str, npt.NDArray[Any]]:
    """Raw samples as columns of equal length, one row per inference, in order of time (for Parquet).

    Columns: ``block`` int32 (index), ``round`` int16, ``session`` int16, ``target`` and ``kind`` str objects,
    ``sample_ns`` int64.
    """
    counts = [len(r.samples_ns) for r in records]

    def column(values: Sequence[object], dtype: Any) -> npt.NDArray[Any]:
        return np.repeat(np.array(values, dtype=dtype), counts)

    return {
        "block": column([r.index for r in records], np.int32),
        "round": column([r.round for r in records], np.int16),
        "session": column([r.session for r in records], np.int16),
        "target": column([r.target for r in records], object),
        "kind": column([r.kind for r in records], object),
        "sample_ns": np.concatenate([r.samples_ns for r in records] or [np.empty(0, np.int64)]),
    }
