"""What a search has learnt and which trial comes next. Talks to the ledger through a small port; knows no Ray."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from device_agents.contract import BoardUnfit, DeviceReboot, DeviceTimeout, LeaseLost, LinkError, Untrusted
from harness.controller.request import Scoring
from harness.errors import BoardtuneError
from harness.ledger.state import BoardProgress, LedgerState, TrialState
from harness.plan import Plan
from harness.recipes.recipe import Recipe
from harness.results import BoardResult, Candidate
from harness.search.allowance import Spent, TrialCosts, allowance_s
from harness.search.budget import Budget, StopReason
from harness.search.constraints import worst_violations
from harness.search.futility import futility_threshold_ns
from harness.search.objectives import objective_values
from harness.search.ordering import OrderedProposer
from harness.search.proposer import Outcome, Proposal

STOP_REASONS: Mapping[StopReason, str] = {
    "trials": "as many trials as were asked for",
    "time": "the wall time is used up (--max-time)",
    "device_time": "the device time is used up (--budget)",
}


BOARD_FAILED = frozenset(
    cls.__name__ for cls in (LinkError, DeviceTimeout, DeviceReboot, LeaseLost, Untrusted, BoardUnfit)
) | {"quarantined", "internal"}
"""Causes of failure that say nothing about the recipe."""


def worth_another_try(state: LedgerState, window: int) -> list[int]:
    """Trials that failed through no fault of their recipe, and that no recorded proposal has learnt from: proposal n
    saw trials up to n - window, and must come out the same again."""
    seen_up_to = state.next_trial - 1 - window
    failed = (t for n, t in sorted(state.trials.items()) if t.status == "failed" and n > seen_up_to)
    return [t.number for t in failed if t.cause in BOARD_FAILED]


class Record(Protocol):
    """The recorder, as far as learning needs it."""

    def state(self, trial: int) -> TrialState: ...

    def propose(self, trial: int, recipe: Recipe, params: Mapping[str, Any]) -> None: ...

    def died(self, trial: int, detail: str) -> None:
        """Ends a trial whose process died."""


@dataclass(frozen=True)
class Assignment:
    """A trial to run now."""

    number: int
    futility_ns: Mapping[str, float | None]
    """By board: latency beyond which the candidate cannot be picked; ``None`` where that cannot be said."""
    device_budget_ns: int | None = None
    """Device time for it on each board; ``None``: no limit."""


class Learning:
    """Asks the proposer in order, tells it of ended trials, and keeps the candidates known so far.

    On resume it asks again for every recorded number, so that the sampler stands where it stood; a proposal that
    comes out different from the recorded one (another version of the sampler) is an error that names both.
    """

    def __init__(
        self,
        plan: Plan,
        boards: Sequence[str],
        proposer: OrderedProposer,
        record: Record,
        past: LedgerState,
        *,
        scoring: Scoring,
        budget: Budget,
        costs: TrialCosts,
    ) -> None:
        self._plan = plan
        self._boards = boards
        self._proposer = proposer
        self._record = record
        self._metric = scoring.metrics[0].name
        self._scoring = scoring
        self._charged: set[int] = set()
        self._budget = budget
        self._costs = costs
        self._past = dict(past.trials)
        self._next = 0
        self._seen: dict[int, TrialState] = {}
        """Ended trials by number."""
        self._untold: set[int] = set()
        self.stop_reason: str | None = None

    def next(self) -> Assignment | Literal["wait"] | None:
        """The next trial to run, proposed and recorded; ``wait`` until a running one has ended; ``None`` when the
        search is over (see ``stop_reason``)."""
        while self._proposer.ready(self._next):
            number = self._next
            if self.stop_reason is None:
                self.stop_reason = self._reason_to_stop(number)
            if self.stop_reason is not None:
                return None
            allowed_s = self._allowance_s(number)
            if allowed_s is None:
                self.stop_reason = STOP_REASONS["device_time"]
                return None
            if allowed_s == "wait":
                return "wait"
            proposal = self._proposer.ask(number)
            if proposal is None:
                self.stop_reason = "every recipe of the space has been tried"
                return None
            self._next += 1
            self._budget.start_trial()
            recorded = self._past.pop(number, None)
            if recorded is None:
                self._record.propose(number, proposal.recipe, proposal.params)
            else:
                _same(proposal, recorded)
                if recorded.terminal:
                    self._take(recorded)
                    continue
            each_ns = None if allowed_s == math.inf else round(allowed_s / len(self._boards) * 1e9)
            return Assignment(number, self._futility(number), each_ns)
        return "wait"

    def ended(self, number: int) -> None:
        self._take(self._record.state(number))

    def died(self, number: int, detail: str) -> None:
        """The trial was cut short by a defect or the death of its process."""
        self._record.died(number, detail)
        self.ended(number)

    def candidates(self) -> tuple[Candidate, ...]:
        """Of all trials known to have ended, by number."""
        return tuple(_candidate(self._seen[n]) for n in sorted(self._seen) if self._seen[n].status == "done")

    def _take(self, trial: TrialState) -> None:
        self._seen[trial.number] = trial
        self._untold.add(trial.number)
        # A duplicate has the outcome of its original, which may still be under way.
        for number in sorted(self._untold):
            source = self._seen[number].duplicate_of
            if source is None or source in self._seen:
                self._untold.discard(number)
                self._proposer.tell(number, self._outcome(self._seen[number]))

    def _visible(self, number: int) -> list[TrialState]:
        """The ended trials that proposal ``number`` may depend on."""
        return [self._seen[n] for n in sorted(self._seen) if n <= number - self._proposer.window]

    def _reason_to_stop(self, number: int) -> str | None:
        """Device time is counted over the trials this proposal may see, so that the end does not depend on timing."""
        for trial in self._visible(number):
            if trial.number not in self._charged:
                self._charged.add(trial.number)
                for name, seconds in trial.device_seconds.items():
                    self._budget.spend(name, seconds)
        reason = self._budget.stop_reason()
        return None if reason is None else STOP_REASONS[reason]

    def _allowance_s(self, number: int) -> float | Literal["wait"] | None:
        """Device time for the trial, all boards together; infinite without a budget. ``None``: too little is left.

        It is decided from the trials that the proposal sees. Where those leave too little, it is decided once more when
        all earlier ones have ended: so neither depends on timing.
        """
        available_s = self._budget.search_device_s
        if available_s is None:
            return math.inf
        for ended in (max(0, number - self._proposer.window + 1), number):
            known = [self._seen[n] for n in range(ended) if n in self._seen]
            if len(known) < ended:
                return "wait"
            spent = Spent(
                trials=ended,
                device_s=sum(sum(trial.device_seconds.values()) for trial in known),
                under_way=number - ended,
                latencies_ns=_longest([board for trial in known for board in trial.boards.items()]),
            )
            allowed_s = allowance_s(available_s, spent, self._costs, first=number == 0)
            if allowed_s is not None:
                return allowed_s
        return None

    def _outcome(self, trial: TrialState) -> Outcome:
        source = self._seen[trial.duplicate_of] if trial.duplicate_of is not None else trial
        status = trial.status
        if status not in ("done", "failed", "pruned", "duplicate"):
            raise BoardtuneError(f"trial {trial.number} is {status}: it has not ended")
        found = {name: source.boards[name].result for name in self._boards if name in source.boards}
        results = {name: result for name, result in found.items() if result is not None}
        values = objective_values(results, self._boards, self._plan.objective, self._metric)
        return Outcome(status, values, () if values is None else self._violations(list(results.values())))

    def _violations(self, results: list[BoardResult]) -> tuple[float, ...]:
        """The plan's constraints by how much the worst board breaks them, then 1 for any other limit of a board."""
        asked = worst_violations([self._scoring.constraints.violations(r, self._scoring.bounds) for r in results])
        limits = any("broken" in r.constraints.values() for r in results)
        return (*asked, 1.0 if limits else 0.0)

    def _futility(self, number: int) -> dict[str, float | None]:
        known = [_candidate(t) for t in self._visible(number) if t.status == "done"]
        return {
            name: futility_threshold_ns(
                known,
                name,
                self._plan.top_k,
                objective=self._plan.objective,
                metric=self._metric,
                max_latency_ns=self._plan.max_latency,
            )
            for name in self._boards
        }


def _longest(results: Iterable[tuple[str, BoardProgress]]) -> dict[str, float]:
    """By board: the longest latency, in nanoseconds."""
    longest: dict[str, float] = {}
    for name, board in results:
        if board.result is not None and board.result.latency_ns is not None:
            longest[name] = max(longest.get(name, 0.0), board.result.latency_ns.p50)
    return longest


def _candidate(trial: TrialState) -> Candidate:
    return Candidate(
        trial.number,
        trial.recipe,
        trial.label,
        {name: board.result for name, board in trial.boards.items() if board.result is not None},
    )


def _same(proposal: Proposal, recorded: TrialState) -> None:
    if proposal.recipe.digest != recorded.recipe_digest:
        raise BoardtuneError(
            f"trial {recorded.number} was {recorded.label!r} when it was recorded, now the sampler proposes "
            f"{proposal.recipe.label!r}",
            hint="the sampler or the preset has changed since; start a new run directory",
        )
