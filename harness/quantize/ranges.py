"""Activation ranges from calibration statistics: pure functions, one per calibration method."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from harness.quantize.statistics import ActivationStatistics, Histogram
from harness.recipes.axes import BITS
from harness.recipes.recipe import Recipe

KL_LEVELS = 128
"""Quantized bins of the Kullback-Leibler search (TensorRT, GTC 2017 S7310; ONNX Runtime's default)."""
KL_BINS = 2048
"""Bins the search starts from (TensorRT). ONNX Runtime starts from 128, which leaves it no choice but min-max."""
KL_VALUES_PER_BIN = 64
"""Activations with fewer values than this many for each bin are searched in fewer bins, down to :data:`KL_LEVELS`.

Divergences of counts that are mostly noise (1/√64 of a bin is an eighth) are least where next to everything is cut:
with 2048 bins for 4000 values, graphs of 30 to 40 dB end below 15."""
KL_THRESHOLDS = 120
"""Thresholds tried at most, besides the whole range."""
MSE_STEPS = 100
"""Clipping candidates per side."""
PERCENTILES = (99.0, 99.9, 99.99, 99.999, 100.0)
"""Candidates for each activation."""
_FINEST = 12
"""Bits from which 8192 histogram bins no longer resolve a quantization step: clipping cannot be judged, and does not
matter."""

RANGES_VERSION = 2
"""Raised when a method gives other ranges for the same statistics."""

Range = tuple[float, float]


def takes_long(recipe: Recipe) -> bool:
    """Whether ranges are searched for, which takes milliseconds per activation."""
    return recipe.calibration.method in ("entropy", "mse", "layerwise_percentile") and BITS[recipe.activation] < _FINEST


def ranges_for(recipe: Recipe, statistics: Mapping[str, ActivationStatistics]) -> dict[str, Range]:
    """(lowest, highest) per activation for a static recipe."""
    return {name: range_for(recipe, stats) for name, stats in statistics.items()}


def range_for(recipe: Recipe, stats: ActivationStatistics) -> Range:
    """The range one activation is quantized over, within what was observed."""
    bits = BITS[recipe.activation]
    symmetric = bool(recipe.activation_symmetric)
    histogram = stats.histogram
    method = recipe.calibration.method
    if method == "minmax" or histogram is None or bits >= _FINEST:
        return stats.lowest, stats.highest
    if method == "percentile":
        low, high = percentile_range(histogram, recipe.calibration.percentile or 100.0, symmetric)
    elif method == "layerwise_percentile":
        low, high = layerwise_percentile_range(histogram, (stats.lowest, stats.highest), bits, symmetric)
    elif method == "entropy":
        bins = kl_bins(histogram)
        threshold = entropy_threshold(rebinned(histogram, bins), stride=max(1, bins // (2 * KL_THRESHOLDS)))
        low, high = -threshold, threshold
    elif method == "mse":
        find = power_of_two_mse_range if recipe.scale == "power_of_two" else mse_range
        low, high = find(histogram, (stats.lowest, stats.highest), bits, symmetric)
    else:
        low, high = laplace_range(histogram, bits)
    low, high = max(low, stats.lowest), min(high, stats.highest)
    # A clipped range that no longer holds what was seen (all values on one side) is no range.
    return (low, high) if low < high else (stats.lowest, stats.highest)


def percentile_range(histogram: Histogram, percentile: float, symmetric: bool) -> Range:
    """Keeps ``percentile`` % of the values: half of the rest is cut on each side, or the largest magnitudes if
    symmetric. As ONNX Runtime's ``PercentileCalibrater``, to the width of a bin."""
    counts, edges = histogram.counts, histogram.edges
    if symmetric:
        half = len(counts) // 2
        magnitudes = counts[half:] + counts[:half][::-1]
        share = np.cumsum(magnitudes) / magnitudes.sum()
        edge = float(edges[half + int(np.searchsorted(share, percentile / 100.0))])
        return -edge, edge
    share = np.cumsum(counts) / counts.sum()
    cut = (100.0 - percentile) / 200.0
    low = edges[int(np.searchsorted(share, cut))]
    high = edges[min(int(np.searchsorted(share, 1.0 - cut)), len(edges) - 1)]
    return float(low), float(high)


def layerwise_percentile_range(histogram: Histogram, observed: Range, bits: int, symmetric: bool) -> Range:
    """Of :data:`PERCENTILES`, the one whose range has the least mean square error for this activation."""
    filled = histogram.counts > 0
    values, weights = histogram.centers[filled], histogram.counts[filled].astype(np.float64)
    candidates = []
    for percentile in PERCENTILES:
        low, high = percentile_range(histogram, percentile, symmetric)
        candidates.append((min(max(low, observed[0]), 0.0), max(min(high, observed[1]), 0.0)))
    return _least(values, weights, candidates, bits)


def kl_bins(histogram: Histogram) -> int:
    """Bins of the Kullback-Leibler search: a power of two from :data:`KL_LEVELS` to :data:`KL_BINS`, as many as there
    are values for (see :data:`KL_VALUES_PER_BIN`)."""
    values = int(histogram.counts.sum())
    enough = max(values // KL_VALUES_PER_BIN, KL_LEVELS)
    return min(1 << (enough.bit_length() - 1), KL_BINS)


def rebinned(histogram: Histogram, bins: int) -> Histogram:
    """With fewer bins; ``bins`` divides the histogram's."""
    merged = histogram.counts.reshape(bins, -1).sum(axis=1)
    return Histogram(merged, histogram.half_width)


def entropy_threshold(histogram: Histogram, levels: int = KL_LEVELS, stride: int = 1) -> float:
    """The magnitude to clip at that loses least information (Kullback-Leibler), as ONNX Runtime's
    ``get_entropy_threshold`` with the histogram's own bins and ``stride`` 1."""
    counts, edges = histogram.counts, histogram.edges
    zero = len(counts) // 2
    best, threshold = math.inf, float(edges[-1])
    for half in range(levels // 2, zero + 1, stride):
        start, end = zero - half, min(zero + half + 1, len(counts))
        divergence = _divergence(counts, start, end, levels)
        if divergence < best:
            best, threshold = divergence, float(edges[end])
    return threshold


def _divergence(counts: npt.NDArray[np.int64], start: int, end: int, levels: int) -> float:
    kept = counts[start:end]
    reference = kept.copy()
    reference[0] += counts[:start].sum()
    reference[-1] += counts[end:].sum()
    width = len(kept) // levels
    merged = kept[: levels * width].reshape(levels, width).sum(axis=1)
    merged[-1] += kept[levels * width :].sum()
    filled = (reference[: levels * width] != 0).reshape(levels, width)
    per_bin = merged // np.maximum(filled.sum(axis=1), 1) * (filled.any(axis=1))
    expanded = np.zeros(len(kept), dtype=np.int64)
    # As the published algorithm's code: integer counts, spread over all bins of a level that holds any.
    expanded[: levels * width] = np.repeat(per_bin, width)
    smooth_reference, smooth_expanded = _smooth(reference), _smooth(expanded)
    if smooth_reference is None or smooth_expanded is None:
        return math.inf
    p = smooth_reference / smooth_reference.sum()
    q = smooth_expanded / smooth_expanded.sum()
    positive = p > 0
    if (q[positive] <= 0).any():
        return math.inf
    return float(np.sum(p[positive] * np.log(p[positive] / q[positive])))


def _smooth(counts: npt.NDArray[np.int64], epsilon: float = 1e-4) -> npt.NDArray[np.float64] | None:
    """Moves a little of the filled bins into the empty ones (MXNet's ``_smooth_distribution``)."""
    empty = counts == 0
    zeros = int(np.count_nonzero(empty))
    filled = counts.size - zeros
    if not filled:
        return None
    taken = epsilon * zeros / filled
    if taken >= 1.0:
        return None
    return np.where(empty, epsilon, counts.astype(np.float64) - taken)


def mse_range(histogram: Histogram, observed: Range, bits: int, symmetric: bool) -> Range:
    """The range whose quantization has the least mean square error over the histogram."""
    filled = histogram.counts > 0
    values, weights = histogram.centers[filled], histogram.counts[filled].astype(np.float64)
    low, high = min(observed[0], 0.0), max(observed[1], 0.0)
    fractions = np.linspace(1.0 / MSE_STEPS, 1.0, MSE_STEPS)
    if symmetric:
        largest = max(-low, high)
        return _least(values, weights, [(-f * largest, f * largest) for f in fractions], bits)
    # One side, then the other, then the first again: the error is nearly separable in the two ends.
    for _ in range(2):
        low, high = _least(values, weights, [(low, f * max(observed[1], 0.0)) for f in fractions], bits)
        low, high = _least(values, weights, [(f * min(observed[0], 0.0), high) for f in fractions], bits)
    return low, high


def power_of_two_mse_range(histogram: Histogram, observed: Range, bits: int, symmetric: bool) -> Range:
    """As :func:`mse_range` among the ranges whose scale is a power of two."""
    filled = histogram.counts > 0
    values, weights = histogram.centers[filled], histogram.counts[filled].astype(np.float64)
    low, high = min(observed[0], 0.0), max(observed[1], 0.0)
    steps = 2**bits - 1
    width = 2.0 * max(-low, high) if symmetric else high - low
    exponent = math.ceil(math.log2(width / steps)) if width > 0.0 else 0
    candidates: list[Range] = []
    for scale in (2.0 ** (exponent - k) for k in range(bits)):
        reach = scale * (2 ** (bits - 1) - 1)
        candidates.append((-reach, reach) if symmetric else (low, low + scale * steps))
    return _least(values, weights, candidates, bits)


def _least(
    values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], candidates: list[Range], bits: int
) -> Range:
    errors = [_square_error(values, weights, candidate, bits) for candidate in candidates]
    # The widest of equals: a bin's worth of clipping that costs nothing here may cost on other data.
    order = sorted(range(len(candidates)), key=lambda i: (errors[i], candidates[i][0] - candidates[i][1]))
    return candidates[order[0]]


def _square_error(
    values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], candidate: Range, bits: int
) -> float:
    low, high = candidate
    steps = 2**bits - 1
    scale = (high - low) / steps
    if scale <= 0.0:
        return float(np.dot(weights, np.square(values)))
    zero = np.round(-low / scale)
    quantized = np.clip(np.round(values / scale) + zero, 0, steps)
    return float(np.dot(weights, np.square((quantized - zero) * scale - values)))


def laplace_range(histogram: Histogram, bits: int) -> Range:
    """Mean ± the clipping that is optimal for a Laplace distribution of the observed mean deviation.

    Banner et al., "Post training 4-bit quantization of convolutional networks" (NeurIPS 2019): the error
    ``2b²·exp(−α/b) + α²/(3·4^bits)`` is least at ``α = b·W(3·4^bits)``, W being Lambert's function.
    """
    values, weights = histogram.centers, histogram.counts.astype(np.float64)
    mean = float(np.average(values, weights=weights))
    deviation = float(np.average(np.abs(values - mean), weights=weights))
    clip = deviation * lambert_w(3.0 * 4.0**bits)
    return mean - clip, mean + clip


def lambert_w(x: float) -> float:
    """The principal branch for x ≥ e, by Newton's method on ``w + ln w = ln x``."""
    w = math.log(x)
    for _ in range(32):
        step = (w + math.log(w) - math.log(x)) / (1.0 + 1.0 / w)
        w -= step
        if abs(step) < 1e-14 * w:
            break
    return w
