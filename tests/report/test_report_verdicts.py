"""The verdict sentence: what it says, and that it never says more than was measured."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.report import wording
from harness.report.verdict import board_verdict, pace
from harness.results import ArtifactInfo, BoardResult, Candidate, LatencyResult, LimitStanding, MetricResult


def result(ms: float | None, *, width: float = 0.01, size: int = 100, **changes: Any) -> BoardResult:
    latency = None if ms is None else LatencyResult(ms * 1e6, (ms * 1e6 * (1 - width), ms * 1e6 * (1 + width)), 400, 5)
    values: dict[str, Any] = {
        "emulated": False,
        "verdict": "valid",
        "reasons": (),
        "artifact": ArtifactInfo("a", "b", size),
        "compiled_sha256": None,
        "latency_ns": latency,
        "load_ns": None,
        "first_ns": None,
        "peak_memory_bytes": None,
        "metrics": {"top1": MetricResult(0.9, -0.002, (-0.006, 0.002), "met", 500)},
        "placement": {},
        "constraints": {"accuracy": "met"},
    }
    return BoardResult(**{**values, **changes})


FLOAT = Candidate(0, {"scheme": "float32"}, "float32", {"rpi5": result(3.1, size=400, metrics={}, constraints={})})


def quantized(trial: int, board: BoardResult) -> Candidate:
    return Candidate(trial, {"scheme": "static"}, "static", {"rpi5": board})


def verdict(*candidates: Candidate, picks: tuple[int, ...], **options: Any) -> Any:
    base = options.pop("baseline", FLOAT.boards["rpi5"])
    return board_verdict("rpi5", [FLOAT, *candidates], picks, base, metrics=["top1"], **options)


def test_the_sentence_of_the_specification() -> None:
    found = verdict(quantized(7, result(1.0)), picks=(7,))
    assert found.sentence == "ship 0007: 3.1× faster than float on rpi5, −0.2 pp top-1"
    assert (found.tone, found.caveats, found.trial) == ("ship", (), 7)


def test_overlapping_intervals_are_not_called_faster() -> None:
    found = verdict(quantized(7, result(3.05, width=0.05)), picks=(7,))
    assert found.sentence == (
        "ship 0007: as fast as float on rpi5 within the confidence intervals, 4.0× smaller, −0.2 pp top-1"
    )


def test_slower_is_said() -> None:
    found = verdict(quantized(7, result(6.2)), picks=(7,))
    assert found.sentence == "ship 0007: 2.0× slower than float on rpi5, 4.0× smaller, −0.2 pp top-1"


def test_float_wins() -> None:
    found = verdict(quantized(7, result(6.2)), picks=(0, 7))
    assert found.tone == "float"
    assert found.sentence.startswith("keep float (0000) on rpi5")


def test_float_cannot_run_there() -> None:
    found = verdict(quantized(7, result(1.23)), picks=(7,), baseline=None)
    assert found.sentence == (
        "ship 0007: 1.23 ms on rpi5, where float has no measurement to compare with, −0.2 pp top-1"
    )


def test_undecided_is_a_caveat_with_its_interval() -> None:
    metric = MetricResult(0.9, -0.008, (-0.013, -0.003), "undecided", 500)
    found = verdict(
        quantized(7, result(1.0, metrics={"top1": metric}, constraints={"accuracy": "undecided"})), picks=(7,)
    )
    assert found.tone == "undecided"
    assert found.caveats == (
        "whether it keeps the accuracy constraint is undecided at 95 % confidence (−1.30 … −0.30 pp top-1)",
    )
    late = verdict(quantized(7, result(1.0, constraints={"latency": "undecided"})), picks=(7,))
    assert "(990–1010 µs)" in late.caveats[0]


UNDECIDED = result(
    1.0,
    metrics={
        "top1": MetricResult(
            0.9, -0.002, (-0.013, 0.009), "undecided", 1000, limit=LimitStanding("-1pp", True, 0.01, "met", 2300)
        )
    },
    constraints={"accuracy": "undecided"},
)


def test_what_is_undecided_says_how_many_samples_would_decide() -> None:
    found = verdict(quantized(7, UNDECIDED), picks=(7, 0))
    assert found.sentence == "ship 0007, if its accuracy holds: 3.1× faster than float on rpi5, −0.2 pp top-1"
    assert found.caveats == (
        "whether it keeps the accuracy constraint is undecided at 95 % confidence (−1.30 … +0.90 pp top-1); "
        "the limit is -1pp: about 2,300 samples of this kind would decide it, 1,000 did not",
    )


def test_float_is_not_kept_in_silence_where_a_faster_one_is_uncertain() -> None:
    suspect = quantized(8, result(1.0, verdict="suspect", reasons=("it drifted",)))
    found = verdict(quantized(6, result(6.2)), suspect, picks=(0, 6, 8))
    assert found.tone == "float"
    assert found.caveats == ("0008 is 3.1× faster than float, −0.2 pp top-1: the measurement is suspect: it drifted",)
    assert (
        verdict(quantized(7, UNDECIDED), picks=(0, 7))
        .caveats[0]
        .startswith(
            "0007 is 3.1× faster than float, −0.2 pp top-1: whether it keeps the accuracy constraint is undecided"
        )
    )


def test_a_suspect_measurement_is_a_caveat() -> None:
    found = verdict(quantized(7, result(1.0, verdict="suspect", reasons=("no placement receipt",))), picks=(7,))
    assert found.tone == "undecided"
    assert found.caveats == ("the measurement is suspect: no placement receipt",)


def test_nothing_feasible_says_what_broke() -> None:
    slow = result(9.0, constraints={"latency": "broken", "accuracy": "met"})
    wrong = result(1.0, constraints={"latency": "met", "accuracy": "broken"})
    both = result(9.0, constraints={"latency": "broken", "accuracy": "broken"})
    found = verdict(quantized(1, slow), quantized(2, wrong), quantized(3, both), quantized(4, slow), picks=())
    assert found.tone == "none"
    assert found.sentence == (
        "nothing to ship on rpi5: none of 5 candidates keeps the constraints (3 too slow, 2 lose too much accuracy)"
    )


@pytest.mark.parametrize(
    ("candidates", "words"),
    [
        ([], "no candidate was measured there"),
        ([quantized(1, result(None)), quantized(2, result(1.0, verdict="invalid"))], "no measurement there is valid"),
        ([quantized(1, result(1.0))], "none of 1 candidate was picked"),
    ],
)
def test_nothing_measured(candidates: list[Candidate], words: str) -> None:
    found = board_verdict("rpi5", candidates, (), None)
    assert found.sentence == f"nothing to ship on rpi5: {words}"


def test_emulated_and_unfinished_are_said() -> None:
    found = verdict(quantized(7, result(1.0, emulated=True)), picks=(7,), finished=False)
    assert found.sentence == "so far: ship 0007: 3.1× faster than float on rpi5 (emulated), −0.2 pp top-1"
    assert found.emulated


def test_without_paired_difference_the_value_is_shown() -> None:
    snr = MetricResult(24.2, None, None, "met", 100)
    found = board_verdict("rpi5", [quantized(7, result(1.0, metrics={"snr": snr}))], [7], result(2.0), metrics=["snr"])
    assert found.sentence == "ship 0007: 2.0× faster than float on rpi5, SNR 24.2 dB against float"
    bare = board_verdict("rpi5", [quantized(7, result(1.0, metrics={}))], [7], result(2.0))
    assert bare.sentence.endswith("accuracy not evaluated")


@given(st.floats(0.001, 1e4), st.floats(0.001, 1e4), st.floats(0, 0.5), st.floats(0, 0.5))
def test_pace_claims_a_difference_only_where_intervals_are_apart(a: float, b: float, wa: float, wb: float) -> None:
    left, right = result(a, width=wa), result(b, width=wb)
    kind = pace(left, right)
    assert left.latency_ns is not None
    assert right.latency_ns is not None
    apart = left.latency_ns.ci95[1] < right.latency_ns.ci95[0] or left.latency_ns.ci95[0] > right.latency_ns.ci95[1]
    assert (kind != "level") == apart
    if apart:
        assert kind == ("faster" if a < b else "slower")
    assert pace(left, None) == pace(result(None), right) == "unknown"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.22e6, 1.26e6, "1.22–1.26 ms"),
        (424_000, 440_000, "424–440 µs"),
        (9.9e5, 1.01e6, "990–1010 µs"),
        (1e6, 1e6 + 400, "1.0000–1.0004 ms"),
        (12.31e6, 12.42e6, "12.3–12.4 ms"),
        (80, 120, "80.0–120.0 ns"),
        (2e9, 3e9, "2.00–3.00 s"),
    ],
)
def test_intervals_show_digits_that_tell_the_ends_apart(low: float, high: float, text: str) -> None:
    assert wording.latency_interval(low, high) == text


@pytest.mark.parametrize(("value", "text"), [(1.041, "1.04×"), (3.14, "3.1×"), (12.4, "12×"), (0.5, "0.50×")])
def test_ratios(value: float, text: str) -> None:
    assert wording.ratio(value) == text


@pytest.mark.parametrize(("value", "text"), [(-0.04, "±0.0"), (0.0, "±0.0"), (-0.26, "−0.3"), (1.0, "+1.0")])
def test_signs(value: float, text: str) -> None:
    assert wording.signed(value, 1) == text


def test_metric_names_and_units() -> None:
    assert wording.metric_name("top1@logits") == "top-1 (logits)"
    assert wording.metric_unit("top5@x", {}) == "fraction"
    assert wording.metric_unit("mine:f1", {"mine:f1": "fraction"}) == "fraction"
    assert wording.metric_unit("mine:f1", {}) == ""
    lower = MetricResult(0.031, 0.004, (0.001, 0.007), "met", 10, higher_is_better=False)
    assert wording.metric_difference(lower, "") == "+0.004"
    assert wording.metric_interval(lower, "") == "+0.001 … +0.007"
