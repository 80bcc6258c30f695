"""Signs that the board changed while it was measured."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

CHUNKS = 60
"""A block is cut into at most so many runs of samples; their medians carry the slope. Keeps pairs at 1,770."""
MIN_CHUNKS = 12
"""Fewest points with which Kendall's test can be significant at :data:`SIGNIFICANCE`."""
SIGNIFICANCE = 4.0
"""Standard normal score a trend must exceed: about 6 in 100,000, as every block is tested."""


def level_change(first: npt.NDArray[np.int64], last: npt.NDArray[np.int64], threshold: float) -> tuple[float, bool]:
    """Relative change of the median from the first to the last block, and whether it is drift.

    Drift is a change above ``threshold`` that is also above three standard errors of the difference, so that the
    noise of a short block alone is not taken for drift.
    """
    before, after = float(np.median(first)), float(np.median(last))
    change = after / before - 1.0
    error = math.hypot(_median_error(first) / before, _median_error(last) / before)
    return change, abs(change) > threshold and abs(change) > 3 * error


def _median_error(samples: npt.NDArray[np.int64]) -> float:
    """Standard error of the median from the interquartile range, as of a normal distribution."""
    first, third = np.quantile(samples, (0.25, 0.75))
    return float(1.2533 * (third - first) / 1.349 / math.sqrt(len(samples)))


def slope_change(samples: npt.NDArray[np.int64], threshold: float) -> tuple[float, bool]:
    """Relative change across a block by the Theil-Sen slope, and whether it is drift.

    Drift is a change above ``threshold`` whose trend is significant by Kendall's test; a block too short for the test
    has none. Returns (0.0, False) there.
    """
    points = _chunk_medians(samples)
    n = len(points)
    if n < MIN_CHUNKS:
        return 0.0, False
    i, j = np.triu_indices(n, k=1)
    differences = points[j] - points[i]
    slope = float(np.median(differences / (j - i)))
    change = slope * (n - 1) / float(np.median(points))
    score = float(np.sign(differences).sum())
    deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18.0)
    return change, abs(change) > threshold and abs(score) > SIGNIFICANCE * deviation


def _chunk_medians(samples: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    count = min(CHUNKS, len(samples))
    if count == len(samples):
        return samples.astype(np.float64)
    return np.array([np.median(part) for part in np.array_split(samples, count)])
