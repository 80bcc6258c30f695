"""Whole searches with little device time: within the bound that docs/search.md states, and the same every time."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from test_search_on_threads import INTERRUPTIONS, Interrupting, _world, candidates, interruptions, plan, run  # noqa: F401

from harness.errors import ExitCode
from harness.ledger.run_directory import RunDirectory
from harness.ledger.state import LedgerState
from harness.plan import Plan

BOARDS = 2


def limited(plan: Plan, seconds: float, **changes: object) -> Plan:  # noqa: F811
    return plan.model_copy(
        update={"preset": "standard", "trials": 40, "budget": round(seconds * 1e9), "window": 3, **changes}
    )


def used_s(folder: str = "run") -> float:
    return sum(json.loads(candidates(folder))["device_seconds"].values())


def recorded(folder: str = "run") -> LedgerState:
    with RunDirectory.open(Path(folder)) as run_directory:
        return run_directory.state


def trials_s(folder: str = "run") -> list[float]:
    return [sum(trial.device_seconds.values()) for trial in recorded(folder).trials.values()]


@pytest.mark.parametrize("seconds", [0.1, 3.0, 5.0, 8.0, 12.0])
def test_the_device_time_keeps_to_the_budget(plan: Plan, seconds: float) -> None:  # noqa: F811
    result = run(limited(plan, seconds))
    assert result.exit_code == ExitCode.OK
    # Over it by no more than a trial, which may be the baseline.
    assert used_s() <= seconds + max(trials_s())
    if seconds > 1:
        assert used_s() <= seconds
    assert "--budget" in result.stop_reason


def test_finals_are_left_out_and_that_is_told(plan: Plan) -> None:  # noqa: F811
    run(limited(plan, 2.0))
    state = recorded()
    assert any("budget ended before every finalist" in notice for notice in state.notices)
    assert any(state.candidates())


def test_the_same_again(plan: Plan) -> None:  # noqa: F811
    for seconds in (4.0, 25.0):
        run(limited(plan, seconds), f"one{seconds}")
        run(limited(plan, seconds), f"two{seconds}")
        assert candidates(f"one{seconds}") == candidates(f"two{seconds}")


@pytest.mark.usefixtures("interruptions")
@pytest.mark.parametrize(("operation", "at"), [("measure", 12), ("infer", 5), ("measure", 60)])
def test_interrupted_and_resumed_is_the_uninterrupted_run(plan: Plan, operation: str, at: int) -> None:  # noqa: F811
    asked = limited(plan, 25.0)
    run(asked, "whole")
    devices = Interrupting(operation, at)
    assert run(asked, devices=devices).exit_code == ExitCode.INTERRUPTED
    assert devices.pressed.is_set()
    assert run(asked, resume=True).exit_code == ExitCode.OK
    assert candidates() == candidates("whole")


@pytest.mark.usefixtures("interruptions")
def test_wall_time_before_an_interruption_counts(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """By the ledger's times the first session took hours; 30 minutes were asked for."""
    asked = plan.model_copy(update={"preset": "standard", "trials": 12, "max_time": 1800 * 10**9})
    now = [datetime(2026, 1, 1, tzinfo=UTC)]

    def slow() -> datetime:
        now[0] += timedelta(minutes=5)
        return now[0]

    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "create", partial(RunDirectory.create, clock=slow))
        assert run(asked, devices=Interrupting("infer", 3)).exit_code == ExitCode.INTERRUPTED
    before = len(recorded().trials)
    result = run(asked, resume=True)
    assert "--max-time" in result.stop_reason
    state = recorded()
    assert len(state.trials) == before
    assert not any(board.final_tried for trial in state.trials.values() for board in trial.boards.values())
