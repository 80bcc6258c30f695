"""Preflight, comparison of outputs, and verdicts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from device_agents.contract import BoardState
from harness.measure.findings import Finding, judge, notices
from harness.measure.plausibility import same_outputs
from harness.measure.preflight import preflight


@dataclass(frozen=True)
class Wanted:
    power_mode: str | None = None
    governor: str | None = None
    max_temperature_c: float | None = None


class TestPreflight:
    def test_nothing_asked_nothing_found(self) -> None:
        found = preflight(Wanted(), BoardState("b", governor="powersave", temperature_c=99.0))
        assert (found.mismatches, found.notices) == ((), ())

    def test_what_was_read_back_must_agree(self) -> None:
        wanted = Wanted("performance", "performance", 60.0)
        fine = BoardState("b", power_mode=" Performance\n", governor="performance", temperature_c=60.0)
        assert preflight(wanted, fine).mismatches == ()
        wrong = BoardState("b", power_mode="balanced", governor="powersave", temperature_c=60.1)
        found = preflight(wanted, wrong)
        assert len(found.mismatches) == 3
        assert "'powersave', 'performance' is asked for" in found.mismatches[1]
        assert "60.1 °C" in found.mismatches[2]

    def test_what_the_board_does_not_show_is_noted(self) -> None:
        found = preflight(Wanted("turbo", "performance", 60.0), BoardState("b"))
        assert found.mismatches == ()
        assert len(found.notices) == 3

    def test_throttling_before_anything_ran_is_noted(self) -> None:
        assert "throttling" in preflight(Wanted(), BoardState("b", throttled=True)).notices[0]


class TestSameOutputs:
    A = np.array([[1.0, -2.0], [100.0, 0.0]], np.float32)

    def test_equal_and_nearly_equal(self) -> None:
        assert same_outputs({"y": self.A}, {"y": self.A.copy()}) is None
        assert same_outputs({"y": self.A}, {"y": self.A + np.float32(0.09)}) is None

    def test_another_result(self) -> None:
        found = same_outputs({"y": self.A}, {"y": self.A + np.float32(0.2)})
        assert found is not None
        assert "'y' differs by up to 0.2 where 0.1 is allowed" in found

    @pytest.mark.parametrize(
        "other",
        [
            {"z": A},
            {},
            {"y": A[:1]},
            {"y": A.astype(np.float64)},
            {"y": np.where(A == 0, np.nan, A).astype(np.float32)},
        ],
    )
    def test_another_shape_type_name_or_nan(self, other: dict[str, np.ndarray]) -> None:
        assert same_outputs({"y": self.A}, other) is not None

    def test_nan_and_infinity_in_the_same_place_are_equal(self) -> None:
        a = np.array([np.nan, np.inf, 1.0])
        assert same_outputs({"y": a}, {"y": a.copy()}) is None
        assert same_outputs({"y": a}, {"y": np.array([np.nan, -np.inf, 1.0])}) is not None

    def test_quantized_outputs_may_differ_by_one_step(self) -> None:
        a = np.array([10, 20], np.uint8)
        assert same_outputs({"y": a}, {"y": np.array([11, 20], np.uint8)}) is None
        assert same_outputs({"y": a}, {"y": np.array([12, 20], np.uint8)}) is not None
        assert same_outputs({"y": np.array([True])}, {"y": np.array([False])}) is not None

    def test_empty(self) -> None:
        assert same_outputs({"y": np.empty((0, 3), np.float32)}, {"y": np.empty((0, 3), np.float32)}) is None


def test_the_gravest_finding_decides_and_notices_do_not() -> None:
    notice, suspect, invalid = (Finding(level, level[:2], "x") for level in ("notice", "suspect", "invalid"))
    assert judge([]) == ("valid", ())
    assert judge([notice]) == ("valid", ())
    assert judge([notice, suspect, suspect]) == ("suspect", ("su: x",))
    assert judge([suspect, invalid, notice]) == ("invalid", ("in: x", "su: x"))
    assert notices([notice, suspect, notice]) == ("no: x",)
