"""What makes a set of blocks worth redoing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.measure.drift import level_change, slope_change
from harness.measure.findings import Finding, Level
from harness.measure.outliers import OutlierCounts, count_outliers
from harness.measure.record import BlockRecord, DriftRecord
from harness.measure.settings import MeasurementSettings


@dataclass(frozen=True)
class SetCheck:
    """Of one set. ``physical`` are facts the board reported, ``statistical`` are read from the samples."""

    physical: tuple[Finding, ...]
    statistical: tuple[Finding, ...]
    drift: DriftRecord

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.physical + self.statistical


def physical_trouble(record: BlockRecord, settings: MeasurementSettings) -> Finding | None:
    """Throttling or a clock below the one asked for, in the readings around one block."""
    # On a machine others use it is a fact about them too, and nobody can be asked to mend it.
    level: Level = "suspect" if settings.noise == "shared" else "invalid"
    if record.before.throttled or record.after.throttled:
        heat = record.after.temperature_c
        at = f" at {heat:.0f} °C" if heat is not None else ""
        return Finding(level, "throttled", f"the board reported throttling{at} during {record.target} blocks")
    # Only the reading after the block: before it the governor may still have been idling.
    clock, wanted = record.after.frequency_khz, settings.min_frequency_khz
    if wanted is not None and clock is not None and clock < wanted:
        return Finding(level, "clock_below_requested", f"clock at {clock} kHz, {wanted} kHz asked for")
    return None


def check_set(records: Sequence[BlockRecord], settings: MeasurementSettings, fence_target: str) -> SetCheck:
    """``records``: the timed blocks of one set. ``fence_target`` is the canary, or the candidate without one."""
    physical = tuple(dict.fromkeys(f for r in records if (f := physical_trouble(r, settings)) is not None))
    level: Level = "notice" if settings.noise == "shared" else "suspect"
    statistical = []
    change = None
    fences = [r for r in records if r.target == fence_target]
    if len(fences) > 1:
        change, drifted = level_change(fences[0].samples_ns, fences[-1].samples_ns, settings.drift_threshold)
        if drifted:
            text = (
                f"{fence_target} went {change:+.1%} from its first to its last block (limit "
                f"{settings.drift_threshold:.0%})"
            )
            statistical.append(Finding(level, "drift", text))
    slopes = [(r.target, *slope_change(r.samples_ns, settings.slope_threshold)) for r in records]
    for target in dict.fromkeys(r.target for r in records):
        trend = _common_trend([(value, found) for name, value, found in slopes if name == target])
        if trend is not None:
            text = f"{target} went {trend:+.1%} within its blocks (limit {settings.slope_threshold:.0%})"
            statistical.append(Finding(level, "slope", text))
    largest = max((value for _, value, _ in slopes), key=abs, default=None)
    drift = DriftRecord(change, largest, bool(physical or statistical))
    return SetCheck(physical, tuple(statistical), drift)


def _common_trend(slopes: Sequence[tuple[float, bool]]) -> float | None:
    """Median of the significant slopes if at least half of a target's blocks, and two, have one in one direction.

    A board that heats under load shows it in every block; noise that wanders slowly shows it in one now and then.
    """
    for sign in (1, -1):
        same = [value for value, significant in slopes if significant and value * sign > 0]
        if len(same) >= 2 and 2 * len(same) >= len(slopes):
            return float(np.median(same))
    return None


def outliers_of(records: Sequence[BlockRecord], target: str) -> OutlierCounts:
    total = OutlierCounts(0, 0, 0)
    for record in records:
        if record.target == target and record.kind == "block":
            total += count_outliers(record.samples_ns)
    return total


def outlier_trouble(counts: OutlierCounts, settings: MeasurementSettings) -> Finding | None:
    if counts.severe_share <= settings.severe_outlier_share:
        return None
    text = (
        f"{counts.severe} of {counts.n} samples beyond Tukey's outer fences (limit "
        f"{settings.severe_outlier_share:.0%}); all are kept"
    )
    return Finding("notice" if settings.noise == "shared" else "suspect", "severe_outliers", text)


def sample_trouble(samples: object) -> str:
    """Why raw samples cannot be used; empty if they can: a non-empty row of positive integers."""
    array = np.asarray(samples)
    if array.ndim != 1 or array.size == 0:
        return f"samples have shape {list(array.shape)}, a non-empty row is needed"
    if array.dtype.kind not in "iuf":
        return f"samples are {array.dtype}, integers are needed"
    if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
        return "a sample is not a number"
    if not np.all(array > 0):
        return f"a sample is {array.min()} ns, times are positive"
    return ""
