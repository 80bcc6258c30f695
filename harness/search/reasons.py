"""Sentences that say why a candidate was picked, or was not."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.search.filters import Objective
from harness.search.pareto import dominates
from harness.search.ranking import Ranked
from harness.units import format_difference, format_metric, format_ns


def picked(
    item: Ranked,
    chosen: Sequence[Ranked],
    ranked: Sequence[Ranked],
    metric: str | None,
    objective: Objective,
    filter_name: str,
) -> str:
    """Where it stands, by what it was picked, how it compares with float, and what to beware of."""
    parts = [_standing(item, chosen, ranked, metric, objective, filter_name)]
    baseline = next((r for r in ranked if r.is_float), None)
    if baseline is not None and baseline is not item:
        parts.append(_against(item, baseline, metric))
    undecided = sorted(name for name, outcome in item.result.constraints.items() if outcome == "undecided")
    if undecided:
        parts.append(f"undecided on {' and '.join(undecided)}: {_what_would_tell(item, undecided)}")
    if item.result.verdict == "suspect":
        why = item.result.reasons[0] if item.result.reasons else "no reason recorded"
        parts.append(f"suspect ({why})")
    return "; ".join(parts)


def _what_would_tell(item: Ranked, undecided: Sequence[str]) -> str:
    limits = [m.limit for m in item.result.metrics.values() if m.outcome == "undecided" and m.limit is not None]
    wanted = [limit.samples for limit in limits if limit.samples is not None]
    if undecided != ["accuracy"] or not limits or len(wanted) < len(limits):
        return "more samples would tell"
    samples = max(m.n for m in item.result.metrics.values() if m.outcome == "undecided")
    return f"about {max(wanted):,} samples like these {samples:,} would tell whether it keeps {limits[0].text}"


def not_picked(item: Ranked, chosen: Sequence[Ranked], metric: str | None) -> str:
    better_tier = [c for c in chosen if c.tier < item.tier]
    dominating = [c for c in chosen if dominates(c.point, item.point)]
    if dominating:
        best = min(dominating, key=lambda c: (c.point, c.trial))
        return f"{best.trial:04d} is better: {_than(item, best, metric)}"
    if chosen and len(better_tier) == len(chosen):
        if item.result.verdict == "suspect":
            return "its measurement is suspect, and enough candidates are not"
        undecided = sorted(name for name, outcome in item.result.constraints.items() if outcome == "undecided")
        return f"undecided on {' and '.join(undecided)}, and enough candidates are not"
    return "others cover its trade-off better" if chosen else "the filter picked nothing"


def _standing(
    item: Ranked,
    chosen: Sequence[Ranked],
    ranked: Sequence[Ranked],
    metric: str | None,
    objective: Objective,
    filter_name: str,
) -> str:
    peers = [r for r in ranked if r.tier == item.tier]
    titles = []
    if len(peers) == 1 and len(ranked) > 1:
        titles.append("the only one of its standing")
    elif len(peers) == 1:
        titles.append("the only feasible candidate")
    else:
        if item.latency_ns <= min(r.latency_ns for r in peers):
            titles.append("fastest")
        if metric is not None and item.loss <= min(r.loss for r in peers):
            titles.append(f"best {metric}")
    dominating = [r for r in peers if dominates(r.point, item.point)]
    if titles:
        text = " and ".join(titles) + _among(item, ranked)
    elif dominating:
        best = min(dominating, key=lambda c: (c.point, c.trial))
        text = f"next after the Pareto set ({best.trial:04d} is better: {_than(item, best, metric)})"
    elif objective == "pareto" and item is chosen[0]:
        text = "best single trade-off on the Pareto set"
    elif objective == "pareto":
        text = "adds most to the trade-offs already picked"
    else:
        text = f"on the Pareto set, number {chosen.index(item) + 1} by {objective}"
    return text if filter_name == "pareto" else f"{text} (picked by the filter {filter_name})"


def _among(item: Ranked, ranked: Sequence[Ranked]) -> str:
    """Whom a title holds against, where not all candidates stand alike."""
    if all(r.tier == item.tier for r in ranked):
        return ""
    if item.tier == min(r.tier for r in ranked):
        return " of those whose measurements and limits are certain"
    return " of the others"


def _against(item: Ranked, baseline: Ranked, metric: str | None) -> str:
    ratio = baseline.latency_ns / item.latency_ns
    if _overlap(item, baseline):
        speed = "as fast as float within the intervals"
    else:
        speed = f"{ratio:.2f}× faster than float" if ratio > 1 else f"{1 / ratio:.2f}× slower than float"
    if metric is None:
        return speed
    found = item.result.metrics[metric]
    difference = found.difference if found.difference is not None else found.value - (baseline.value or 0.0)
    if not math.isfinite(difference):
        return speed
    return f"{speed}, {metric} {format_difference(difference, found.unit)}"


def _than(item: Ranked, better: Ranked, metric: str | None) -> str:
    """What makes ``better`` better."""
    parts = []
    if better.latency_ns < item.latency_ns:
        faster = f"{format_ns(better.latency_ns)} against {format_ns(item.latency_ns)}"
        parts.append(f"{faster}, intervals overlap" if _overlap(item, better) else faster)
    if metric is not None and better.loss < item.loss and better.value is not None and item.value is not None:
        unit = better.result.metrics[metric].unit
        parts.append(f"{metric} {format_metric(better.value, unit)} against {format_metric(item.value, unit)}")
    elif metric is not None:
        parts.append(f"equal {metric}")
    return ", ".join(parts)


def _overlap(a: Ranked, b: Ranked) -> bool:
    first, second = a.result.latency_ns, b.result.latency_ns
    if first is None or second is None:
        return False
    return first.ci95[0] <= second.ci95[1] and second.ci95[0] <= first.ci95[1]
