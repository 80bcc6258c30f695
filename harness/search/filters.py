"""Ways to choose K of the candidates that may be chosen; each gives an order of its own."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Literal

from harness.search.pareto import fronts, greedy_hypervolume, normalised
from harness.search.ranking import Ranked

Objective = Literal["latency", "accuracy", "pareto"]
Filter = Callable[[Sequence[Ranked], int], list[Ranked]]
"""Takes candidates of one tier and K; returns up to K of them, best first."""


def pareto_filter(objective: Objective) -> Filter:
    """The Pareto set first, by the objective; where it has fewer than K, the Pareto set of the rest, and so on.

    ``pareto`` takes from a set what adds most hypervolume (log latency and loss, each stretched to 0..1 over all).
    Losses that differ by less than their resolution are not stretched so far: chance would weigh as much as time.
    """

    def choose(items: Sequence[Ranked], k: int) -> list[Ranked]:
        ordered = sorted(items, key=lambda r: (*_key(objective)(r), r.trial))
        stretched = normalised([r.point for r in ordered], _least(ordered))
        chosen: list[int] = []
        for front in fronts([r.point for r in ordered]):
            wanted = k - len(chosen)
            if wanted <= 0:
                break
            picks = (
                greedy_hypervolume([stretched[i] for i in front], wanted)
                if objective == "pareto"
                else range(min(wanted, len(front)))
            )
            chosen += [front[i] for i in picks]
        return [ordered[i] for i in chosen]

    return choose


def balanced_filter(items: Sequence[Ranked], k: int) -> list[Ranked]:
    """ESP-PPQ's balanced rule (``esp_ppq/autoquant/candidates.py``) on measured latency.

    Half of K (rounded down) from the preferred pool, the rest from the other, the more accurate first; what one pool
    lacks the other fills; ordered by accuracy, then trial. ESP-PPQ, which times nothing, prefers recipes without mixed
    precision and layer split; here the faster half of the candidates is preferred.
    """
    by_latency = sorted(items, key=lambda r: (r.latency_ns, r.trial))
    half = (len(by_latency) + 1) // 2
    pools = [sorted(pool, key=lambda r: (r.loss, r.trial)) for pool in (by_latency[:half], by_latency[half:])]
    target = min(k, len(items))
    preferred = pools[0][: target // 2]
    others = pools[1][: target - target // 2]
    rest = sorted([*pools[0][len(preferred) :], *pools[1][len(others) :]], key=lambda r: (r.loss, r.trial))
    chosen = [*preferred, *others]
    chosen += rest[: target - len(chosen)]
    return sorted(chosen, key=lambda r: (r.loss, r.trial))


def score_filter(latency_weight: float = 0.5) -> Filter:
    """Lowest weighted sum of log latency and loss, each stretched to 0..1 over the candidates (see
    :func:`pareto_filter` for losses that hardly differ).

    Raises ``ValueError`` on a weight outside 0..1.
    """
    if not 0 <= latency_weight <= 1:
        raise ValueError(f"the weight of latency is {latency_weight}: must be within 0..1")

    def choose(items: Sequence[Ranked], k: int) -> list[Ranked]:
        scores = [
            latency_weight * p[0] + (1 - latency_weight) * p[1]
            for p in normalised([r.point for r in items], _least(items))
        ]
        order = sorted(range(len(items)), key=lambda i: (scores[i], items[i].trial))
        return [items[i] for i in order[:k]]

    return choose


def _least(items: Sequence[Ranked]) -> tuple[float, ...]:
    return (0.0, statistics.median(r.resolution for r in items)) if items else ()


def _key(objective: Objective) -> Callable[[Ranked], tuple[float, float]]:
    if objective == "accuracy":
        return lambda r: (r.loss, math.log(r.latency_ns))
    return lambda r: (math.log(r.latency_ns), r.loss)
