"""The statistics against a known truth, over many seeded runs of the whole protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from synthetic_board import SyntheticBoard

from harness.measure.intervals import REPORT_CONFIDENCE, SEQUENTIAL_CONFIDENCE, ratio_interval
from harness.measure.protocol import Measurement
from harness.measure.record import MeasurementResult
from harness.measure.settings import settings_for
from harness.measure.steps import CANARY, CANDIDATE

TRUTH = 5e6


def runs(count: int, board: dict[str, Any], **settings: Any) -> list[tuple[SyntheticBoard, MeasurementResult]]:
    found = []
    for seed in range(count):
        b = SyntheticBoard(np.random.default_rng([7, seed]), **{"max_samples": 15, **board})
        found.append((b, b.measure(Measurement(settings_for("quick", seed=seed, cool_s=0.1, **settings)))))
    return found


def coverage(results: list[tuple[SyntheticBoard, MeasurementResult]]) -> float:
    latencies = [r.latency for _, r in results if r.latency is not None]
    assert len(latencies) == len(results)
    return sum(x.ci95[0] <= TRUTH <= x.ci95[1] for x in latencies) / len(latencies)


@pytest.mark.parametrize(
    ("board", "settings"),
    [
        ({"block_noise": 0.004}, {"min_blocks": 3, "max_blocks": 3}),
        ({"block_noise": 0.012}, {}),
    ],
    ids=["three blocks", "stopped by its width"],
)
def test_a_95_percent_interval_holds_the_truth(board: dict[str, Any], settings: dict[str, Any]) -> None:
    # The canary is quiet here; where it is as noisy as the candidate the interval is wider than it need be.
    results = runs(1000, {"noise": 0.002, "canary_noise": 0.1, **board}, **settings)
    assert 0.93 <= coverage(results) <= 0.97


@pytest.mark.parametrize(
    ("board", "settings"),
    [
        ({"block_noise": 0.005}, {}),
        ({"noise": 0.01, "autocorrelation": 0.9}, {}),
        ({"block_noise": 0.005}, {"noise": "shared"}),
        ({"block_noise": 0.005}, {"canary": False}),
        ({"block_noise": 0.002, "session_noise": 0.01}, {"blocks_per_session": 1, "max_blocks": 8}),
    ],
    ids=["noisy canary", "correlated samples", "shared machine", "no canary", "noisy sessions"],
)
def test_it_does_so_at_least_under_other_noise(board: dict[str, Any], settings: dict[str, Any]) -> None:
    results = runs(300, {"noise": 0.004, **board}, redo_limit=0, **settings)
    assert coverage(results) >= 0.92  # 95 % less 2.5 standard errors of 300 runs


def test_drift_common_to_both_models_cancels() -> None:
    def drifting(now_ns: float) -> float:
        return 1.0 + 0.01 * now_ns / 1e9  # 1 % a second, under the limit over one measurement

    for b, result in runs(20, {"noise": 0.001, "environment": drifting}, slope_threshold=0.1):
        assert result.ratio_to_canary == pytest.approx(5.0, rel=0.002)
        assert result.latency is not None
        assert abs(result.latency.p50 / TRUTH - drifting(b.now_ns / 2)) < 0.02


def test_stopping_by_width_is_paid_for() -> None:
    """The choice of nominal confidences, for spreads from a twentieth of the wanted width to three times it."""
    rng = np.random.default_rng(0)
    for share in (0.05, 0.2, 0.4, 0.7, 1.0, 3.0):
        logs = rng.normal(0, 0.03 * share, (1000, 6))
        held = {REPORT_CONFIDENCE: 0, SEQUENTIAL_CONFIDENCE: 0}
        for row in np.exp(logs):
            n = next((n for n in range(3, 6) if ratio_interval(row[:n], 0.99).half_width <= 0.03), 6)
            for confidence in held:
                found = ratio_interval(row[:n], confidence)
                held[confidence] += found.low <= 1.0 <= found.high
        assert 0.925 <= held[SEQUENTIAL_CONFIDENCE] / 1000 <= 0.985
        assert held[SEQUENTIAL_CONFIDENCE] > held[REPORT_CONFIDENCE]


def throttling(start_ns: float) -> Callable[[float], float]:
    return lambda now_ns: 1.15 if now_ns > start_ns else 1.0


def test_throttling_without_a_flag_is_noticed() -> None:
    """A step of 15 % somewhere between the first and the last canary block: the set is always redone."""
    rng = np.random.default_rng(1)
    noticed = 0
    for seed in range(60):
        start = rng.uniform(0.4e9, 0.9e9)
        b = SyntheticBoard(
            np.random.default_rng(seed), noise=0.005, block_noise=0.002, environment=throttling(start), max_samples=15
        )
        result = b.measure(Measurement(settings_for("quick", cool_s=0.1)))
        fences = [r for r in result.records if r.kind == "block" and r.target == CANARY and r.round == 0]
        if any(start - 1e7 < r.after.clock_ns and r.before.clock_ns < start + 1e7 for r in (fences[0], fences[-1])):
            continue  # inside a fence, whose median may be of either level
        inside = fences[0].after.clock_ns < start < fences[-1].before.clock_ns
        assert inside == (result.redone > 0)
        noticed += inside
        assert result.verdict == "valid"
        assert result.latency is not None
        if inside:
            assert result.latency.p50 == pytest.approx(TRUTH * 1.15, rel=0.01)
    assert noticed > 20


def test_futility_rarely_stops_a_candidate_that_could_enter() -> None:
    # At the threshold itself, the worst case: nominal 0.5 % at each of at most three looks.
    results = runs(400, {"noise": 0.002, "block_noise": 0.01, "canary_noise": 0.1}, futility_ns=TRUTH)
    assert sum(r.stop_reason == "futility" for _, r in results) / 400 <= 0.03


def test_futility_stops_what_is_clearly_slower() -> None:
    results = runs(
        50,
        {"noise": 0.002, "block_noise": 0.002, "levels": {CANARY: 1e6, CANDIDATE: 2 * TRUTH}},
        futility_ns=TRUTH,
        min_blocks=5,
        max_blocks=8,
    )
    assert all(r.stop_reason == "futility" for _, r in results)
    assert all(r.latency is not None and r.latency.blocks == 3 for _, r in results)
