"""Constraints, gate, objectives, budgets and the estimate of a dry run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_values import BOARD, candidate

from harness.measure.settings import settings_for
from harness.recipes.esp_presets import esp_recipe
from harness.recipes.recipe import FLOAT32, Recipe
from harness.results import BoardResult, MetricResult
from harness.search.budget import Budget, Limits
from harness.search.constraints import Constraints, decide_upper, worst, worst_violations
from harness.search.estimate import Estimate, estimate_measurement, estimate_search
from harness.search.gate import gate, other_format
from harness.search.objectives import objective_count, objective_values


@dataclass(frozen=True)
class Bound:
    relative: bool
    value: float


def result(**changes: object) -> BoardResult:
    return replace(candidate(1, 1e6, 0.9, width=0.1).boards[BOARD], **changes)  # type: ignore[arg-type]


class TestConstraints:
    @pytest.mark.parametrize(
        ("limit", "outcome"),
        [(1.2e6, "met"), (1.1e6, "met"), (1.0e6, "undecided"), (0.9e6, "undecided"), (0.8e6, "broken")],
    )
    def test_latency_is_decided_on_its_interval(self, limit: float, outcome: str) -> None:
        assert Constraints(max_latency_ns=limit).decide(result()) == {"latency": outcome}

    @given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 10))
    def test_an_interval_on_both_sides_decides_nothing(self, a: float, b: float, limit: float) -> None:
        low, high = min(a, b), max(a, b)
        expected = "undecided" if low <= limit < high else "met" if high <= limit else "broken"
        assert decide_upper(low, high, limit) == expected

    def test_nothing_asked_nothing_decided(self) -> None:
        assert Constraints().decide(result()) == {}
        assert Constraints().violations(result(), {}) == ()

    @pytest.mark.parametrize(("ratio", "outcome"), [(0.9, "met"), (0.8, "met"), (0.5, "broken"), (None, "undecided")])
    def test_offload(self, ratio: float | None, outcome: str) -> None:
        found = Constraints(min_offload=0.8).decide(result(placement={"offload_ratio": ratio}))
        assert found == {"offload": outcome}

    def test_size_and_memory(self) -> None:
        asked = Constraints(max_size_bytes=1000, max_memory_bytes=500)
        assert asked.decide(result(peak_memory_bytes=501)) == {"size": "met", "memory": "broken"}
        assert asked.decide(result(peak_memory_bytes=None))["memory"] == "undecided"
        assert Constraints(max_size_bytes=999).decide(result()) == {"size": "broken"}

    def test_accuracy_is_as_bad_as_its_worst_metric(self) -> None:
        metrics = {
            "a": MetricResult(0.9, -0.01, (-0.02, 0.0), "met"),
            "b": MetricResult(0.9, -0.01, (-0.02, 0.0), "undecided"),
            "c": MetricResult(0.9, -0.10, (-0.12, -0.08), "broken"),
        }
        decided = [
            Constraints().decide(result(metrics=metrics), bounded)["accuracy"]
            for bounded in (("a",), ("a", "b"), ("b", "c", "a"), ("a", "missing"))
        ]
        assert decided == ["met", "undecided", "broken", "undecided"]

    def test_worst(self) -> None:
        assert worst([]) == "none"
        assert worst(["met", "none"]) == "met"

    def test_violations_tell_by_how_much(self) -> None:
        asked = Constraints(max_latency_ns=0.8e6, max_size_bytes=2000, max_memory_bytes=1, min_offload=0.5)
        metrics = {
            "top1": MetricResult(0.88, -0.02, None),
            "mae": MetricResult(3.0, 1.0, None, higher_is_better=False),
        }
        bounds = {"top1": Bound(True, -0.005), "mae": Bound(False, 2.0)}
        found = asked.violations(result(metrics=metrics, placement={"offload_ratio": 0.75}), bounds)
        # latency, size, memory, offload, then the metrics by name
        assert found == pytest.approx((0.25, -0.5, 0.0, -0.25, 1.0, 0.015))

    def test_what_is_missing_is_violated(self) -> None:
        asked = Constraints(max_latency_ns=1.0, max_memory_bytes=1, min_offload=0.5)
        found = asked.violations(
            result(latency_ns=None, peak_memory_bytes=None, metrics={}), {"top1": Bound(True, 0.0)}
        )
        assert len(found) == 4
        assert all(v > 0 for v in found)

    def test_float_keeps_a_bound_relative_to_itself(self) -> None:
        found = Constraints().violations(result(), {"top1": Bound(True, -0.01)})
        assert found == (0.0,)

    def test_the_worst_board_counts(self) -> None:
        assert worst_violations([(0.1, -3.0), (-1.0, 2.0)]) == (0.1, 2.0)
        assert worst_violations([]) == ()


@dataclass(frozen=True)
class BoardLimits:
    max_model_bytes: int | None = None
    data_types: tuple[str, ...] | None = None
    operators: tuple[str, ...] | None = None
    lint: str = "refuse"
    max_memory_bytes: int | None = None


class TestFormats:
    def test_a_board_takes_its_own_format_only(self) -> None:
        espdl = esp_recipe(target="esp32s3")
        assert other_format(Recipe(), None) == ""
        assert other_format(espdl, "esp32s3") == ""
        assert other_format(espdl, None) == "an .espdl model does not run there: the board takes .onnx models"
        assert other_format(FLOAT32, "esp32s3") == "the float model does not run there: the board takes .espdl models"

    def test_another_chips_model(self) -> None:
        assert other_format(esp_recipe(target="esp32p4"), "esp32s3") == "made for esp32p4, the board is an esp32s3"


class TestGate:
    def test_a_board_without_limits_takes_all(self) -> None:
        assert gate(BoardLimits(), size_bytes=10**9, operators=["Conv"], data_types=["int4"], snr_db=1.0) == ()

    def test_every_limit_has_its_reason(self) -> None:
        found = gate(
            BoardLimits(1000, ("float32", "int8"), ("Conv", "Relu")),
            size_bytes=1001,
            operators=["Relu", "Gelu", "Erf"],
            data_types=["int4", "float32"],
            snr_db=9.0,
            min_snr_db=15.0,
        )
        assert found == (
            "model of 1 kB, the board takes 1 kB",
            "operators the board does not support: Erf, Gelu",
            "data types the board does not support: int4",
            "signal-to-noise ratio 9.0 dB, at least 15 dB is asked for",
        )

    def test_a_ratio_that_is_no_number_does_not_pass(self) -> None:
        assert gate(BoardLimits(), size_bytes=1, snr_db=math.nan, min_snr_db=15.0)
        assert not gate(BoardLimits(), size_bytes=1, snr_db=math.inf, min_snr_db=15.0)


class TestObjectives:
    def test_of_all_boards_together(self) -> None:
        boards = {"a": candidate(1, 1e6, 0.8).boards[BOARD], "b": candidate(1, 4e6, 0.6).boards[BOARD]}
        found = objective_values(boards, ("a", "b"), "pareto", "top1")
        assert found == pytest.approx((math.log(2e6), -0.6))
        assert objective_values(boards, ("a", "b"), "latency", "top1") == pytest.approx((math.log(2e6),))
        assert objective_values(boards, ("a", "b"), "accuracy", "top1") == pytest.approx((-0.6,))
        assert objective_values(boards, ("a", "b"), "pareto", None) == pytest.approx((math.log(2e6),))

    def test_the_number_is_as_counted(self) -> None:
        boards = {"a": candidate(1, 1e6, 0.8).boards[BOARD]}
        for objective in ("latency", "accuracy", "pareto"):
            for metric in ("top1", None):
                values = objective_values(boards, ("a",), objective, metric)  # type: ignore[arg-type]
                assert values is not None
                assert len(values) == objective_count(objective, metric)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "broken",
        [
            candidate(1, None),
            candidate(1, math.nan),
            candidate(1, 0.0),
            candidate(1, 1e6, None),
            candidate(1, 1e6, math.nan),
            candidate(1, 1e6, verdict="invalid"),
        ],
    )
    def test_one_board_without_a_number_leaves_none(self, broken: object) -> None:
        boards = {"a": candidate(1).boards[BOARD], "b": broken.boards[BOARD]}  # type: ignore[attr-defined]
        assert objective_values(boards, ("a", "b"), "pareto", "top1") is None
        assert objective_values(boards, ("a", "c"), "pareto", "top1") is None
        assert objective_values(boards, (), "pareto", "top1") is None


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class TestBudget:
    def test_trials(self) -> None:
        budget = Budget(Limits(trials=2), Clock())
        for expected in (None, None, "trials"):
            assert budget.stop_reason() == expected
            budget.start_trial()

    def test_time(self) -> None:
        clock = Clock()
        budget = Budget(Limits(max_time_s=10.0), clock)
        clock.now += 9.9
        assert budget.stop_reason() is None
        assert budget.time_left_s == pytest.approx(0.1)
        clock.now += 0.2
        assert budget.stop_reason() == "time"
        assert budget.time_left_s == 0.0

    def test_device_time_over_all_boards_with_a_reserve(self) -> None:
        budget = Budget(Limits(device_s=10.0), Clock(), reserve_s=3.0)
        budget.spend("a", 4.0)
        budget.spend("b", 2.9)
        assert budget.stop_reason() is None
        budget.spend("a", 0.2)
        assert budget.stop_reason() == "device_time"
        assert budget.device_left_s == pytest.approx(2.9)
        assert budget.device_s == pytest.approx({"a": 4.2, "b": 2.9})
        budget.spend("a", 99.0)
        assert budget.device_left_s == 0.0

    def test_a_reserve_never_takes_more_than_half(self) -> None:
        assert Budget(Limits(device_s=10.0), Clock(), reserve_s=50.0).stop_reason() is None

    def test_no_limits_never_stop(self) -> None:
        budget = Budget(Limits(), Clock())
        budget.spend("a", 1e9)
        budget.start_trial()
        assert (budget.stop_reason(), budget.device_left_s, budget.time_left_s) == (None, None, None)

    def test_a_resumed_run_counts_what_it_used(self) -> None:
        clock = Clock()
        budget = Budget(Limits(trials=5, max_time_s=10.0, device_s=8.0), clock)
        budget.resume(trials=4, elapsed_s=7.0, device_s={"a": 2.0})
        clock.now += 1.0
        assert (budget.trials, budget.elapsed_s, budget.device_left_s) == (4, 8.0, 6.0)
        budget.start_trial()
        assert budget.stop_reason() == "trials"

    @pytest.mark.parametrize("seconds", [-1.0, math.nan])
    def test_time_cannot_be_given_back(self, seconds: float) -> None:
        with pytest.raises(ValueError, match="on a"):
            Budget(Limits(), Clock()).spend("a", seconds)


class TestEstimate:
    @pytest.mark.parametrize("profile", ["quick", "screening", "final"])
    @pytest.mark.parametrize("level", [1e5, 5e6, 1e8])
    def test_holds_what_the_protocol_takes(self, profile: str, level: float) -> None:
        from harness.measure.protocol import Measurement
        from harness.measure.steps import Cool

        settings = settings_for(profile)  # type: ignore[arg-type]
        measurement = Measurement(settings)
        rng = np.random.default_rng(0)
        from device_agents.contract import Block, BoardState

        state = BoardState("b")
        while (step := measurement.next()) is not None:
            assert not isinstance(step, Cool)
            n = max(step.request.min_count, math.ceil(step.request.min_ns / level))
            samples = (level * np.exp(rng.normal(0, 0.001, n))).astype(np.int64)
            measurement.tell(step, Block("b", samples, None, state, state))
        used = measurement.result().device_ns / 1e9
        found = estimate_measurement(settings, level)
        assert 0.75 * found.low_s <= used <= 1.35 * found.high_s

    def test_of_a_search(self) -> None:
        screening, final = settings_for("screening"), settings_for("final")
        one, last = estimate_measurement(screening), estimate_measurement(final)
        found = estimate_search(screening, final, trials=10, top_k=3, evaluation_samples=200)
        assert found.low_s == pytest.approx(10 * one.low_s + 4 * last.low_s + 14 * 1.0)
        assert found.high_s > found.low_s
        assert Estimate(1, 2) + Estimate(3, 4) == Estimate(4, 6)

    def test_exclusive_boards_cost_more(self) -> None:
        assert (
            estimate_measurement(settings_for("quick", exclusive=True)).low_s
            > estimate_measurement(settings_for("quick")).low_s
        )
