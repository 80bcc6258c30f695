"""A candidate as the top-K filter sees it, and who may be ranked at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.results import BoardResult, Candidate
from harness.search.pareto import Point
from harness.units import format_bytes, format_ns

LARGEST = 1e100
"""Numbers beyond this are mistakes; arithmetic on them would overflow."""
_STANDINGS = 3
"""Tiers of valid measurements, and of suspect ones."""


@dataclass(frozen=True)
class Ranked:
    """A rankable candidate on one board."""

    candidate: Candidate
    result: BoardResult
    latency_ns: float
    loss: float
    """Of the ranking metric, lower is better: its value, or minus its value; 0 where there is no metric."""
    tier: int
    """0 valid and every constraint met, 1 valid and one undecided, 2 the same where the best estimate breaks a limit on
    accuracy; 3, 4, 5 the same of suspect measurements."""
    value: float | None
    """Of the ranking metric as it was measured."""
    resolution: float = 0.0
    """Of the loss: differences below it are within the limit asked for, or within what the samples can tell."""

    @property
    def trial(self) -> int:
        return self.candidate.trial

    @property
    def is_float(self) -> bool:
        return self.candidate.recipe.get("scheme") == "float32"

    @property
    def point(self) -> Point:
        """Objectives for the Pareto set: latency as its logarithm, as only ratios of it matter."""
        return (math.log(self.latency_ns), self.loss)


def usable(value: object) -> bool:
    """A number that may be ranked: not missing, not NaN, not infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def rank_on_board(candidate: Candidate, board: str, metric: str | None) -> Ranked | str:
    """The candidate as ranked, or why it cannot be picked: unrankable, or a constraint is broken."""
    result = candidate.boards.get(board)
    if result is None:
        return f"no result on {board}"
    if result.verdict == "invalid":
        return f"measurement invalid: {_first(result.reasons)}"
    if result.verdict not in ("valid", "suspect"):
        return f"unknown verdict {result.verdict!r}"
    broken = [name for name, outcome in sorted(result.constraints.items()) if outcome == "broken"]
    if broken:
        return "; ".join(_broken(name, result, metric) for name in broken)
    latency = result.latency_ns
    if latency is None or not (usable(latency.p50) and latency.p50 > 0):
        return "no latency was measured"
    if not all(usable(end) for end in latency.ci95):
        return "its latency has no interval"
    value: float | None = None
    loss = 0.0
    if metric is not None:
        found = result.metrics.get(metric)
        if found is None or not usable(found.value):
            return f"{metric} was not measured"
        value = found.value
        loss = -value if found.higher_is_better else value
    tier = _STANDINGS * (result.verdict == "suspect") + _standing(result)
    return Ranked(candidate, result, latency.p50, loss, tier, value, _resolution(result, metric))


def _standing(result: BoardResult) -> int:
    if "undecided" not in result.constraints.values():
        return 0
    broken = any(m.outcome == "undecided" and m.limit and m.limit.estimate == "broken" for m in result.metrics.values())
    return 2 if broken else 1


def _resolution(result: BoardResult, metric: str | None) -> float:
    found = result.metrics.get(metric) if metric is not None else None
    if found is None:
        return 0.0
    slack = found.limit.slack if found.limit is not None else 0.0
    paired = found.difference is not None and found.ci95 is not None and all(usable(end) for end in found.ci95)
    half = (found.ci95[1] - found.ci95[0]) / 2 if paired and found.ci95 is not None else 0.0
    return max(slack, half)


def with_float_in_place(ranked: Sequence[Ranked]) -> list[Ranked]:
    """Float without the advantage that it keeps a limit against itself by definition.

    Where no other candidate keeps every limit for certain, and some that are undecided keep them by their best
    estimate, float stands among those instead of before them: how few samples there are says nothing for it.
    """
    return [replace(item, tier=item.tier + 1) if _by_definition(item, ranked) else item for item in ranked]


def _by_definition(item: Ranked, ranked: Sequence[Ranked]) -> bool:
    limits = [metric.limit for metric in item.result.metrics.values() if metric.limit is not None]
    others = [other for other in ranked if other is not item]
    return (
        item.is_float
        and item.tier % _STANDINGS == 0
        and bool(limits)
        and all(limit.relative for limit in limits)
        and not any(other.tier == item.tier for other in others)
        and any(other.tier == item.tier + 1 and _undecided(other) == ["accuracy"] for other in others)
    )


def _undecided(item: Ranked) -> list[str]:
    return [name for name, outcome in item.result.constraints.items() if outcome == "undecided"]


def without_copies(ranked: Sequence[Ranked]) -> tuple[list[Ranked], dict[int, str]]:
    """One candidate per artifact, the one of the lowest trial; the others with the reason."""
    kept: dict[str, Ranked] = {}
    copies: dict[int, str] = {}
    for item in sorted(ranked, key=lambda r: r.trial):
        identity = item.result.artifact.identity or item.result.artifact.sha256
        if identity and identity in kept:
            copies[item.trial] = f"the same artifact as {kept[identity].trial:04d}"
        else:
            kept[identity or f"trial {item.trial}"] = item
    return list(kept.values()), copies


def _first(reasons: Sequence[str]) -> str:
    return reasons[0] if reasons else "no reason recorded"


def _broken(name: str, result: BoardResult, metric: str | None) -> str:
    latency = result.latency_ns
    if name == "latency" and latency is not None and all(usable(end) for end in latency.ci95):
        return f"too slow: at least {format_ns(latency.ci95[0])} at 95 % confidence"
    if name == "accuracy":
        found = result.metrics.get(metric) if metric is not None else None
        if found is not None and found.outcome == "broken" and usable(found.difference):
            return f"not accurate enough: {metric} {found.difference:+.4g} against float"
        return "not accurate enough"
    if name == "size":
        return f"too large: {format_bytes(result.artifact.size_bytes)}"
    if name == "memory" and result.peak_memory_bytes is not None:
        return f"too much memory on the board: {format_bytes(result.peak_memory_bytes)}"
    if name == "offload":
        ratio = result.placement.get("offload_ratio")
        share = f": {ratio:.0%} of the operators" if usable(ratio) else ""
        return f"too little on the accelerator{share}"
    return f"breaks the limit on {name}"
