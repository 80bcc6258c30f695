"""Finalists are measured shorter when little is left, then not at all; which, follows from the ledger."""

from __future__ import annotations

from typing import Any

import pytest
from test_learning import RECIPES, Ledger, result

from harness.controller.finals_budget import FinalsBudget
from harness.controller.policy import MeasurementPolicy
from harness.ledger import events
from harness.search.estimate import estimate_measurement

POLICY = MeasurementPolicy(0, "standard", {"alpha": "dedicated", "beta": "dedicated"})
WHOLE = POLICY.final(0, "alpha")


def budget(device_s: float | None, **changes: Any) -> FinalsBudget:
    values: dict[str, Any] = {
        "policy": POLICY,
        "boards": 1,
        "finalists": 3,
        "inferences": 0,
        "device_s": device_s,
        "time_left_s": lambda: None,
    }
    return FinalsBudget(**{**values, **changes})


def ledger(searched_s: float = 1.0, finals_s: tuple[float, ...] = ()) -> Ledger:
    made = Ledger()
    for trial in range(3):
        made.propose(trial, RECIPES[trial], {})
        made.finish(trial, alpha=result(5e6, searched_s))
    for trial, seconds in enumerate(finals_s):
        made.record(events.final(trial, "alpha", result(5e6, seconds), device_seconds=seconds))
    return made


def test_whole_without_a_budget_and_with_enough_of_it() -> None:
    assert budget(None).settings(ledger().now, "alpha", 0) == WHOLE
    made = budget(600.0).settings(ledger().now, "alpha", 0)
    assert made is not None
    assert (made.block, made.min_blocks, made.max_blocks) == (WHOLE.block, WHOLE.min_blocks, WHOLE.max_blocks)
    # A third of what the search left.
    assert made.device_budget_ns == 199_000_000_000


def test_shorter_then_fewer_then_none() -> None:
    least = []
    for device_s in (80.0, 40.0, 20.0, 10.0, 6.0, 3.5):
        made = budget(device_s).settings(ledger().now, "alpha", 0)
        least.append(estimate_measurement(made).low_s if made else 0.0)
        if made:
            assert 3 <= made.min_blocks <= made.max_blocks
            assert made.device_budget_ns is not None
            assert made.device_budget_ns <= (device_s - 3.0) * 1e9
    assert least == sorted(least, reverse=True)
    assert least[0] == pytest.approx(estimate_measurement(WHOLE).low_s)
    assert least[-1] == 0.0
    assert len(set(least)) >= 4


def test_what_the_first_finalists_used_is_not_there_for_the_others() -> None:
    asked = budget(30.0)
    assert asked.settings(ledger(finals_s=(20.0,)).now, "alpha", 1) is not None
    assert asked.settings(ledger(finals_s=(26.9,)).now, "alpha", 1) is None


def test_a_failed_final_counts() -> None:
    made = ledger()
    made.record(events.final(0, "alpha", None, cause="DeviceTimeout", message="silent", device_seconds=26.9))
    assert budget(30.0).settings(made.now, "alpha", 1) is None


def test_boards_have_equal_shares_however_far_the_others_are() -> None:
    alone = budget(600.0).settings(ledger().now, "alpha", 0)
    shared = budget(600.0, boards=2)
    state = ledger().now
    made = shared.settings(state, "alpha", 0)
    assert alone is not None
    assert made is not None
    assert made.device_budget_ns == pytest.approx(alone.device_budget_ns / 2, rel=0.01)
    state.finals_seconds["beta"] = 250.0
    assert shared.settings(state, "alpha", 0) == made


def test_a_slow_model_and_many_inferences_need_more() -> None:
    assert budget(40.0).settings(ledger().now, "alpha", 0) is not None
    assert budget(40.0, inferences=100_000).settings(ledger().now, "alpha", 0) is None


def test_wall_time_ends_finals_too() -> None:
    assert budget(None, time_left_s=lambda: 0.0).settings(ledger().now, "alpha", 0) is None
    assert budget(None, time_left_s=lambda: 5.0).settings(ledger().now, "alpha", 0) == WHOLE
