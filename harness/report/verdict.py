"""One honest sentence per board: what to ship, and what that rests on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.report import wording
from harness.results import BoardResult, Candidate, MetricResult
from harness.units import format_metric

Tone = Literal["ship", "float", "undecided", "none"]
Pace = Literal["faster", "slower", "level", "unknown"]

_CONSTRAINT_VERBS = {
    "latency": "too slow",
    "accuracy": "lose too much accuracy",
    "size": "too large",
    "memory": "need too much memory",
    "offload": "fall back to the CPU too much",
}


@dataclass(frozen=True)
class BoardVerdict:
    board: str
    tone: Tone
    sentence: str
    """E.g. ``ship 0007: 3.1× faster than float on rpi5, −0.2 pp top-1``."""
    caveats: tuple[str, ...]
    """What a reader must know before trusting it."""
    emulated: bool
    trial: int | None


def board_verdict(
    board: str,
    candidates: Sequence[Candidate],
    picks: Sequence[int],
    baseline: BoardResult | None,
    *,
    metrics: Sequence[str] = (),
    units: Mapping[str, str] | None = None,
    finished: bool = True,
    emulated: bool | None = None,
) -> BoardVerdict:
    """``picks``: trial numbers, best first; ``baseline``: float's result, ``None`` where it cannot run; ``metrics``:
    the one ranked on first; ``finished``: false while the search goes on, which the sentence then says."""
    here = {c.trial: (c, c.boards[board]) for c in candidates if board in c.boards}
    if emulated is None:
        emulated = any(result.emulated for _, result in here.values())
    place = f"{board} (emulated)" if emulated else board
    so_far = "" if finished else "so far: "
    chosen = next((number for number in picks if number in here), None)
    if chosen is None:
        sentence = _nothing(place, [result for _, result in here.values()])
        return BoardVerdict(board, "none", so_far + sentence, (), emulated, None)
    candidate, result = here[chosen]
    caveats = _caveats(result, metrics, dict(units or {}))
    number = wording.trial_name(chosen)
    if candidate.recipe.get("scheme") == "float32":
        sentence = f"keep float ({number}) on {place}: no quantized model that keeps the constraints ranks above it"
        open_questions = _faster_but_uncertain(result, here, picks, metrics, dict(units or {}))
        return BoardVerdict(board, "float", so_far + sentence, (*caveats, *open_questions), emulated, chosen)
    parts = [_speed(result, baseline, place)]
    if pace(result, baseline) in ("level", "slower") and baseline is not None:
        shrink = baseline.artifact.size_bytes / max(result.artifact.size_bytes, 1)
        parts.append(f"{wording.ratio(shrink)} smaller" if shrink > 1 else f"{wording.ratio(1 / shrink)} larger")
    parts.extend(_accuracy(result, metrics, dict(units or {})))
    undecided = [name for name, outcome in result.constraints.items() if outcome == "undecided"]
    tone: Tone = "undecided" if undecided or result.verdict != "valid" else "ship"
    provided = f", if its {' and '.join(undecided)} holds" if undecided else ""
    return BoardVerdict(board, tone, f"{so_far}ship {number}{provided}: {', '.join(parts)}", caveats, emulated, chosen)


def pace(result: BoardResult, baseline: BoardResult | None) -> Pace:
    """``level`` where the two 95 % intervals overlap: the difference is then not resolved."""
    if baseline is None or baseline.latency_ns is None or result.latency_ns is None:
        return "unknown"
    low, high = result.latency_ns.ci95
    base_low, base_high = baseline.latency_ns.ci95
    return "faster" if high < base_low else "slower" if low > base_high else "level"


def _speed(result: BoardResult, baseline: BoardResult | None, place: str) -> str:
    kind = pace(result, baseline)
    if result.latency_ns is None:
        return f"latency unknown on {place}"
    if kind == "unknown" or baseline is None or baseline.latency_ns is None:
        return f"{wording.latency(result.latency_ns.p50)} on {place}, where float has no measurement to compare with"
    if kind == "level":
        return f"as fast as float on {place} within the confidence intervals"
    return f"{_quotient(result, baseline)} on {place}"


def _quotient(result: BoardResult, baseline: BoardResult) -> str:
    """Where both were measured and the difference is resolved."""
    if result.latency_ns is None or baseline.latency_ns is None:
        return "of unknown latency"
    quotient = baseline.latency_ns.p50 / result.latency_ns.p50
    return f"{wording.ratio(max(quotient, 1 / quotient))} {pace(result, baseline)} than float"


def _accuracy(result: BoardResult, metrics: Sequence[str], units: dict[str, str]) -> list[str]:
    name = next((m for m in metrics if m in result.metrics), next(iter(result.metrics), None))
    if name is None:
        return ["accuracy not evaluated"]
    metric, unit = result.metrics[name], wording.metric_unit(name, units)
    difference = wording.metric_difference(metric, unit)
    shown = wording.metric_name(name)
    return [f"{difference} {shown}" if difference else f"{shown} {format_metric(metric.value, unit)} against float"]


def _caveats(result: BoardResult, metrics: Sequence[str], units: dict[str, str]) -> tuple[str, ...]:
    found = []
    for name, outcome in result.constraints.items():
        if outcome == "undecided":
            interval = _undecided_interval(name, result, metrics, units)
            found.append(f"whether it keeps the {name} constraint is undecided at 95 % confidence{interval}")
    if result.verdict != "valid":
        found.append(f"the measurement is {result.verdict}: {'; '.join(result.reasons) or 'no reason recorded'}")
    return tuple(found)


def _faster_but_uncertain(
    baseline: BoardResult,
    here: Mapping[int, tuple[Candidate, BoardResult]],
    picks: Sequence[int],
    metrics: Sequence[str],
    units: dict[str, str],
) -> list[str]:
    """What might rank above float if more were known: the first pick that is faster, and what is open about it."""
    for number in picks:
        if number not in here or pace(here[number][1], baseline) != "faster":
            continue
        result = here[number][1]
        told = [_quotient(result, baseline), *_accuracy(result, metrics, units)]
        return [
            f"{wording.trial_name(number)} is {', '.join(told)}: {text}" for text in _caveats(result, metrics, units)
        ]
    return []


def _undecided_interval(name: str, result: BoardResult, metrics: Sequence[str], units: dict[str, str]) -> str:
    if name == "latency" and result.latency_ns is not None:
        return f" ({wording.latency_interval(*result.latency_ns.ci95)})"
    undecided: dict[str, MetricResult] = {n: m for n, m in result.metrics.items() if m.outcome == "undecided"}
    if name == "accuracy" and undecided:
        metric_name = next((m for m in metrics if m in undecided), next(iter(undecided)))
        metric = undecided[metric_name]
        interval = wording.metric_interval(metric, wording.metric_unit(metric_name, units))
        shown = f" ({interval} {wording.metric_name(metric_name)})" if interval else ""
        return shown + _samples_wanted(metric)
    return ""


def _samples_wanted(metric: MetricResult) -> str:
    limit = metric.limit
    if limit is None:
        return ""
    if limit.samples is None:
        return f"; the limit is {limit.text}, where the estimate lies as well"
    return (
        f"; the limit is {limit.text}: about {limit.samples:,} samples of this kind would decide it, "
        f"{metric.n:,} did not"
    )


def _nothing(place: str, results: Sequence[BoardResult]) -> str:
    if not results:
        return f"nothing to ship on {place}: no candidate was measured there"
    usable = [r for r in results if r.latency_ns is not None and r.verdict != "invalid"]
    if not usable:
        return f"nothing to ship on {place}: no measurement there is valid"
    broken = Counter(name for r in usable for name, outcome in r.constraints.items() if outcome == "broken")
    why = ", ".join(f"{n} {_CONSTRAINT_VERBS.get(name, f'break {name}')}" for name, n in broken.most_common())
    of = wording.count(len(usable), "candidate")
    if not why:
        return f"nothing to ship on {place}: none of {of} was picked"
    return f"nothing to ship on {place}: none of {of} keeps the constraints ({why})"
