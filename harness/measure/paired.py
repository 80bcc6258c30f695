"""Accuracy against the float model on the same samples: intervals, bounds, and what they decide.

A constraint on accuracy is decided on an interval, never on a point: *met* where the whole interval is on the good
side of the bound, *broken* where the whole interval is on the bad side, *undecided* otherwise.

Methods:

- paired proportions (top-k): the asymptotic score interval of Tango, "Equivalence test and confidence interval for
  the difference in proportions for the paired-sample design", Statistics in Medicine 17 (1998) 891-908, equations
  (24)-(26); it keeps its coverage at few or no discordant pairs, where Wald's interval collapses to a point;
- a single proportion: Wilson's score interval (JASA 22 (1927) 209-212);
- means of other per-sample numbers and jackknife pseudo-values: Student's t on paired differences (Tukey 1958 for
  the pseudo-values).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtri, stdtrit

from harness.data.score import MetricFacts, Score
from harness.errors import ConfigError
from harness.measure.enough import Interval, samples_to_decide
from harness.results import LimitStanding, MetricResult, Outcome

CONFIDENCE = 0.95

_BOUND = re.compile(
    r"\s*(?:(?P<metric>[^<>=\s]*)\s*(?P<operator>>=|<=)\s*)?"
    r"(?P<sign>[+\-−])?(?P<number>\d+(?:\.\d*)?(?:[eE][+\-]?\d+)?|\.\d+)\s*(?P<unit>pp|%|dB)?\s*"
)
_FORMS = (
    "use -0.5pp (percentage points against float), -0.01 (against float, in the metric's unit), 90% or 0.9, snr>=20dB"
)


@dataclass(frozen=True)
class AccuracyBound:
    """What accuracy a candidate must keep. Make one with :meth:`parse`."""

    text: str
    """As the user wrote it."""
    relative: bool
    """True: bounds the paired difference to float; False: bounds the value."""
    value: float
    """In the metric's unit (percentage points and percent already divided by 100)."""
    unit: str = ""
    """As written: ``pp``, ``%``, ``dB`` or empty."""
    metric: str | None = None
    """Metric it is about; ``None`` for the first one."""
    operator: str | None = None
    """``>=`` or ``<=`` if written; otherwise the metric's own direction."""

    @classmethod
    def parse(cls, text: str) -> AccuracyBound:
        """Reads a bound; raises :class:`ConfigError` that lists the forms.

        - ``-0.5pp``: at most half a percentage point under float (only for metrics that are fractions);
        - ``-0.01``, ``+0.02``: a signed number is the worst allowed difference to float, in the metric's own unit;
        - ``0.9``, ``90%``, ``20dB``: an unsigned number is a bound on the value itself;
        - ``METRIC>=VALUE``, ``METRIC<=VALUE``: the same, about a named metric.

        A signed percent is refused: it may mean points or a share of float's accuracy.
        """
        match = _BOUND.fullmatch(text)
        if match is None:
            raise ConfigError(f"{text!r} is not an accuracy bound", hint=_FORMS)
        sign, unit = match["sign"] or "", match["unit"] or ""
        number = float(match["number"])
        if not math.isfinite(number):
            raise ConfigError(f"the accuracy bound {text!r} is not a finite number", hint=_FORMS)
        if sign and unit == "%":
            raise ConfigError(
                f"the accuracy bound {text!r} is ambiguous: percentage points, or a share of float's accuracy?",
                hint=f"Write {sign}{match['number']}pp for percentage points.",
            )
        if unit == "pp" and not sign and number:
            raise ConfigError(
                f"the accuracy bound {text!r} has no sign",
                hint=f"Write -{match['number']}pp for at most {match['number']} points under float.",
            )
        value = number / 100 if unit in {"pp", "%"} else number
        return cls(
            text=text.strip(),
            relative=bool(sign) or unit == "pp",
            value=-value if sign in {"-", "−"} else value,
            unit=unit,
            metric=match["metric"] or None,
            operator=match["operator"],
        )

    def check(self, facts: MetricFacts) -> None:
        """Raises :class:`ConfigError` where the bound does not fit the metric."""
        about = f"the accuracy bound {self.text!r} does not fit the metric {facts.name!r}"
        direction = ">=" if facts.higher_is_better else "<="
        if self.operator is not None and self.operator != direction:
            better = "higher" if facts.higher_is_better else "lower"
            raise ConfigError(f"{about}: {better} is better there", hint=f"Use {direction}.")
        if self.unit in {"pp", "%"} and facts.unit != "fraction":
            raise ConfigError(
                f"{about}: it is not a fraction", hint="Give the bound in the metric's own unit, without pp or %."
            )
        if self.unit == "dB" and facts.unit != "dB":
            raise ConfigError(f"{about}: it is not in decibels", hint="Leave out dB.")
        if self.relative and facts.versus_float:
            raise ConfigError(
                f"{about}: it already compares with the float model, so there is no difference to bound",
                hint=f"Bound its value, for example {facts.name}{direction}{_example(facts)}.",
            )
        if facts.unit == "fraction" and not self.relative and not 0 <= self.value <= 1:
            raise ConfigError(f"{about}: it lies in 0..1", hint=f"Did you mean {self.value:g}%?")
        if facts.unit == "fraction" and self.relative and not -1 <= self.value <= 1:
            raise ConfigError(f"{about}: a difference lies in -1..1", hint=f"Did you mean {self.value:+g}pp?")

    def fewest_samples(self, facts: MetricFacts, confidence: float = CONFIDENCE) -> int | None:
        """Samples below which even a candidate that agrees with float on every one stays undecided.

        Closed form of Tango's interval without discordant pairs, ±z²/(n + z²); for an absolute bound Wilson's at
        n of n, n/(n + z²). ``None`` for metrics that are not proportions, or where no number suffices.
        """
        if facts.kind != "proportion":
            return None
        z2 = float(ndtri((1 + confidence) / 2)) ** 2
        if self.relative:
            return None if self.value >= 0 else math.ceil(z2 * (1 + self.value) / -self.value)
        return None if self.value >= 1 else math.ceil(z2 * self.value / (1 - self.value))

    def sample_notice(self, facts: MetricFacts, samples: int, confidence: float = CONFIDENCE) -> str | None:
        """What to tell the user where ``samples`` cannot decide the bound in a candidate's favour; else ``None``."""
        if facts.kind != "proportion":
            return None
        need = self.fewest_samples(facts, confidence)
        if need is None:
            return f"{self.text} can never be shown for {facts.name}: no finite number of samples proves it"
        if samples >= need:
            return None
        return (
            f"{samples} samples are too few to show {self.text} for {facts.name}, even for a candidate that agrees "
            f"with float on all of them: give at least {need}, or a wider bound"
        )

    def decide(self, interval: Interval | None, higher_is_better: bool) -> Outcome:
        """Outcome on the interval of the difference (relative) or of the value; a value on the bound keeps it."""
        if interval is None:
            return "undecided"
        low, high = interval
        if not higher_is_better:
            low, high, limit = -high, -low, -self.value
        else:
            limit = self.value
        if low >= limit:
            return "met"
        return "broken" if high < limit else "undecided"


DEFAULT_PROPORTION_BOUND = AccuracyBound.parse("-1pp")


def default_bound(facts: MetricFacts) -> AccuracyBound | None:
    """``-1pp`` for proportions against labels (top-k); no bound for anything else, as its scale is unknown here."""
    return DEFAULT_PROPORTION_BOUND if facts.kind == "proportion" and not facts.versus_float else None


def compare(
    metric: MetricFacts,
    score: Score,
    float_score: Score | None,
    bound: AccuracyBound | None,
    confidence: float = CONFIDENCE,
) -> MetricResult:
    """Compares a candidate with float on the same samples and decides the bound.

    ``float_score`` is ``None`` for the float model itself (its difference is none, and a relative bound is decided on
    an exact zero). ``ci95`` is the interval of the difference, or of the value where there is no difference (the float
    model, and metrics that already compare with float). An absolute bound is decided on the value's interval, which
    is in ``extras["value_ci95"]``. Where no interval is known a bound is ``undecided``.

    Raises :class:`ConfigError` if the bound does not fit the metric, ``ValueError`` if the scores are of different
    samples or not finite.
    """
    if bound is not None:
        bound.check(metric)
    for each in (score, float_score):
        if each is not None and not math.isfinite(each.value):
            raise ValueError(f"{metric.name}: the score {each.value} is not finite")
    value_interval = _value_interval(metric, score, confidence)
    paired = not metric.versus_float and float_score is not None
    difference: float | None = None
    interval = value_interval
    if paired and float_score is not None:
        difference = score.value - float_score.value
        interval = _difference_interval(metric, score, float_score, confidence)
    limit: LimitStanding | None = None
    outcome: Outcome = "none"
    if bound is not None:
        decisive = value_interval
        if bound.relative:
            decisive = interval if paired else (0.0, 0.0)
        outcome = bound.decide(decisive, metric.higher_is_better)
        limit = _standing(metric, bound, score, float_score if paired else None, decisive, outcome)
    return MetricResult(
        value=score.value,
        difference=difference,
        ci95=interval,
        outcome=outcome,
        n=score.n,
        higher_is_better=metric.higher_is_better,
        extras={
            **score.extras,
            "method": _method(metric, paired) if interval is not None else None,
            "value_ci95": None if value_interval is None else list(value_interval),
        },
        unit=metric.unit,
        limit=limit,
    )


def _standing(
    metric: MetricFacts,
    bound: AccuracyBound,
    score: Score,
    reference: Score | None,
    interval: Interval | None,
    outcome: Outcome,
) -> LimitStanding:
    """``reference`` is ``None`` where there is no difference: for float itself, and metrics that compare with float;
    ``interval`` is the one that the bound was decided on."""
    estimate = score.value
    if bound.relative:
        estimate = 0.0 if reference is None else score.value - reference.value
    samples = None
    if outcome == "undecided" and interval is not None:
        samples = samples_to_decide(
            score.n,
            lambda found: bound.decide(found, metric.higher_is_better) != "undecided",
            _projected(metric, bound, score, reference, estimate, interval),
        )
    return LimitStanding(
        text=bound.text,
        relative=bound.relative,
        slack=abs(bound.value) if bound.relative else 0.0,
        estimate=bound.decide((estimate, estimate), metric.higher_is_better),
        samples=samples,
    )


def _projected(
    metric: MetricFacts,
    bound: AccuracyBound,
    score: Score,
    reference: Score | None,
    estimate: float,
    interval: Interval,
) -> Callable[[float], Interval]:
    """The interval that so many times as many samples would give, were they like those at hand."""
    if metric.kind != "proportion" or score.per_sample is None:
        low, high = interval
        return lambda k: (estimate - (estimate - low) / math.sqrt(k), estimate + (high - estimate) / math.sqrt(k))
    ours, n = score.per_sample != 0, score.per_sample.size
    if not bound.relative or reference is None or reference.per_sample is None:
        right = int(np.count_nonzero(ours))
        return lambda k: wilson_interval(k * right, k * n)
    theirs = reference.per_sample != 0
    gained, lost = int(np.count_nonzero(ours & ~theirs)), int(np.count_nonzero(~ours & theirs))
    return lambda k: paired_proportion_interval(k * gained, k * lost, k * n)


def paired_proportion_interval(
    only_candidate: float, only_float: float, n: float, confidence: float = CONFIDENCE
) -> Interval:
    """Tango's score interval of (only_candidate - only_float) / n, from the discordant counts among n pairs.

    Counts need not be whole: scaled, they are what as many more samples would be expected to give. Raises
    ``ValueError`` if the counts are not those of a paired table.
    """
    b, c = only_candidate, only_float
    if n < 1 or b < 0 or c < 0 or b + c > n:
        raise ValueError(f"not a paired table: {b} and {c} discordant among {n}")
    z = _z(confidence)
    return -_upper_limit(c, b, n, z), _upper_limit(b, c, n, z)


def wilson_interval(successes: float, n: float, confidence: float = CONFIDENCE) -> Interval:
    """Wilson's score interval of successes / n. Raises ``ValueError`` for impossible counts."""
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"not a proportion: {successes} of {n}")
    z = _z(confidence)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # At the ends the limit is exactly 0 or 1; rounding must not push the estimate out of its interval.
    return (0.0 if successes == 0 else max(0.0, centre - half)), (1.0 if successes == n else min(1.0, centre + half))


def mean_interval(centre: float, values: npt.NDArray[np.float64], confidence: float = CONFIDENCE) -> Interval | None:
    """Student's t interval around ``centre`` with the standard error of the mean of ``values`` (float64 [n]).

    ``None`` from fewer than two values.
    """
    if values.size < 2:
        return None
    error = float(np.std(values, ddof=1)) / math.sqrt(values.size)
    half = float(stdtrit(values.size - 1, (1 + confidence) / 2)) * error
    return centre - half, centre + half


def _value_interval(metric: MetricFacts, score: Score, confidence: float) -> Interval | None:
    if score.per_sample is None:
        return None
    if metric.kind == "proportion":
        return wilson_interval(int(np.count_nonzero(score.per_sample)), score.per_sample.size, confidence)
    return mean_interval(score.value, score.per_sample, confidence)


def _difference_interval(metric: MetricFacts, score: Score, reference: Score, confidence: float) -> Interval | None:
    if score.n != reference.n:
        raise ValueError(
            f"{metric.name}: {score.n} samples against {reference.n}; a paired comparison needs the same samples"
        )
    if score.per_sample is None or reference.per_sample is None:
        return None
    if score.per_sample.shape != reference.per_sample.shape:
        raise ValueError(
            f"{metric.name}: per-sample scores of shape {score.per_sample.shape} and {reference.per_sample.shape}"
        )
    if metric.kind == "proportion":
        ours, theirs = score.per_sample != 0, reference.per_sample != 0
        return paired_proportion_interval(
            int(np.count_nonzero(ours & ~theirs)), int(np.count_nonzero(~ours & theirs)), ours.size, confidence
        )
    return mean_interval(score.value - reference.value, score.per_sample - reference.per_sample, confidence)


def _upper_limit(b: float, c: float, n: float, z: float) -> float:
    """The difference above (b - c) / n at which Tango's statistic falls to -z."""
    centre = (b - c) / n
    if centre == 1.0:
        return 1.0
    statistic = _tango(b, c, n)
    # The statistic is 0 at the centre (0 / 0 there without discordant pairs) and falls to -infinity towards 1.
    end = math.nextafter(1.0, 0.0)
    return float(brentq(lambda d: z if d == centre else statistic(d) + z, centre, end, xtol=1e-14, maxiter=500))


def _tango(b: float, c: float, n: float) -> Callable[[float], float]:
    """Score statistic of the hypothesis that the difference is d: Tango (1998) (24)-(26) at Delta = -d."""

    def statistic(d: float) -> float:
        linear = -(b + c) + (2 * n - b + c) * d
        constant = -c * d * (1 - d)
        # Restricted maximum-likelihood estimate of the probability that only float is right.
        q = (math.sqrt(max(0.0, linear * linear - 8 * n * constant)) - linear) / (4 * n)
        variance = n * (2 * q + d * (1 - d))
        numerator = b - c - n * d
        return numerator / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, numerator)

    return statistic


def _z(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    return float(ndtri((1 + confidence) / 2))


def _method(metric: MetricFacts, paired: bool) -> str:
    if metric.kind == "proportion":
        return "tango" if paired else "wilson"
    if metric.kind == "blackbox":
        return "paired-jackknife" if paired else "jackknife"
    return "paired-t" if paired else "t"


def _example(facts: MetricFacts) -> str:
    return "20dB" if facts.unit == "dB" else "0.99" if facts.higher_is_better else "0.1"
