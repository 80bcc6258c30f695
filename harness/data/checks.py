"""What can be said about calibration and evaluation data before any board is touched."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.data.dataset import Dataset
from harness.data.metric import Metric
from harness.data.stored import Array
from harness.errors import DataError
from harness.tensors import TensorSpec

FEW_CALIBRATION_SAMPLES = 32
"""Below, min-max and percentile ranges still move visibly with the sample; backends' guides name 100 to 1000."""
RANGE_NOTICE_FACTOR = 2.0
RANGE_ERROR_FACTOR = 50.0
"""Between the two sets' amplitudes. Data that differ this much are of different scales (0..255 against 0..1 is 255),
never of different content; ImageNet's mean and std applied to one set only is a factor of 2.6, hence a notice."""
OUTSIDE_NOTICE_SHARE = 0.01
_QUANTILES = (0.001, 0.999)
_VALUES = 1_000_000
"""Values looked at per input, evenly taken."""
_ROWS = 20_000
"""Samples compared for being in both sets."""


def check_data(
    calib: Dataset, evaluation: Dataset, inputs: Sequence[TensorSpec], metrics: Sequence[Metric]
) -> tuple[str, ...]:
    """Everything the user should be told about the two sets, the notices of reading them included, each once.

    Raises :class:`DataError` where the calibration set cannot be meant for this evaluation set: an input whose ranges
    are disjoint or whose amplitudes differ :data:`RANGE_ERROR_FACTOR` times, or that is constant in calibration alone.
    Ranges are the 0.1 % and 99.9 % quantiles, so that single outliers decide nothing.
    """
    notices = [*calib.notices, *evaluation.notices]
    if len(calib) < FEW_CALIBRATION_SAMPLES:
        notices.append(f"only {len(calib)} calibration samples: activation ranges will be unreliable; give 100 or more")
    for spec in inputs:
        ours, theirs = calib.inputs[spec.name], evaluation.inputs[spec.name]
        # Wide integers are ids and masks: their size means nothing.
        if ours.dtype.kind == "f" or ours.dtype.itemsize == 1:
            notices += _compare_ranges(spec.name, ours, theirs, calib.origin)
    notices += _compare_classes(calib, evaluation)
    notices += _overlap(calib, evaluation)
    if evaluation.labels is not None and metrics and all(m.facts.versus_float for m in metrics):
        notices.append("the evaluation set has labels, but no metric asked for uses them")
    return tuple(dict.fromkeys(notices))


@dataclass(frozen=True)
class _Range:
    low: float
    """0.1 % quantile."""
    high: float
    """99.9 % quantile."""

    @classmethod
    def of(cls, values: Array) -> _Range:
        low, high = np.quantile(values, _QUANTILES)
        return cls(float(low), float(high))

    @property
    def amplitude(self) -> float:
        return max(abs(self.low), abs(self.high))

    def __str__(self) -> str:
        return f"{self.low:.4g}..{self.high:.4g}"


def _compare_ranges(name: str, calib: Array, evaluation: Array, origin: str) -> list[str]:
    seen, used = _sampled(calib), _sampled(evaluation)
    ours, theirs = _Range.of(seen), _Range.of(used)
    both = f"input {name!r} is {ours} in the calibration set and {theirs} in the evaluation set"
    if ours == theirs:
        return []
    small, large = sorted((ours.amplitude, theirs.amplitude))
    factor = large / small if small > 0 else float("inf")
    if ours.low == ours.high:
        raise DataError(f"{both}: it is constant there", where=origin, hint="Calibrate on real samples.")
    disjoint = ours.high < theirs.low or theirs.high < ours.low
    if disjoint or (factor >= RANGE_ERROR_FACTOR and theirs.low < theirs.high):
        hint = "Give both sets the same preprocessing."
        if 200 <= factor <= 300:
            hint = "One looks scaled by 1/255 and the other not. " + hint
        raise DataError(f"{both}: these cannot be the same kind of data", where=origin, hint=hint)
    outside = float(np.mean((used < seen.min()) | (used > seen.max())))
    if outside > OUTSIDE_NOTICE_SHARE:
        return [f"{both}: {100 * outside:.1f} % of the evaluation values lie outside what calibration sees"]
    if factor >= RANGE_NOTICE_FACTOR:
        return [f"{both}: the amplitudes differ {factor:.1f} times"]
    return []


def _sampled(array: Array) -> np.ndarray[Any, np.dtype[np.float64]]:
    """At most about a million values as float64, taken evenly by rows and then within them."""
    rows = array[:: max(1, len(array) // 4_096)]
    flat = rows.reshape(-1)
    # An odd step does not stay on one channel of an image whose sizes are even.
    step = max(1, flat.size // _VALUES) | 1
    return flat[::step].astype(np.float64)


def _compare_classes(calib: Dataset, evaluation: Dataset) -> list[str]:
    ours, theirs = calib.labels, evaluation.labels
    if ours is None or theirs is None or ours.dtype.kind not in "iu" or theirs.dtype.kind not in "iu":
        return []
    if ours.ndim != 1 or theirs.ndim != 1:
        return []
    missing = np.setdiff1d(theirs, ours)
    if not missing.size:
        return []
    shown = ", ".join(map(str, missing[:5])) + (", …" if missing.size > 5 else "")
    return [f"the calibration set has no sample of {missing.size} of the evaluation set's classes ({shown})"]


def _overlap(calib: Dataset, evaluation: Dataset) -> list[str]:
    if calib.inputs is evaluation.inputs:
        return []  # one set for both by the caller's decision
    ours, theirs = _row_digests(calib), _row_digests(evaluation)
    if ours == theirs:
        return ["the calibration set is also the evaluation set: accuracy may come out too good"]
    shared = len(ours & theirs)
    if not shared:
        return []
    return [f"{shared} sample(s) of the evaluation set are in the calibration set too: accuracy may come out too good"]


def _row_digests(data: Dataset) -> set[bytes]:
    names = sorted(data.inputs)
    digests = set()
    for row in range(min(len(data), _ROWS)):
        total = hashlib.blake2b(digest_size=16)
        for name in names:
            total.update(np.ascontiguousarray(data.inputs[name][row]).tobytes())
        digests.add(total.digest())
    return digests
