"""Device time for each trial: the whole keeps to its budget, whatever a trial turns out to cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.measure.settings import settings_for
from harness.search.allowance import Spent, TrialCosts, allowance_s
from harness.search.estimate import estimate_measurement

COSTS = TrialCosts({"a": settings_for("quick"), "b": settings_for("screening")}, inferences=100)


def test_costs_are_of_all_boards_and_the_evaluation() -> None:
    quick, screening = estimate_measurement(settings_for("quick")), estimate_measurement(settings_for("screening"))
    assert COSTS.most_s() == pytest.approx(quick.high_s + screening.high_s + 2 * 100 * 5e-3)
    assert COSTS.least_s({"a": 5e6}) == pytest.approx(quick.low_s + screening.low_s + 2 * 100 * 5e-3)
    assert COSTS.least_s({"a": 1e9}) > quick.low_s + 100


def test_trials_under_way_cost_what_the_known_ones_did() -> None:
    spent = Spent(trials=4, device_s=20.0, under_way=2, latencies_ns={})
    assert allowance_s(100.0, spent, COSTS, first=False) == pytest.approx(70.0)


def test_nothing_is_begun_that_cannot_be_finished_but_the_baseline() -> None:
    nothing = Spent(trials=0, device_s=0.0, under_way=0, latencies_ns={})
    assert allowance_s(0.1, nothing, COSTS, first=False) is None
    assert allowance_s(0.1, nothing, COSTS, first=True) == pytest.approx(0.1)


@given(
    st.lists(st.floats(0.0, 30.0), min_size=1, max_size=60),
    st.integers(1, 6),
    st.floats(1.0, 300.0),
)
def test_the_overshoot_is_what_was_under_way(costs: list[float], window: int, budget: float) -> None:
    """Trials of any cost, W under way at once: nobody begins with the budget used up, as far as a proposal can know."""
    used: list[float] = []
    for number, cost in enumerate(costs):
        seen = used[: max(0, number - window + 1)]
        spent = Spent(len(seen), sum(seen), min(number, window - 1), {})
        allowed = allowance_s(budget, spent, COSTS, first=number == 0)
        if allowed is None:
            break
        # The protocol ends within the least that a trial takes.
        used.append(min(cost, max(allowed, COSTS.least_s({}))))
    last_seen = used[: max(0, len(used) - window)]
    assert sum(last_seen) <= budget + COSTS.least_s({})
    assert sum(used) <= budget + window * max([*used, COSTS.least_s({})])
