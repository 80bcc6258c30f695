"""When measuring on is futile: the latency above which a candidate provably cannot be picked."""

from __future__ import annotations

from collections.abc import Sequence

from harness.results import Candidate
from harness.search.filters import Objective
from harness.search.pareto import pareto_set
from harness.search.ranking import Ranked, rank_on_board, without_copies


def futility_threshold_ns(
    candidates: Sequence[Candidate],
    board: str,
    k: int,
    *,
    objective: Objective,
    metric: str | None = None,
    max_latency_ns: float | None = None,
) -> float | None:
    """A candidate whose latency is certainly above this cannot enter the top-K; ``None`` if there is no such latency.

    A latency limit always is one. By the standing of the others there is one only for objective ``latency``: by the
    pareto and accuracy objectives a slower candidate may still enter by its accuracy, which is not known before it was
    measured. With K candidates on the Pareto set that are certainly faster, a slower one cannot push any of them off
    the set nor come before them; so the K-th lowest upper end of their intervals is the threshold. Only valid
    candidates whose constraints are all met count.
    """
    limits = [] if max_latency_ns is None else [max_latency_ns]
    if objective == "latency":
        found = [rank_on_board(c, board, metric) for c in sorted(candidates, key=lambda c: c.trial)]
        ranked, _ = without_copies([r for r in found if isinstance(r, Ranked)])
        sure = [r for r in ranked if r.tier == 0]
        front = pareto_set([r.point for r in sure])
        uppers = sorted(latency.ci95[1] for i in front if (latency := sure[i].result.latency_ns) is not None)
        if len(uppers) >= k:
            limits.append(uppers[k - 1])
    return min(limits, default=None)
