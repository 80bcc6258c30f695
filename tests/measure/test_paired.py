"""Intervals and bounds against published figures, exact coverage, and independent solutions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data.score import MetricFacts, Score
from harness.errors import ConfigError
from harness.measure.paired import (
    AccuracyBound,
    compare,
    default_bound,
    mean_interval,
    paired_proportion_interval,
    wilson_interval,
)

TOP1 = MetricFacts("top1", "fraction", True, "proportion", versus_float=False)
SNR = MetricFacts("snr", "dB", True, "mean", versus_float=True)
MAE = MetricFacts("mae", "", False, "mean", versus_float=False)
F1 = MetricFacts("my:f1", "", True, "blackbox", versus_float=False)


def hits(pattern: str) -> Score:
    values = np.array([float(c) for c in pattern])
    return Score(float(values.mean()), len(values), values)


def hits_of(agree_right: int, only: int, other: int, wrong: int) -> tuple[Score, Score]:
    """Candidate and float of a paired table: both right, candidate only, float only, both wrong."""
    ours = "1" * agree_right + "1" * only + "0" * other + "0" * wrong
    theirs = "1" * agree_right + "0" * only + "1" * other + "0" * wrong
    return hits(ours), hits(theirs)


# Published examples ----------------------------------------------------------------------------------------------


def test_tango_reproduces_the_papers_contact_lens_example() -> None:
    # Tango (1998), section 6.1, Table V: a=43, b=0, c=1, d=0; 90 % lower limit printed as -0.096.
    low, _ = paired_proportion_interval(0, 1, 44, confidence=0.90)
    assert round(low, 3) == -0.096


@pytest.mark.parametrize(
    ("b", "c", "n", "expected"),
    [
        # Fagerland, Lydersen, Laake, "Statistical Analysis of Contingency Tables" (2017), ch. 8: Cavo et al. (2012),
        # 59/6/16/80, as R's contingencytables prints it.
        (6, 16, 161, (-0.1240, -0.0054)),
        # The same, Bentur et al. (2009), 1/1/7/12; Fagerland et al. (2014) print -0.517 to -0.026.
        (1, 7, 21, (-0.5172, -0.0260)),
    ],
)
def test_tango_reproduces_textbook_examples(b: int, c: int, n: int, expected: tuple[float, float]) -> None:
    assert paired_proportion_interval(b, c, n) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(
    ("successes", "n", "expected"),
    [
        # Newcombe, "Two-sided confidence intervals for the single proportion", Stat. Med. 17 (1998), Table I, method 3.
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
        (0, 20, (0.0, 0.1611)),
        (1, 29, (0.0061, 0.1718)),
    ],
)
def test_wilson_reproduces_newcombes_table(successes: int, n: int, expected: tuple[float, float]) -> None:
    assert wilson_interval(successes, n) == pytest.approx(expected, abs=5e-5)


# Independent solutions -------------------------------------------------------------------------------------------


def score_statistic_by_maximisation(b: int, c: int, n: int, d: float) -> float:
    """Tango's statistic with the restricted likelihood maximised numerically instead of in closed form."""

    def loss(q: float) -> float:
        cells = (q + d, q, 1 - 2 * q - d)
        if min(cells) < 0:
            return math.inf
        return -sum(k * math.log(max(p, 1e-300)) for k, p in zip((b, c, n - b - c), cells, strict=True))

    low, high = max(0.0, -d), (1 - d) / 2
    q = float(scipy.optimize.minimize_scalar(loss, bounds=(low, high), options={"xatol": 1e-12}).x)
    return (b - c - n * d) / math.sqrt(n * (2 * q + d - d * d))


@pytest.mark.parametrize(("b", "c", "n"), [(3, 8, 200), (1, 7, 21), (20, 5, 1000), (2, 2, 10)])
def test_tango_limits_solve_the_score_equation(b: int, c: int, n: int) -> None:
    low, high = paired_proportion_interval(b, c, n)
    z = scipy.stats.norm.ppf(0.975)
    assert score_statistic_by_maximisation(b, c, n, low) == pytest.approx(z, abs=1e-4)
    assert score_statistic_by_maximisation(b, c, n, high) == pytest.approx(-z, abs=1e-4)


@given(st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.integers(0, n), st.just(n))))
def test_tango_holds_the_estimate_and_mirrors(table: tuple[int, int, int]) -> None:
    b, c, n = table
    c = min(c, n - b)
    low, high = paired_proportion_interval(b, c, n)
    assert -1 <= low <= (b - c) / n <= high <= 1
    assert low < high or n in (b, c)
    assert paired_proportion_interval(c, b, n) == pytest.approx((-high, -low), abs=1e-12)


@pytest.mark.parametrize("n", [1, 40, 1000])
def test_tango_without_discordant_pairs_has_its_closed_form(n: int) -> None:
    z2 = scipy.stats.norm.ppf(0.975) ** 2
    assert paired_proportion_interval(0, 0, n) == pytest.approx((-z2 / (n + z2), z2 / (n + z2)), abs=1e-10)


@pytest.mark.parametrize("counts", [(-1, 0, 5), (0, 0, 0), (3, 3, 5)])
def test_impossible_tables_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="paired table"):
        paired_proportion_interval(*counts)


def test_mean_interval_is_the_paired_t_of_scipy() -> None:
    rng = np.random.default_rng(5)
    ours, theirs = rng.normal(size=40), rng.normal(size=40)
    expected = scipy.stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    gap = ours - theirs
    assert mean_interval(float(gap.mean()), gap) == pytest.approx((expected.low, expected.high))
    assert mean_interval(1.0, np.array([1.0])) is None


# Coverage, exactly -----------------------------------------------------------------------------------------------


def table_probabilities(n: int, only: float, other: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every (b, c) of n pairs that matters, with its multinomial probability."""
    b, c = (grid.ravel() for grid in np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij"))
    keep = b + c <= n
    b, c = b[keep], c[keep]
    p = scipy.stats.multinomial.pmf(np.stack([b, c, n - b - c], axis=1), n, [only, other, 1 - only - other])
    keep = p > 1e-9
    return b[keep], c[keep], p[keep]


def test_tango_covers_close_to_nominal_at_every_rate_of_disagreement() -> None:
    coverages = []
    for only, other in [(0.01, 0.01), (0.01, 0.03), (0.0, 0.02), (0.05, 0.05), (0.02, 0.12), (0.2, 0.3)]:
        truth = only - other
        b, c, p = table_probabilities(100, only, other)
        inside = [low <= truth <= high for low, high in map(paired_proportion_interval, b, c, [100] * len(b))]
        coverages.append(float(p[inside].sum()))
    assert min(coverages) > 0.93
    assert 0.94 < np.mean(coverages) < 0.98


@pytest.mark.parametrize("other", [0.012, 0.02, 0.05])
def test_a_candidate_exactly_on_the_bound_is_rarely_called_met(other: float) -> None:
    # True difference -1 pp at n = 400: each one-sided error of a 95 % interval is nominally 2.5 %.
    n, bound = 400, AccuracyBound.parse("-1pp")
    b, c, p = table_probabilities(n, other - 0.01, other)
    wrong = [bound.decide(paired_proportion_interval(i, j, n), True) == "met" for i, j in zip(b, c, strict=True)]
    assert p[wrong].sum() < 0.04


# Bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "relative", "value", "metric"),
    [
        ("-0.5pp", True, -0.005, None),
        ("−0.5pp", True, -0.005, None),
        ("0pp", True, 0.0, None),
        ("-0.01", True, -0.01, None),
        ("+0.02", True, 0.02, None),
        ("0.9", False, 0.9, None),
        (".9", False, 0.9, None),
        ("90%", False, 0.9, None),
        (" 90 % ", False, 0.9, None),
        ("20dB", False, 20.0, None),
        ("snr>=20dB", False, 20.0, "snr"),
        ("top1@logits >= -1pp", True, -0.01, "top1@logits"),
        ("my.metrics:f1>=0.8", False, 0.8, "my.metrics:f1"),
        ("mae<=1e-2", False, 0.01, "mae"),
    ],
)
def test_bounds_are_read(text: str, relative: bool, value: float, metric: str | None) -> None:
    bound = AccuracyBound.parse(text)
    assert (bound.relative, bound.metric) == (relative, metric)
    assert bound.value == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not an accuracy bound"),
        ("high", "not an accuracy bound"),
        ("-1 pp please", "not an accuracy bound"),
        ("nan", "not an accuracy bound"),
        ("1e999", "not a finite number"),
        ("-1%", "ambiguous"),
        ("0.5pp", "no sign"),
        ("top1>0.9", "not an accuracy bound"),
    ],
)
def test_bounds_that_cannot_be_read_say_how_to_write_them(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        AccuracyBound.parse(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "facts", "message"),
    [
        ("-1pp", SNR, "not a fraction"),
        ("90%", MAE, "not a fraction"),
        ("20dB", TOP1, "not in decibels"),
        ("-3dB", SNR, "no difference to bound"),
        ("90", TOP1, "lies in 0..1"),
        ("-5", TOP1, "lies in -1..1"),
        ("mae>=0.1", MAE, "lower is better"),
        ("top1<=0.9", TOP1, "higher is better"),
    ],
)
def test_bounds_that_do_not_fit_the_metric_are_refused(text: str, facts: MetricFacts, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        AccuracyBound.parse(text).check(facts)
    assert caught.value.hint


def test_only_top_k_has_a_default_bound() -> None:
    assert default_bound(TOP1) == AccuracyBound.parse("-1pp")
    assert [default_bound(facts) for facts in (SNR, MAE, F1)] == [None, None, None]


@pytest.mark.parametrize("text", ["-1pp", "-0.5pp", "99%"])
def test_fewest_samples_is_where_full_agreement_begins_to_meet_the_bound(text: str) -> None:
    bound = AccuracyBound.parse(text)
    need = bound.fewest_samples(TOP1)
    assert need is not None
    outcomes = []
    for n in (need - 1, need):
        perfect = hits("1" * n)
        outcomes.append(compare(TOP1, perfect, perfect, bound).outcome)
    assert outcomes == ["undecided", "met"]
    assert bound.sample_notice(TOP1, need) is None
    assert str(need) in (bound.sample_notice(TOP1, need - 1) or "")


def test_bounds_no_sample_can_prove_are_named() -> None:
    assert "never" in (AccuracyBound.parse("0pp").sample_notice(TOP1, 10**6) or "")
    assert AccuracyBound.parse("0pp").sample_notice(F1, 10) is None


# Comparison ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "outcome"),
    [((900, 2, 3, 95), "met"), ((850, 2, 60, 88), "broken"), ((880, 5, 15, 100), "undecided")],
)
def test_relative_bound_on_top1_is_decided_on_the_paired_interval(
    table: tuple[int, int, int, int], outcome: str
) -> None:
    ours, theirs = hits_of(*table)
    result = compare(TOP1, ours, theirs, AccuracyBound.parse("-1pp"))
    n = sum(table)
    assert result.outcome == outcome
    assert result.difference == pytest.approx((table[1] - table[2]) / n)
    assert result.ci95 == paired_proportion_interval(table[1], table[2], n)
    assert (result.n, result.extras["method"]) == (n, "tango")


def test_pairing_decides_what_two_separate_intervals_could_not() -> None:
    # 1000 samples, one changed answer: unpaired Wilson intervals are ±1.9 points wide each.
    ours, theirs = hits_of(899, 0, 1, 100)
    assert compare(TOP1, ours, theirs, AccuracyBound.parse("-1pp")).outcome == "met"


@pytest.mark.parametrize(("text", "outcome"), [("80%", "met"), ("95%", "broken"), ("90%", "undecided")])
def test_absolute_bound_on_top1_is_decided_on_wilsons_interval(text: str, outcome: str) -> None:
    ours, theirs = hits_of(900, 0, 5, 95)
    result = compare(TOP1, ours, theirs, AccuracyBound.parse(text))
    assert result.outcome == outcome
    assert result.extras["value_ci95"] == list(wilson_interval(900, 1000))
    assert result.ci95 == paired_proportion_interval(0, 5, 1000)


@pytest.mark.parametrize(("text", "outcome"), [("-1pp", "met"), ("+1pp", "broken"), ("80%", "met"), ("99%", "broken")])
def test_the_float_model_itself_has_no_difference_but_an_outcome(text: str, outcome: str) -> None:
    result = compare(TOP1, hits("1" * 900 + "0" * 100), None, AccuracyBound.parse(text))
    assert (result.difference, result.outcome) == (None, outcome)
    assert result.ci95 == wilson_interval(900, 1000)


@pytest.mark.parametrize(
    ("text", "outcome"), [("snr>=20dB", "met"), ("40dB", "broken"), ("30dB", "undecided"), (None, "none")]
)
def test_metrics_against_float_are_bounded_by_value(text: str | None, outcome: str) -> None:
    values = 30 + np.random.default_rng(1).normal(0, 3, 400)
    score = Score(float(values.mean()), 400, values)
    perfect = Score(300.0, 400, np.full(400, 300.0))
    result = compare(SNR, score, perfect, AccuracyBound.parse(text) if text else None)
    assert (result.difference, result.outcome) == (None, outcome)
    assert result.ci95 == mean_interval(score.value, values)


@pytest.mark.parametrize(("text", "outcome"), [("+0.1", "met"), ("+0.001", "broken"), ("0.5", "broken"), ("2", "met")])
def test_where_lower_is_better_the_interval_must_lie_below(text: str, outcome: str) -> None:
    rng = np.random.default_rng(2)
    base = rng.uniform(0.5, 1.5, 500)
    worse = base + 0.02 + rng.normal(0, 0.01, 500)
    result = compare(
        MAE, Score(float(worse.mean()), 500, worse), Score(float(base.mean()), 500, base), AccuracyBound.parse(text)
    )
    assert result.outcome == outcome
    assert result.difference == pytest.approx(0.02, abs=0.003)
    assert result.extras["method"] == "paired-t"


def test_a_bound_is_undecided_where_no_interval_is_known() -> None:
    result = compare(F1, Score(0.99, 100, None), Score(0.5, 100, None), AccuracyBound.parse("-0.01"))
    assert (result.outcome, result.ci95, result.extras["method"]) == ("undecided", None, None)
    assert result.difference == pytest.approx(0.49)


def test_different_samples_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="same samples"):
        compare(TOP1, hits("111"), hits("1111"), None)
    with pytest.raises(ValueError, match="not finite"):
        compare(TOP1, Score(math.nan, 3, None), None, None)


@settings(max_examples=60)
@given(st.floats(-1, 1), st.floats(0, 0.5), st.floats(-1, 1), st.booleans())
def test_outcome_follows_from_where_the_interval_lies(centre: float, half: float, limit: float, higher: bool) -> None:
    bound = AccuracyBound("x", True, limit)
    outcome = bound.decide((centre - half, centre + half), higher)
    good = (lambda x: x >= limit) if higher else (lambda x: x <= limit)
    ends = {good(centre - half), good(centre + half)}
    assert outcome == {(True,): "met", (False,): "broken"}.get(tuple(ends), "undecided")


# Samples that would decide ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gained", "lost", "n"), [(20, 25, 1000), (3, 3, 300), (0, 0, 100), (10, 40, 1000)])
@pytest.mark.parametrize("text", ["-1pp", "-2pp"])
def test_so_many_samples_like_these_decide_and_clearly_fewer_do_not(gained: int, lost: int, n: int, text: str) -> None:
    ours, theirs = hits_of(n - gained - lost - 10, gained, lost, 10)
    bound = AccuracyBound.parse(text)
    found = compare(TOP1, ours, theirs, bound)
    assert found.limit is not None
    if found.outcome != "undecided":
        assert found.limit.samples is None
        return
    wanted = found.limit.samples
    assert wanted is not None
    assert wanted > n

    def outcome(samples: float) -> str:
        k = samples / n
        return bound.decide(paired_proportion_interval(k * gained, k * lost, k * n), higher_is_better=True)

    # Two digits are told, rounded up: a tenth at most.
    assert outcome(wanted) == found.limit.estimate != "undecided"
    assert outcome(0.89 * wanted) == "undecided"


def test_full_agreement_needs_what_its_closed_form_says() -> None:
    ours, theirs = hits_of(90, 0, 0, 10)
    found = compare(TOP1, ours, theirs, AccuracyBound.parse("-1pp")).limit
    assert found is not None
    assert found.samples == 390  # 381, to two digits


def test_samples_for_a_mean_follow_the_square_root_law() -> None:
    values = np.random.default_rng(3).normal(0.0, 1.0, 400)
    ours, theirs = Score(float(values.mean()), 400, values), Score(0.0, 400, np.zeros(400))
    low, high = mean_interval(float(values.mean()), values) or (0.0, 0.0)
    room = (high - low) / 2 / 3
    bound = AccuracyBound.parse(f"{float(values.mean()) + room:+.6f}")
    found = compare(MAE, ours, theirs, bound)
    assert found.outcome == "undecided"
    assert found.limit is not None
    assert found.limit.samples is not None
    # Nine times as many, to two digits.
    assert 3600 <= found.limit.samples <= 3700


def test_an_estimate_on_the_limit_is_never_decided() -> None:
    ours, theirs = hits_of(880, 10, 20, 90)
    found = compare(TOP1, ours, theirs, AccuracyBound.parse("-1pp"))
    assert (found.outcome, found.limit and found.limit.samples) == ("undecided", None)


def test_what_is_known_of_a_limit() -> None:
    ours, theirs = hits_of(880, 10, 20, 90)
    assert compare(TOP1, ours, theirs, None).limit is None
    relative = compare(TOP1, ours, None, AccuracyBound.parse("-1pp")).limit
    assert relative is not None
    assert (relative.relative, relative.slack, relative.estimate) == (True, 0.01, "met")
    absolute = compare(TOP1, ours, theirs, AccuracyBound.parse("95%")).limit
    assert absolute is not None
    assert (absolute.relative, absolute.slack, absolute.estimate) == (False, 0.0, "broken")
