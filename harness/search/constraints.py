"""Limits a candidate must keep, decided on intervals.

*met* or *broken* only where the interval lies wholly on one side of the limit, *undecided* otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.results import BoardResult, MetricResult, Outcome

MISSING = 1.0
"""Violation of a constraint whose number is missing: as bad as twice the limit."""


class Bound(Protocol):
    """An accuracy bound (``harness.measure.paired.AccuracyBound``)."""

    @property
    def relative(self) -> bool: ...
    @property
    def value(self) -> float: ...


def decide_upper(low: float, high: float, limit: float) -> Outcome:
    """Of ``value <= limit`` for a value between ``low`` and ``high``."""
    if high <= limit:
        return "met"
    return "broken" if low > limit else "undecided"


@dataclass(frozen=True)
class Constraints:
    """``None``: nothing is asked. Accuracy bounds are kept with their metrics."""

    max_latency_ns: float | None = None
    max_size_bytes: int | None = None
    max_memory_bytes: int | None = None
    """Peak memory on the board."""
    min_offload: float | None = None
    """Share of operator nodes on the accelerator, 0..1."""

    def decide(self, result: BoardResult, bounded: Sequence[str] = ()) -> dict[str, Outcome]:
        """Outcome by constraint: latency, accuracy, size, memory, offload; only those that were asked for.

        ``bounded`` are the metrics with an accuracy bound; accuracy is as bad as the worst of them. What was not
        measured is *undecided*.
        """
        outcomes: dict[str, Outcome] = {}
        if self.max_latency_ns is not None:
            latency = result.latency_ns
            outcomes["latency"] = decide_upper(*latency.ci95, self.max_latency_ns) if latency else "undecided"
        if bounded:
            outcomes["accuracy"] = worst([_metric_outcome(result.metrics.get(name)) for name in bounded])
        if self.max_size_bytes is not None:
            outcomes["size"] = "met" if result.artifact.size_bytes <= self.max_size_bytes else "broken"
        if self.max_memory_bytes is not None:
            outcomes["memory"] = _exact(result.peak_memory_bytes, self.max_memory_bytes)
        if self.min_offload is not None:
            ratio = result.placement.get("offload_ratio")
            outcomes["offload"] = _exact(None if ratio is None else -ratio, -self.min_offload)
        return outcomes

    def violations(self, result: BoardResult, bounds: Mapping[str, Bound]) -> tuple[float, ...]:
        """How far each constraint is broken on the best estimate, for the sampler: above 0 is broken.

        One per constraint asked for, always in the same order; shares of the limit, for accuracy the metric's unit.
        """
        found: list[float] = []
        if self.max_latency_ns is not None:
            found.append(_excess(result.latency_ns.p50 if result.latency_ns else None, self.max_latency_ns))
        if self.max_size_bytes is not None:
            found.append(_excess(result.artifact.size_bytes, self.max_size_bytes))
        if self.max_memory_bytes is not None:
            found.append(_excess(result.peak_memory_bytes, self.max_memory_bytes))
        if self.min_offload is not None:
            ratio = result.placement.get("offload_ratio")
            found.append(MISSING if ratio is None else self.min_offload - float(ratio))
        found += [_shortfall(result.metrics.get(name), bounds[name]) for name in sorted(bounds)]
        return tuple(found)


def worst(outcomes: Sequence[Outcome]) -> Outcome:
    """*broken* before *undecided* before *met*; *none* if nothing was asked."""
    for outcome in ("broken", "undecided", "met"):
        if outcome in outcomes:
            return outcome
    return "none"


def worst_violations(per_board: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Constraint by constraint, over boards that have the same constraints."""
    return tuple(max(column) for column in zip(*per_board, strict=True))


def _metric_outcome(metric: MetricResult | None) -> Outcome:
    return "undecided" if metric is None else metric.outcome


def _exact(value: float | None, limit: float) -> Outcome:
    if value is None:
        return "undecided"
    return "met" if value <= limit else "broken"


def _excess(value: float | None, limit: float) -> float:
    return MISSING if value is None else value / limit - 1.0


def _shortfall(metric: MetricResult | None, bound: Bound) -> float:
    if metric is None:
        return MISSING
    if bound.relative and metric.difference is None:
        return 0.0  # the float model itself
    value = metric.difference if bound.relative and metric.difference is not None else metric.value
    return bound.value - value if metric.higher_is_better else value - bound.value
