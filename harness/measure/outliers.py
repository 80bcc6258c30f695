"""Counts of outliers. They are reported, never dropped: a model that is sometimes slow is a slow model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RESOLUTION = 0.005
"""Smallest interquartile range, as a share of the median: where a clock's tick is all the spread there is, one tick
more is no outlier."""


@dataclass(frozen=True)
class OutlierCounts:
    """By Tukey's fences: mild beyond 1.5, severe beyond 3 interquartile ranges from the quartiles."""

    mild: int
    severe: int
    n: int

    def __add__(self, other: OutlierCounts) -> OutlierCounts:
        return OutlierCounts(self.mild + other.mild, self.severe + other.severe, self.n + other.n)

    @property
    def severe_share(self) -> float:
        return self.severe / self.n if self.n else 0.0


def count_outliers(samples: npt.NDArray[np.int64] | npt.NDArray[np.float64]) -> OutlierCounts:
    """Of one block, [n] nanoseconds; per block, so that a level that moved between blocks is not an outlier."""
    if len(samples) < 5:
        return OutlierCounts(0, 0, len(samples))
    first, median, third = (float(q) for q in np.quantile(samples, (0.25, 0.5, 0.75)))
    spread = max(third - first, RESOLUTION * median)
    distance = np.maximum(first - samples, samples - third)
    severe = int(np.count_nonzero(distance > 3 * spread))
    return OutlierCounts(int(np.count_nonzero(distance > 1.5 * spread)) - severe, severe, len(samples))
