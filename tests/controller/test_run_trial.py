"""One trial through its steps: every ending, and taken up again wherever it stood."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pytest

from harness.controller.trial import Quantized, run_trial
from harness.ledger import events
from harness.ledger.events import Event
from harness.ledger.state import LedgerState, TrialState
from harness.quantize.contract import Cause, Refusal
from harness.recipes.recipe import Recipe
from harness.results import ArtifactInfo, BoardResult

INFO = ArtifactInfo("a" * 64, "identity", 100)
BOARDS = ("alpha", "beta")


def result() -> BoardResult:
    return BoardResult(
        emulated=False, verdict="valid", reasons=(), artifact=INFO, compiled_sha256=None, latency_ns=None, load_ns=1,
        first_ns=1, peak_memory_bytes=1, metrics={}, placement={},
    )  # fmt: skip


class FakeSteps:
    """Records in a real ledger state; what each step does is said by the test."""

    def __init__(self, *, before: Sequence[Event] = (), originals: Mapping[str, int] | None = None) -> None:
        self.ledger = LedgerState()
        self.ledger.apply(events.run({}))
        recipe = Recipe()
        self.record(events.proposed(0, recipe.to_dict(), "float", {}, recipe.digest))
        self.record(events.proposed(1, recipe.to_dict(), "int8", {}, recipe.digest))
        self.record(*before)
        self.done: list[str] = []
        self.skipped: list[str] = []
        self.stop_before = ""
        self.made: Quantized | Refusal = Quantized(INFO, 40.0, 3)
        self.original: int | Literal["interrupted"] | None = None
        self.excluded: dict[str, list[str]] = {}
        self.on_board: dict[str, Callable[[str], str | None]] = {}

    def state(self, trial: int) -> TrialState:
        return self.ledger.trials[trial]

    def stopping(self) -> bool:
        return bool(self.stop_before) and self.stop_before == self._next()

    def _next(self) -> str:
        return "quantize" if self.state(1).artifact is None else "measure"

    def record(self, *new: Event) -> None:
        for event in new:
            self.ledger.apply(event)

    def quantize(self, trial: int, recipe: Recipe) -> Quantized | Refusal:
        self.done.append("quantize")
        if isinstance(self.made, Quantized):
            self.record(events.quantized(trial, self.made.artifact, snr_db=self.made.snr_db))
        return self.made

    def claim(self, trial: int, identity: str | None) -> int | Literal["interrupted"] | None:
        self.done.append(f"claim {identity}")
        return self.original

    def gate(self, trial: int, recipe: Recipe, made: Quantized) -> Mapping[str, Sequence[str]]:
        self.done.append("gate")
        return {name: self.excluded.get(name, []) for name in BOARDS}

    def measure(self, trial: int, boards: Sequence[str]) -> Mapping[str, str]:
        self.done.append(f"measure {' '.join(boards)}")
        failures = {}
        for name in boards:
            message = self.on_board.get(name, self.measured)(name)
            if message is not None:
                failures[name] = message
        return failures

    def skip(self, trial: int, boards: Sequence[str]) -> None:
        self.skipped += boards

    # -- what may come of it on a board

    def measured(self, name: str) -> str | None:
        self.record(events.deployed(1, name), events.measured(1, name, result()), events.evaluated(1, name, result()))
        return None

    def crashes(self, name: str) -> str | None:
        self.record(events.deployed(1, name), events.failed(1, "DeviceCrash", "it crashed", board=name))
        return "it crashed"

    def futile(self, name: str) -> str | None:
        self.record(events.deployed(1, name), events.pruned(1, "futility", "too slow", board=name, result=result()))
        return None

    def given_back(self, name: str) -> str | None:
        return "interrupted"


def run(steps: FakeSteps) -> str:
    return run_trial(1, BOARDS, steps)


def test_done() -> None:
    steps = FakeSteps()
    assert run(steps) == "done"
    assert steps.done == ["quantize", "claim identity", "gate", "measure alpha beta"]
    assert steps.state(1).status == "done"
    assert steps.skipped == []


def test_refused() -> None:
    steps = FakeSteps()
    steps.made = Refusal(Cause.LOW_SNR, "3 dB", detail="why")
    assert run(steps) == "failed"
    assert (steps.state(1).cause, steps.state(1).message) == ("low_snr", "3 dB")
    # Others wait for its claim, and boards for its turn.
    assert steps.done == ["quantize", "claim None"]
    assert sorted(steps.skipped) == ["alpha", "beta"]


def test_duplicate() -> None:
    steps = FakeSteps()
    steps.original = 0
    assert run(steps) == "duplicate"
    assert steps.state(1).duplicate_of == 0
    assert sorted(steps.skipped) == ["alpha", "beta"]


def test_pruned_by_the_gate_on_one_board() -> None:
    steps = FakeSteps()
    steps.excluded = {"beta": ["the model is too large", "and has Einsum"]}
    assert run(steps) == "done"
    assert steps.done[-1] == "measure alpha"
    assert steps.skipped == ["beta"]
    assert steps.state(1).boards["beta"].status == "pruned"
    assert steps.state(1).boards["beta"].message == "the model is too large; and has Einsum"


def test_pruned_by_the_gate_everywhere() -> None:
    steps = FakeSteps()
    steps.excluded = {"alpha": ["too large"], "beta": ["too large"]}
    assert run(steps) == "pruned"
    assert steps.state(1).cause == "gate"
    assert not any(step.startswith("measure") for step in steps.done)
    assert sorted(steps.skipped) == ["alpha", "beta"]


@pytest.mark.parametrize(
    ("alpha", "beta", "ended", "cause"),
    [
        ("crashes", "measured", "done", ""),
        ("crashes", "crashes", "failed", "DeviceCrash"),
        ("futile", "futile", "pruned", "futility"),
        ("futile", "measured", "done", ""),
        ("futile", "crashes", "failed", "futility"),
        ("given_back", "measured", "interrupted", ""),
        ("given_back", "crashes", "interrupted", ""),
    ],
)
def test_what_boards_make_of_it(alpha: str, beta: str, ended: str, cause: str) -> None:
    steps = FakeSteps()
    steps.on_board = {"alpha": getattr(steps, alpha), "beta": getattr(steps, beta)}
    assert run(steps) == ended
    assert steps.state(1).cause == cause
    assert steps.state(1).terminal == (ended != "interrupted")


@pytest.mark.parametrize("step", ["quantize", "measure"])
def test_interrupted_then_taken_up(step: str) -> None:
    steps = FakeSteps()
    steps.stop_before = step
    assert run(steps) == "interrupted"
    assert step not in " ".join(steps.done)
    assert sorted(steps.skipped) == ["alpha", "beta"]
    assert not steps.state(1).terminal
    steps.stop_before = ""
    assert run(steps) == "done"
    assert steps.done.count("quantize") == 1
    assert steps.done.count("gate") == 1


def test_interrupted_while_it_waits_for_lower_trials() -> None:
    steps = FakeSteps()
    steps.original = "interrupted"
    assert run(steps) == "interrupted"
    assert steps.state(1).status == "quantized"
    steps.original = 0
    assert run(steps) == "duplicate"


STAGES: Mapping[str, list[Event]] = {
    "proposed": [],
    "quantized": [events.quantized(1, INFO)],
    "gated": [events.quantized(1, INFO), events.gated(1)],
    "gated, pruned": [events.quantized(1, INFO), events.gated(1), events.pruned(1, "gate", "too large", board="beta")],
    "deployed": [events.quantized(1, INFO), events.gated(1), events.deployed(1, "alpha")],
    "measured": [
        events.quantized(1, INFO), events.gated(1), events.deployed(1, "alpha"), events.measured(1, "alpha", result()),
    ],
    "one failed": [
        events.quantized(1, INFO), events.gated(1), events.deployed(1, "alpha"),
        events.failed(1, "LinkError", "gone", board="alpha"), events.deployed(1, "beta"),
    ],
    "both": [
        events.quantized(1, INFO), events.gated(1),
        *(e for b in BOARDS for e in (events.deployed(1, b), events.measured(1, b, result()))),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "measured_on"),
    [
        ("proposed", "alpha beta"),
        ("quantized", "alpha beta"),
        ("gated", "alpha beta"),
        ("gated, pruned", "alpha"),
        ("deployed", "alpha beta"),
        ("measured", "beta"),
        ("one failed", "beta"),
        ("both", ""),
    ],
)
def test_taken_up_where_it_stood(stage: str, measured_on: str) -> None:
    steps = FakeSteps(before=STAGES[stage])
    assert run(steps) == "done"
    assert ("quantize" in steps.done) == (stage == "proposed")
    assert ("gate" in steps.done) == (stage in ("proposed", "quantized"))
    assert [step for step in steps.done if step.startswith("measure")] == (
        [f"measure {measured_on}"] if measured_on else []
    )
    assert sorted([*steps.skipped, *measured_on.split()]) == ["alpha", "beta"]


@pytest.mark.parametrize(
    "ending", [events.failed(1, "low_snr", "3 dB"), events.duplicate(1, 0)], ids=["failed", "duplicate"]
)
def test_ended_stays_ended(ending: dict[str, Any]) -> None:
    steps = FakeSteps(before=[ending])
    assert run(steps) == ending["event"]
    assert steps.done == []


def test_boards_do_not_wait_for_a_trial_that_breaks() -> None:
    steps = FakeSteps()

    def breaks(trial: int, recipe: Recipe) -> Quantized:
        raise RuntimeError("a defect")

    steps.quantize = breaks  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        run(steps)
    assert sorted(steps.skipped) == ["alpha", "beta"]


def test_boards_do_not_wait_for_a_trial_whose_ledger_is_gone() -> None:
    steps = FakeSteps()

    def gone(trial: int) -> TrialState:
        raise ConnectionError("the recorder died")

    steps.state = gone  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        run(steps)
    assert sorted(steps.skipped) == ["alpha", "beta"]
