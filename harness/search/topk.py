"""The top-K filter: which candidates to ship to a board, with a reason for each that is picked and each that is not.

Constraints first, then candidates by tier (valid before suspect, constraints met before undecided, those that the best
estimate keeps before those it breaks), within a tier the Pareto set and K of it by the objective, or another filter.
Works on any set of candidates, also while a search runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from harness.errors import ConfigError
from harness.results import Candidate
from harness.search.filters import Filter, Objective, balanced_filter, pareto_filter, score_filter
from harness.search.ranking import Ranked, rank_on_board, with_float_in_place, without_copies
from harness.search.reasons import not_picked, picked

UserFilter = Callable[[Sequence[Candidate], int], Sequence[Any]]
"""Gets the candidates that may be picked, in order of trial, and K; returns candidates or trial numbers, best first."""
FILTERS = ("pareto", "balanced", "score")


@dataclass(frozen=True)
class Pick:
    trial: int
    reason: str


@dataclass(frozen=True)
class Selection:
    """For one board."""

    picks: tuple[Pick, ...]
    """Best first, at most K."""
    others: Mapping[int, str]
    """Trial -> why it was not picked."""
    feasible: int
    """Candidates that could have been picked."""

    @property
    def trials(self) -> tuple[int, ...]:
        return tuple(pick.trial for pick in self.picks)

    @property
    def reasons(self) -> dict[int, str]:
        """Of every candidate, by trial."""
        return {**self.others, **{pick.trial: pick.reason for pick in self.picks}}


def select_top_k(
    candidates: Sequence[Candidate],
    board: str,
    k: int,
    *,
    objective: Objective = "pareto",
    metric: str | None = None,
    filter_by: str | UserFilter = "pareto",
) -> Selection:
    """Picks up to ``k``; ``metric`` is the one accuracy is ranked by (``None``: latency alone).

    The result does not depend on the order of ``candidates``. Raises ``ValueError`` on k < 1 or a trial given twice,
    :class:`~harness.errors.ConfigError` on an unknown filter or one that returns what it was not given.
    """
    if k < 1:
        raise ValueError(f"k is {k}: at least 1")
    ordered = sorted(candidates, key=lambda c: c.trial)
    twice = next((a.trial for a, b in pairwise(ordered) if a.trial == b.trial), None)
    if twice is not None:
        raise ValueError(f"trial {twice} is among the candidates twice")
    ranked: list[Ranked] = []
    others: dict[int, str] = {}
    for candidate in ordered:
        found = rank_on_board(candidate, board, metric)
        if isinstance(found, Ranked):
            ranked.append(found)
        else:
            others[candidate.trial] = found
    ranked, copies = without_copies(ranked)
    ranked = with_float_in_place(ranked)
    others |= copies
    name = filter_by if isinstance(filter_by, str) else _name(filter_by)
    chosen = (
        _by_user(filter_by, ranked, k)
        if not isinstance(filter_by, str)
        else _by_tiers(_filter(filter_by, objective), ranked, k)
    )
    trials = {item.trial for item in chosen}
    others |= {r.trial: not_picked(r, chosen, metric) for r in ranked if r.trial not in trials}
    picks = tuple(Pick(item.trial, picked(item, chosen, ranked, metric, objective, name)) for item in chosen)
    return Selection(picks, dict(sorted(others.items())), len(ranked))


def _filter(name: str, objective: Objective) -> Filter:
    made = {"pareto": pareto_filter(objective), "balanced": balanced_filter, "score": score_filter()}
    if name not in made:
        raise ConfigError(f"unknown filter {name!r}", hint=f"use one of {', '.join(FILTERS)}, or module:function")
    return made[name]


def _by_tiers(choose: Filter, ranked: Sequence[Ranked], k: int) -> list[Ranked]:
    chosen: list[Ranked] = []
    for tier in sorted({r.tier for r in ranked}):
        if len(chosen) >= k:
            break
        chosen += choose([r for r in ranked if r.tier == tier], k - len(chosen))
    return chosen


def _by_user(function: UserFilter, ranked: Sequence[Ranked], k: int) -> list[Ranked]:
    by_trial = {r.trial: r for r in ranked}
    returned = list(function([r.candidate for r in ranked], k))
    trials = [item.trial if isinstance(item, Candidate) else item for item in returned]
    unknown = [t for t in trials if isinstance(t, bool) or not isinstance(t, int) or t not in by_trial]
    if unknown:
        raise ConfigError(
            f"the filter {_name(function)} returned {unknown[0]!r}, which is no candidate it was given",
            hint="return candidates or their trial numbers",
        )
    if len(set(trials)) != len(trials) or len(trials) > k:
        raise ConfigError(f"the filter {_name(function)} returned {trials}: at most {k} different candidates")
    return [by_trial[t] for t in trials]


def _name(function: UserFilter) -> str:
    return f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', repr(function))}"
