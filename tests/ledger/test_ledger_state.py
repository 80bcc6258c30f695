"""What events amount to, and which may follow which."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import Builder, finished_run, header

from harness.ledger import events as ev
from harness.ledger.ledger import read_ledger
from harness.ledger.state import IllegalTransition, LedgerState
from harness.results import ArtifactInfo, BoardResult, MetricResult, to_json

ARTIFACT = ArtifactInfo("aa" * 32, "bb" * 32, 1000)


def result(phase: str = "search", **changes: Any) -> BoardResult:
    values: dict[str, Any] = {
        "emulated": False,
        "verdict": "valid",
        "reasons": (),
        "artifact": ARTIFACT,
        "compiled_sha256": None,
        "latency_ns": None,
        "load_ns": 1,
        "first_ns": 2,
        "peak_memory_bytes": None,
        "metrics": {"top1": MetricResult(0.9, -0.01, (-0.02, 0.0), "met", 100)},
        "placement": {},
        "phase": phase,
    }
    return BoardResult(**{**values, **changes})


def state_after(*events: ev.Event) -> LedgerState:
    return LedgerState.from_events([{**e, "time": f"t{i}"} for i, e in enumerate([ev.run({}), *events])])


PROPOSED = ev.proposed(0, {"scheme": "float32"}, "float32", {"a": 1}, "d" * 64)
QUANTIZED = ev.quantized(0, ARTIFACT, snr_db=20.0)
GATED = ev.gated(0)
DEPLOYED = ev.deployed(0, "b")
MEASURED = ev.measured(0, "b", result(), device_seconds=1.5)
EVALUATED = ev.evaluated(0, "b", result(), device_seconds=0.5)
WAY = [PROPOSED, QUANTIZED, GATED, DEPLOYED, MEASURED, EVALUATED, ev.done(0)]


@pytest.mark.parametrize(
    ("steps", "status"),
    list(enumerate(["proposed", "quantized", "gated", "deployed", "measured", "evaluated", "done"], start=1)),
)
def test_the_way_of_a_trial(steps: int, status: str) -> None:
    state = state_after(*WAY[:steps])
    assert state.trials[0].status == status
    assert [t.number for t in state.unfinished()] == ([] if status == "done" else [0])
    assert state.next_trial == 1


def test_results_and_device_time_are_kept() -> None:
    state = state_after(*WAY, ev.notice("reconnect", board="b", device_seconds=0.25))
    assert state.device_seconds == {"b": 2.25}
    assert state.candidates()[0].boards["b"] == result()
    assert state.counts() == {"done": 1, "failed": 0, "pruned": 0, "duplicate": 0}
    assert state.notices == ["b: reconnect"]
    state.apply(ev.final(0, "b", result("final"), device_seconds=1.0))
    assert state.candidates()[0].boards["b"].phase == "final"
    board = state.trials[0].boards["b"]
    assert board.result is not None
    assert (board.result.phase, state.device_seconds["b"]) == ("search", 3.25)


def test_every_event_not_next_on_the_way_is_refused_and_changes_nothing() -> None:
    anywhere = {"failed", "pruned", "duplicate", "retried"}
    for steps in range(len(WAY) + 1):
        for event in [*WAY, ev.final(0, "b", result("final"))]:
            state = state_after(*WAY[:steps])
            before = repr(state)
            allowed = steps < len(WAY) and event == WAY[steps]
            allowed |= event["event"] == "final" and steps == len(WAY)
            allowed |= event == DEPLOYED and steps == WAY.index(DEPLOYED) + 1  # a reboot: deployed again
            allowed |= event["event"] == "done" and steps == WAY.index(MEASURED) + 1  # nothing to evaluate
            assert event["event"] not in anywhere
            if allowed:
                state.apply(event)
            else:
                with pytest.raises(IllegalTransition):
                    state.apply(event)
                assert repr(state) == before


@pytest.mark.parametrize("steps", range(1, 8))
def test_ends_from_any_stage_but_an_end(steps: int) -> None:
    for event in (ev.failed(0, "timeout", "after 600 s"), ev.pruned(0, "latency", "too slow")):
        state = state_after(*WAY[:steps])
        if steps == len(WAY):
            with pytest.raises(IllegalTransition, match="it is done"):
                state.apply(event)
        else:
            state.apply({**event, "time": "t"})
            trial = state.trials[0]
            assert (trial.status, trial.cause) == (event["event"], event["cause"])
            assert state.unfinished() == ()


def test_a_board_drops_out_and_the_trial_goes_on() -> None:
    state = state_after(PROPOSED, QUANTIZED, GATED, DEPLOYED, ev.deployed(0, "c"))
    with pytest.raises(IllegalTransition, match="not measured on b, c"):
        state.apply(ev.done(0))
    state.apply(MEASURED)
    state.apply(ev.failed(0, "ModelRejected", "no kernel", board="c", device_seconds=3.0))
    assert state.trials[0].status == "measured"
    state.apply(ev.done(0))
    assert state.trials[0].boards["c"].cause == "ModelRejected"
    assert set(state.candidates()[0].boards) == {"b"}
    assert state.device_seconds == {"b": 1.5, "c": 3.0}


def test_done_on_no_board_is_refused() -> None:
    state = state_after(PROPOSED, QUANTIZED, GATED, ev.pruned(0, "size", "too big", board="b"))
    with pytest.raises(IllegalTransition, match="not measured on any board"):
        state.apply(ev.done(0))


def test_duplicates_name_an_original() -> None:
    state = state_after(PROPOSED, QUANTIZED, ev.proposed(1, {}, "same"), ev.quantized(1, ARTIFACT))
    assert state.find_identity("bb" * 32) == 0
    for wrong in (1, 7):
        with pytest.raises(IllegalTransition, match="original"):
            state.apply(ev.duplicate(1, wrong))
    state.apply(ev.duplicate(1, 0))
    assert state.trials[1].duplicate_of == 0
    state.apply(ev.proposed(2, {}, "again"))
    with pytest.raises(IllegalTransition, match="original"):
        state.apply(ev.duplicate(2, 1))


def test_a_trial_starts_over() -> None:
    state = state_after(*WAY[:5], ev.retried(0, "model.onnx is damaged"))
    trial = state.trials[0]
    assert (trial.status, trial.artifact, dict(trial.boards)) == ("proposed", None, {})
    assert trial.params == {"a": 1}
    assert state.device_seconds == {"b": 1.5}, "time spent stays spent"
    assert "0000" in state.notices[0]


def test_trials_in_the_order_they_ended() -> None:
    events = [ev.proposed(n, {}, "x") for n in range(4)]
    state = state_after(*events, *(ev.failed(n, "c", "m") for n in (2, 0, 3)))
    assert [t.number for t in state.ended()] == [2, 0, 3]
    assert [t.number for t in state.unfinished()] == [1]


@pytest.mark.parametrize(
    "event",
    [
        {"event": "exploded"},
        {},
        ev.run({}),
        {"event": "proposed", "trial": 0},
        {"event": "proposed", "trial": -1, "recipe": {}, "label": ""},
        ev.gated(9),
        {"event": "quantized", "trial": 0, "artifact": {"sha256": "x"}},
    ],
)
def test_nonsense_is_refused(event: ev.Event) -> None:
    with pytest.raises(IllegalTransition):
        state_after(PROPOSED if event.get("event") == "quantized" else ev.notice("x"), event)


def test_a_ledger_begins_with_its_header() -> None:
    with pytest.raises(IllegalTransition, match="begins with"):
        LedgerState.from_events([PROPOSED])


def test_a_damaged_result_is_refused() -> None:
    broken = {**MEASURED, "result": {**to_json(result()), "verdict": "splendid"}}
    with pytest.raises(IllegalTransition, match="verdict"):
        state_after(*WAY[:4], broken)


def test_replay_equals_what_the_writer_had(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "r")
    replayed = LedgerState.from_events(read_ledger(run.path / "ledger.jsonl").events)
    assert replayed == run.state
    assert replayed.counts() == {"done": 8, "failed": 2, "pruned": 1, "duplicate": 1}
    assert replayed.finished is not None
    assert replayed.header == header()


def test_interleaved_trials_replay_to_the_same_results(tmp_path: Path) -> None:
    """Trials overlap in a real run; their order in the ledger does not change what each amounts to."""
    builder = Builder(tmp_path / "r", {"b": (False, 1e6)})
    builder.search()
    events = list(read_ledger(builder.run.path / "ledger.jsonl").events)
    plain = LedgerState.from_events(events)
    queues: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        queues.setdefault(event.get("trial", -1), []).append(event)
    head = queues.pop(-1)
    rng, mixed = random.Random(3), list(head)
    # A duplicate's original must come first, as it does in a run.
    mixed += queues.pop(2)
    while queues:
        number = rng.choice(sorted(queues))
        mixed.append(queues[number].pop(0))
        if not queues[number]:
            del queues[number]
    other = LedgerState.from_events(mixed)
    assert other.candidates() == plain.candidates()
    assert other.counts() == plain.counts()


class TestDeviceTime:
    def test_of_a_trial_is_all_that_the_search_spent_on_it(self) -> None:
        failed = ev.failed(0, "LinkError", "gone", board="b", device_seconds=2.0)
        final = ev.final(0, "b", result("final"), device_seconds=8.0)
        state = state_after(
            PROPOSED, QUANTIZED, GATED, DEPLOYED, failed, ev.failed(0, "LinkError", "gone"),
            ev.retried(0, "a board had failed"), QUANTIZED, GATED, DEPLOYED, MEASURED, EVALUATED, ev.done(0), final,
        )  # fmt: skip
        assert state.trials[0].device_seconds == {"b": 4.0}
        assert state.finals_seconds == {"b": 8.0}
        assert state.device_seconds == {"b": 12.0}

    def test_a_failed_final_was_device_time_too(self) -> None:
        state = state_after(*WAY, ev.final(0, "b", None, cause="DeviceTimeout", device_seconds=3.0))
        assert (state.finals_seconds, state.device_seconds) == ({"b": 3.0}, {"b": 5.0})


def test_wall_time_without_the_pauses() -> None:
    def at(second: int, event: ev.Event) -> dict[str, Any]:
        return {**event, "time": f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}Z"}

    told = [
        at(0, ev.run({})),
        at(10, PROPOSED),
        at(30, QUANTIZED),
        # Half an hour of nothing.
        at(1830, ev.resumed()),
        at(1835, GATED),
        # The clock was set back.
        at(1830, DEPLOYED),
        at(1840, MEASURED),
    ]
    assert LedgerState.from_events(told).active_s == 30 + 5 + 10
