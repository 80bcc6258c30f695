"""From results on boards to the numbers a sampler minimises."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from harness.results import BoardResult
from harness.search.filters import Objective
from harness.search.ranking import usable


def objective_count(objective: Objective, metric: str | None) -> int:
    """2 for ``pareto`` with a metric, otherwise 1."""
    return 2 if objective == "pareto" and metric is not None else 1


def objective_values(
    results: Mapping[str, BoardResult], boards: Sequence[str], objective: Objective, metric: str | None
) -> tuple[float, ...] | None:
    """Values to minimise over all boards together: mean log latency, loss on the worst board, or both.

    ``None`` where any board has no usable number: what is missing is never made up.
    """
    logs: list[float] = []
    losses: list[float] = []
    for board in boards:
        result = results.get(board)
        latency = result.latency_ns if result is not None else None
        if result is None or result.verdict == "invalid" or latency is None:
            return None
        if not usable(latency.p50) or latency.p50 <= 0:
            return None
        logs.append(math.log(latency.p50))
        if metric is None:
            continue
        found = result.metrics.get(metric)
        if found is None or not usable(found.value):
            return None
        losses.append(-found.value if found.higher_is_better else found.value)
    if not logs:
        return None
    speed = sum(logs) / len(logs)
    if not losses or objective == "latency":
        return (speed,)
    loss = max(losses)
    return (loss,) if objective == "accuracy" else (speed, loss)
