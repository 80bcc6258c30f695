"""Statistics of the measurement, against numpy, scipy and closed forms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.measure.drift import level_change, slope_change
from harness.measure.intervals import ratio_interval
from harness.measure.outliers import count_outliers
from harness.measure.percentiles import largest_over, minimum_samples, percentile_of
from harness.measure.steady import agree

POSITIVE = st.floats(min_value=1e-3, max_value=1e12)


class TestRatioInterval:
    def test_is_scipys_t_interval_on_logs(self) -> None:
        ratios = [4.9, 5.0, 5.3, 5.05]
        low, high = stats.t.interval(0.95, 3, loc=np.mean(np.log(ratios)), scale=stats.sem(np.log(ratios)))
        found = ratio_interval(ratios, 0.95)
        assert found.low == pytest.approx(math.exp(low))
        assert found.high == pytest.approx(math.exp(high))
        assert found.estimate == pytest.approx(stats.gmean(ratios))

    def test_canary_spread_widens_as_a_welch_interval_of_two_samples(self) -> None:
        ratios, canary = np.array([4.9, 5.0, 5.3, 5.05]), np.array([1.0, 1.2, 0.9, 1.1, 1.0])
        two = stats.ttest_ind(np.log(ratios), np.log(canary), equal_var=False).confidence_interval(0.95)
        found = ratio_interval(ratios, 0.95, canary)
        assert math.log(found.high / found.low) == pytest.approx(two.high - two.low)
        assert found.high / found.low > ratio_interval(ratios, 0.95).high / ratio_interval(ratios, 0.95).low

    def test_equal_blocks_give_a_point(self) -> None:
        found = ratio_interval([2.0, 2.0, 2.0])
        assert (found.low, found.high, found.half_width) == (2.0, 2.0, 0.0)

    @pytest.mark.parametrize("ratios", [[], [1.0, 1.1], [1.0, 0.0, 1.0], [1.0, math.nan, 1.0], [1.0, math.inf, 1.0]])
    def test_refuses_what_has_no_interval(self, ratios: list[float]) -> None:
        with pytest.raises(ValueError):
            ratio_interval(ratios)

    @given(st.lists(POSITIVE, min_size=3, max_size=12), st.lists(POSITIVE, max_size=6))
    def test_holds_its_estimate_whatever_the_order(self, ratios: list[float], canary: list[float]) -> None:
        found = ratio_interval(ratios, 0.95, canary)
        turned = ratio_interval(ratios[::-1], 0.95, canary[::-1])
        assert 0 <= found.low <= found.estimate * (1 + 1e-9)
        assert found.high >= found.estimate * (1 - 1e-9)
        assert math.isfinite(found.high)
        assert turned.low == pytest.approx(found.low, rel=1e-6)


class TestPercentiles:
    @pytest.mark.parametrize(("percentile", "samples"), [(0.90, 64), (0.95, 130), (0.99, 662)])
    def test_minima_are_loadgens(self, percentile: float, samples: int) -> None:
        assert minimum_samples(percentile) == samples

    @pytest.mark.parametrize(("percentile", "over", "samples"), [(0.90, 5, 127), (0.99, 5, 1307), (0.90, 0, 44)])
    def test_more_over_latency_samples_need_more(self, percentile: float, over: int, samples: int) -> None:
        assert minimum_samples(percentile, over) == samples

    @pytest.mark.parametrize("percentile", [0.9, 0.95, 0.99])
    @pytest.mark.parametrize("over", [1, 2, 7])
    def test_is_the_smallest_n_by_the_exact_binomial(self, percentile: float, over: int) -> None:
        def tail(n: int) -> float:
            p = 1 - percentile
            return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(over + 1))

        n = minimum_samples(percentile, over)
        assert tail(n) <= 0.01 < tail(n - 1)

    @given(st.integers(1, 5000), st.sampled_from([0.9, 0.95, 0.99]))
    def test_largest_over_is_the_inverse(self, n: int, percentile: float) -> None:
        over = largest_over(n, percentile)
        if over == 0:
            assert n < minimum_samples(percentile, 1)
        else:
            assert minimum_samples(percentile, over) <= n < minimum_samples(percentile, over + 1)

    def test_absent_below_the_minimum(self) -> None:
        samples = np.arange(1.0, 662.0)
        assert percentile_of(samples, 0.99) is None
        assert percentile_of(np.append(samples, 662.0), 0.99) is not None

    def test_value_is_numpys_and_the_bound_is_an_order_statistic(self) -> None:
        samples = np.random.default_rng(0).permutation(np.arange(1.0, 65.0))
        found = percentile_of(samples, 0.90)
        assert found is not None
        assert found.value == pytest.approx(np.percentile(samples, 90))
        assert found.upper == 64.0  # one over-latency sample allowed, none dropped

    def test_the_bound_holds_as_often_as_it_says(self) -> None:
        rng = np.random.default_rng(1)
        truth = math.exp(stats.norm.ppf(0.9))
        rows = np.exp(rng.normal(size=(2000, 127)))
        held = sum(found.upper >= truth for row in rows if (found := percentile_of(row, 0.9)) is not None)
        assert held / 2000 >= 0.983  # 99 % nominal, three standard errors below


class TestOutliers:
    def test_counts_by_tukeys_fences(self) -> None:
        # Quartiles of 0..100 are 25 and 75: mild beyond 150, severe beyond 225.
        block = np.append(np.arange(1000, 1101), [1160, 1290])
        first, third = np.quantile(block, [0.25, 0.75])
        assert 1160 > third + 1.5 * (third - first) > 1101
        found = count_outliers(block)
        assert (found.mild, found.severe, found.n) == (1, 1, 103)

    def test_a_clock_tick_is_no_outlier(self) -> None:
        block = np.full(100, 1_000_000)
        block[:10] += 1_000
        assert count_outliers(block).severe == 0

    def test_shares_add_up(self) -> None:
        total = count_outliers(np.full(50, 10)) + count_outliers(np.append(np.full(49, 10), 99))
        assert (total.severe, total.n, total.severe_share) == (1, 100, 0.01)


class TestDrift:
    def test_theil_sen_slope_is_scipys(self) -> None:
        rng = np.random.default_rng(2)
        samples = np.round(1e6 * (1 + 0.05 * np.arange(50) / 49) + rng.normal(0, 2e3, 50)).astype(np.int64)
        change, drifted = slope_change(samples, 0.01)
        slope = stats.theilslopes(samples, np.arange(50)).slope
        assert change == pytest.approx(slope * 49 / np.median(samples))
        assert drifted

    def test_long_blocks_are_cut_and_keep_their_slope(self) -> None:
        samples = np.round(1e6 * np.linspace(1.0, 1.02, 20_000)).astype(np.int64)
        change, drifted = slope_change(samples, 0.01)
        assert drifted
        assert change == pytest.approx(0.02, abs=0.001)

    def test_noise_without_trend_is_not_drift(self) -> None:
        rng = np.random.default_rng(3)
        blocks = np.exp(rng.normal(0, 0.05, (2000, 30))) * 1e6
        assert sum(slope_change(b.astype(np.int64), 0.01)[1] for b in blocks) / 2000 < 0.002

    def test_too_few_samples_have_no_slope(self) -> None:
        assert slope_change(np.arange(1, 6) * 1000, 0.01) == (0.0, False)

    @pytest.mark.parametrize(("factor", "drifted"), [(1.025, False), (1.04, True), (0.96, True)])
    def test_level_change_against_its_threshold(self, factor: float, drifted: bool) -> None:
        rng = np.random.default_rng(4)
        first, last = (np.exp(rng.normal(0, 0.01, 200)) * 1e6 * f for f in (1.0, factor))
        change, found = level_change(first.astype(np.int64), last.astype(np.int64), 0.03)
        assert change == pytest.approx(factor - 1, abs=0.006)
        assert found is drifted

    def test_noise_of_short_blocks_is_not_level_drift(self) -> None:
        rng = np.random.default_rng(5)
        blocks = (np.exp(rng.normal(0, 0.06, (1000, 2, 15))) * 1e6).astype(np.int64)
        changes = [level_change(a, b, 0.03) for a, b in blocks]
        assert sum(abs(change) > 0.03 for change, _ in changes) > 100
        assert sum(found for _, found in changes) < 40


@pytest.mark.parametrize(
    ("medians", "expected"), [([], False), ([1.0], False), ([2.0, 1.0], False), ([5.0, 1.0, 1.005], True)]
)
def test_two_windows_that_agree(medians: list[float], expected: bool) -> None:
    assert agree(medians, 0.01) is expected


def test_kendall_score_matches_scipy_in_what_it_calls_significant() -> None:
    rng = np.random.default_rng(6)
    for slope, _ in itertools.product((0.0, 0.01, 0.02, 0.05, 0.2), range(20)):
        samples = (1e6 * (1 + slope * np.arange(40) / 39 + rng.normal(0, 0.02, 40))).astype(np.int64)
        change, drifted = slope_change(samples, 0.0)
        p = stats.kendalltau(np.arange(40), samples, method="asymptotic").pvalue
        if not 2e-5 < p < 2e-4:
            assert drifted == (p < 6.3e-5 and change != 0)
