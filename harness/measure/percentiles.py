"""High percentiles, given only where the samples can carry them.

The rule is MLPerf LoadGen's early stopping (``loadgen/early_stopping.cc``; tolerance 0, confidence 99 %): with t of
n samples above a bound, the p-th percentile is below it at that confidence if Binom-CDF(t; n, 1 - p) <= 1 - c.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr

CONFIDENCE = 0.99
PERCENTILES = (0.90, 0.95, 0.99)


@lru_cache(maxsize=256)
def minimum_samples(percentile: float, over: int = 1, confidence: float = CONFIDENCE) -> int:
    """Smallest n with Binom-CDF(over; n, 1 - percentile) <= 1 - confidence: 64, 130, 662 for p90, p95, p99."""
    if not 0 < percentile < 1 or not 0 < confidence < 1 or over < 0:
        raise ValueError(f"percentile {percentile} and confidence {confidence} must be in (0, 1), over {over} >= 0")
    low, high = over, max(2 * over, 2)
    while bdtr(over, high, 1 - percentile) > 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if bdtr(over, middle, 1 - percentile) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def largest_over(n: int, percentile: float, confidence: float = CONFIDENCE) -> int:
    """Most samples that may lie above the bound with n samples; 0 if n is below :func:`minimum_samples`."""
    if n < minimum_samples(percentile, 1, confidence):
        return 0
    low, high = 1, n
    while high - low > 1:
        middle = (low + high) // 2
        if bdtr(middle, n, 1 - percentile) <= 1 - confidence:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True)
class Percentile:
    value: float
    """Empirical quantile (linear interpolation)."""
    upper: float
    """LoadGen's conservative estimate: the true percentile is below it at 99 % confidence."""


def percentile_of(samples: npt.NDArray[np.float64], percentile: float) -> Percentile | None:
    """``None`` below the minimum number of samples. ``samples``: [n], any order."""
    over = largest_over(len(samples), percentile)
    if over == 0:
        return None
    ordered = np.sort(samples)
    return Percentile(float(np.quantile(ordered, percentile)), float(ordered[len(ordered) - over]))
