"""What comes next depends on the seed and the outcomes in their order, never on timing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from harness.controller.learning import Assignment, Learning, worth_another_try
from harness.controller.request import Scoring
from harness.errors import BoardtuneError
from harness.ledger import events
from harness.ledger.state import LedgerState, TrialState
from harness.measure.settings import settings_for
from harness.plan import Plan, make_plan
from harness.recipes.recipe import FLOAT32, Recipe
from harness.recipes.space import listed_space
from harness.results import ArtifactInfo, BoardResult, LatencyResult, MetricResult
from harness.search.allowance import TrialCosts
from harness.search.budget import Budget, Limits
from harness.search.constraints import Constraints
from harness.search.make import make_proposer
from harness.search.ordering import OrderedProposer
from harness.search.proposer import Outcome, Proposal

RECIPES = [
    FLOAT32,
    *(Recipe(activation=a, granularity=g) for a in ("int8", "uint8", "uint16") for g in ("per_tensor", "per_channel")),
]  # type: ignore[arg-type]


class Named:
    name = "top1"


def result(latency_ns: float = 1e6, seconds: float = 1.0, *, identity: str = "x", **changes: Any) -> BoardResult:
    made = BoardResult(
        emulated=False,
        verdict="valid",
        reasons=(),
        artifact=ArtifactInfo("a" * 64, identity, 100),
        compiled_sha256=None,
        latency_ns=LatencyResult(latency_ns, (latency_ns * 0.99, latency_ns * 1.01), 100, 3),
        load_ns=1,
        first_ns=1,
        peak_memory_bytes=1,
        metrics={"top1": MetricResult(0.9, 0.0, (0.0, 0.0), "met", 100)},
        placement={},
        device_seconds=seconds,
    )
    return replace(made, **changes)


class Ledger:
    """The recorder's part, in memory."""

    def __init__(self) -> None:
        self.now = LedgerState()
        self.now.apply(events.run({}))

    def state(self, trial: int) -> TrialState:
        return self.now.trials[trial]

    def propose(self, trial: int, recipe: Recipe, params: Mapping[str, Any]) -> None:
        self.record(events.proposed(trial, recipe.to_dict(), recipe.label, params, recipe.digest))

    def died(self, trial: int, detail: str) -> None:
        self.record(events.failed(trial, "internal", detail))

    def record(self, *new: events.Event) -> None:
        for event in new:
            self.now.apply(event)

    def finish(self, trial: int, **boards: BoardResult) -> None:
        self.record(events.quantized(trial, ArtifactInfo("a" * 64, f"i{trial}", 100)), events.gated(trial))
        for name, value in boards.items():
            self.record(
                events.deployed(trial, name),
                events.measured(trial, name, value, device_seconds=value.device_seconds),
            )
        self.record(events.done(trial))


class Recorded(OrderedProposer):
    """Remembers what it was told."""

    def __init__(self, inner: OrderedProposer) -> None:
        self._made = inner
        self.told: list[tuple[int, Outcome]] = []

    @property
    def window(self) -> int:
        return self._made.window

    def ready(self, number: int) -> bool:
        return self._made.ready(number)

    def ask(self, number: int) -> Proposal | None:
        return self._made.ask(number)

    def tell(self, number: int, outcome: Outcome) -> None:
        self.told.append((number, outcome))
        self._made.tell(number, outcome)


def plan(**changes: Any) -> Plan:
    return make_plan({"model": "m.onnx", "calib": "c.npz", "boards": "alpha", **changes})


def learning(
    ledger: Ledger,
    *,
    window: int = 2,
    trials: int | None = None,
    device_s: float | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    max_time_s: float | None = None,
    constraints: Constraints = Constraints(),  # noqa: B008 -- frozen
    recipes: list[Recipe] = RECIPES,
    **changes: Any,
) -> tuple[Learning, Recorded]:
    proposer = Recorded(make_proposer(listed_space("list", recipes), window=window))
    asked = plan(**changes)
    made = Learning(
        asked,
        asked.boards,
        proposer,
        ledger,
        ledger.now,
        scoring=Scoring((Named(),), {}, {}, constraints),  # type: ignore[arg-type]
        budget=Budget(Limits(trials, max_time_s, device_s), clock),
        costs=TrialCosts({name: settings_for("quick") for name in asked.boards}, inferences=0),
    )
    return made, proposer


def numbers(made: Learning, count: int) -> list[Any]:
    found = []
    for _ in range(count):
        answer = made.next()
        found.append(answer.number if isinstance(answer, Assignment) else answer)
    return found


def test_as_many_as_the_window_then_wait() -> None:
    ledger = Ledger()
    made, proposer = learning(ledger)
    assert numbers(made, 3) == [0, 1, "wait"]
    ledger.finish(1, alpha=result())
    made.ended(1)
    assert numbers(made, 1) == ["wait"]
    ledger.finish(0, alpha=result())
    made.ended(0)
    assert numbers(made, 3) == [2, 3, "wait"]
    assert [number for number, _ in proposer.told] == [1, 0]
    assert [candidate.trial for candidate in made.candidates()] == [0, 1]


def test_the_space_runs_out() -> None:
    ledger = Ledger()
    made, _ = learning(ledger, recipes=RECIPES[:2], window=4)
    assert numbers(made, 3) == [0, 1, None]
    assert made.stop_reason == "every recipe of the space has been tried"


def test_trials_run_out() -> None:
    made, _ = learning(Ledger(), trials=1, window=4)
    assert numbers(made, 2) == [0, None]
    assert made.stop_reason == "as many trials as were asked for"


def test_wall_time_runs_out() -> None:
    now = [0.0]
    made, _ = learning(Ledger(), clock=lambda: now[0], max_time_s=10, window=4)
    assert numbers(made, 1) == [0]
    now[0] = 11.0
    assert numbers(made, 1) == [None]
    assert made.stop_reason is not None
    assert "--max-time" in made.stop_reason


@pytest.mark.parametrize("late", [False, True])
def test_device_time_is_that_of_the_trials_a_proposal_sees(late: bool) -> None:
    """Trial 1 used the budget up, but proposal 2 does not see it, whether it has ended or not."""
    ledger = Ledger()
    made, _ = learning(ledger, device_s=5.0)
    assert numbers(made, 2) == [0, 1]
    ledger.finish(0, alpha=result(seconds=1.0))
    ledger.finish(1, alpha=result(seconds=100.0))
    made.ended(0)
    if not late:
        made.ended(1)
    assert numbers(made, 1) == [2]
    if late:
        made.ended(1)
    assert numbers(made, 1) == [None]
    assert made.stop_reason is not None
    assert "--budget" in made.stop_reason


@pytest.mark.parametrize(("seconds", "then"), [(0.2, 2), (3.0, None)])
def test_near_the_end_it_is_waited_until_it_is_known_what_is_left(seconds: float, then: int | None) -> None:
    """Were trial 1 as dear as trial 0, nothing would be left for trial 2."""
    ledger = Ledger()
    made, _ = learning(ledger, device_s=5.0)
    assert numbers(made, 2) == [0, 1]
    ledger.finish(0, alpha=result(seconds=2.2))
    made.ended(0)
    assert numbers(made, 2) == ["wait", "wait"]
    ledger.finish(1, alpha=result(seconds=seconds))
    made.ended(1)
    answer = made.next()
    assert (answer.number if isinstance(answer, Assignment) else answer) == then
    if isinstance(answer, Assignment):
        assert answer.device_budget_ns == 2_600_000_000


def test_failed_trials_used_the_board_too() -> None:
    ledger = Ledger()
    made, _ = learning(ledger, device_s=5.0, window=1)
    assert numbers(made, 1) == [0]
    ledger.record(
        events.quantized(0, ArtifactInfo("a" * 64, "i0", 100)),
        events.gated(0),
        events.deployed(0, "alpha"),
        events.failed(0, "DeviceTimeout", "silent", board="alpha", device_seconds=4.9),
        events.failed(0, "DeviceTimeout", "silent"),
    )
    made.ended(0)
    assert numbers(made, 1) == [None]
    assert made.stop_reason is not None
    assert "--budget" in made.stop_reason


@pytest.mark.parametrize("late", [False, True])
def test_what_a_trial_may_use_follows_from_what_its_proposal_sees(late: bool) -> None:
    ledger = Ledger()
    made, _ = learning(ledger, device_s=20.0, boards="alpha,beta")
    asked = [made.next(), made.next()]
    ledger.finish(0, alpha=result(seconds=1.0), beta=result(seconds=2.0))
    ledger.finish(1, alpha=result(seconds=5.0), beta=result(seconds=5.0))
    made.ended(0)
    if not late:
        made.ended(1)
    asked.append(made.next())
    first, second, third = (a.device_budget_ns for a in asked if isinstance(a, Assignment))
    assert first == 10_000_000_000
    assert second is not None
    assert second < first
    # 3 s used, as much expected of the trial under way: 14 s for two boards.
    assert third == 7_000_000_000


def test_without_a_budget_a_trial_may_use_what_it_needs() -> None:
    made, _ = learning(Ledger())
    first = made.next()
    assert isinstance(first, Assignment)
    assert first.device_budget_ns is None


def test_a_resumed_search_asks_again_and_takes_up_what_is_unfinished() -> None:
    ledger = Ledger()
    first, told = learning(ledger)
    numbers(first, 2)
    ledger.finish(0, alpha=result())
    first.ended(0)
    numbers(first, 1)
    ledger.record(events.failed(1, "low_snr", "3 dB"))
    before = dict(ledger.now.trials)

    again, retold = learning(ledger)
    assert numbers(again, 3) == [2, 3, "wait"]
    assert {n: ledger.now.trials[n] for n in before} == before
    assert retold.told[0] == told.told[0]
    assert retold.told[1] == (1, Outcome("failed"))


def test_a_resume_under_other_rules_is_refused() -> None:
    ledger = Ledger()
    first, _ = learning(ledger)
    numbers(first, 2)
    again, _ = learning(ledger, recipes=[FLOAT32, RECIPES[3]])
    with pytest.raises(BoardtuneError, match=r"trial 1 was .* now the sampler proposes") as raised:
        numbers(again, 2)
    assert "new run directory" in raised.value.hint


def test_the_same_devicetime_ends_a_resumed_search() -> None:
    ledger = Ledger()
    first, _ = learning(ledger, device_s=5.0)
    numbers(first, 2)
    for trial in (0, 1):
        ledger.finish(trial, alpha=result(seconds=1.5))
        first.ended(trial)
    assert numbers(first, 2) == [2, "wait"]
    ledger.finish(2, alpha=result(seconds=1.5))
    first.ended(2)
    assert numbers(first, 2) == [None, None]
    again, _ = learning(ledger, device_s=5.0)
    assert numbers(again, 1) == [None]
    assert again.stop_reason == first.stop_reason


def test_a_duplicate_has_the_outcome_of_its_original_even_if_that_ends_later() -> None:
    ledger = Ledger()
    made, proposer = learning(ledger, window=3)
    assert numbers(made, 3) == [0, 1, 2]
    ledger.record(events.duplicate(2, 1))
    made.ended(2)
    assert proposer.told == []
    ledger.finish(1, alpha=result(2e6))
    made.ended(1)
    outcomes = dict(proposer.told)
    assert outcomes[1].status == "done"
    assert outcomes[2].status == "duplicate"
    assert outcomes[2].values == outcomes[1].values
    assert outcomes[1].values is not None


def test_a_trial_that_dies_is_told_as_failed() -> None:
    ledger = Ledger()
    made, proposer = learning(ledger)
    numbers(made, 1)
    made.died(0, "killed")
    assert proposer.told == [(0, Outcome("failed"))]


def test_constraints_by_how_much_they_are_broken() -> None:
    ledger = Ledger()
    made, proposer = learning(ledger, constraints=Constraints(max_latency_ns=1e6), boards="alpha,beta")
    numbers(made, 2)
    ledger.finish(0, alpha=result(0.5e6), beta=result(3e6))
    ledger.finish(1, alpha=result(0.5e6), beta=result(0.5e6, constraints={"memory": "broken"}))
    made.ended(0)
    made.ended(1)
    # The worst board counts; the last one is for limits of the boards themselves.
    assert [outcome.violations for _, outcome in proposer.told] == [(2.0, 0.0), (-0.5, 1.0)]


def test_futility_by_the_latency_limit_and_by_what_is_known() -> None:
    ledger = Ledger()
    made, _ = learning(ledger, objective="latency", top_k=1, window=1, max_latency="8ms")
    first = made.next()
    assert isinstance(first, Assignment)
    assert first.futility_ns == {"alpha": 8e6}
    ledger.finish(0, alpha=result(2e6))
    made.ended(0)
    second = made.next()
    assert isinstance(second, Assignment)
    assert second.futility_ns == {"alpha": pytest.approx(2.02e6)}


def test_futility_knows_only_what_the_proposal_may_see() -> None:
    ledger = Ledger()
    made, _ = learning(ledger, objective="latency", top_k=1, window=2)
    numbers(made, 2)
    ledger.finish(0, alpha=result(2e6))
    ledger.finish(1, alpha=result(1e6, identity="y"))
    made.ended(0)
    made.ended(1)
    third = made.next()
    assert isinstance(third, Assignment)
    assert third.futility_ns == {"alpha": pytest.approx(2.02e6)}


class TestWorthAnotherTry:
    def ledger(self, *causes: str | None) -> LedgerState:
        """A trial for each; ``None``: unfinished."""
        ledger = Ledger()
        for trial, cause in enumerate(causes):
            ledger.propose(trial, RECIPES[trial], {})
            if cause is not None:
                ledger.record(events.failed(trial, cause, "why"))
        return ledger.now

    def test_the_boards_failures_at_the_end(self) -> None:
        state = self.ledger("LinkError", "LinkError", "low_snr", "quarantined", "internal")
        assert worth_another_try(state, window=3) == [3, 4]
        assert worth_another_try(state, window=5) == [0, 1, 3, 4]

    def test_nothing_that_a_proposal_has_learnt_from(self) -> None:
        assert worth_another_try(self.ledger("LinkError", None, None), window=2) == []
        assert worth_another_try(self.ledger("LinkError", None), window=2) == [0]

    def test_an_empty_ledger(self) -> None:
        assert worth_another_try(LedgerState(), window=2) == []
