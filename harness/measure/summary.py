"""From the blocks of one set to a latency.

Why ``p50`` is what it is: each block's samples are scaled by (canary over the whole set / canary beside the block), so
that what the board did to both is out of them, and the median of all is taken. The interval is on the block ratios,
turned into nanoseconds by the same canary median. The two are different estimators of one level; where a model has two
speeds the median can fall outside, and the interval is then extended to it rather than shown beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.measure.intervals import MIN_BLOCKS, Interval, ratio_interval
from harness.measure.percentiles import PERCENTILES, percentile_of
from harness.measure.record import BlockRecord
from harness.results import LatencyResult


@dataclass(frozen=True)
class Fenced:
    """A candidate block with the canary blocks beside it; none on a board without a canary."""

    block: BlockRecord
    left: BlockRecord | None
    right: BlockRecord | None

    @property
    def fence_ns(self) -> float:
        """Mean of the neighbouring canary medians; 1 without a canary, so that ratios are nanoseconds."""
        medians = [r.median_ns for r in (self.left, self.right) if r is not None]
        return sum(medians) / len(medians) if medians else 1.0

    @property
    def ratio(self) -> float:
        return self.block.median_ns / self.fence_ns


def fence(records: Sequence[BlockRecord], target: str, canary: str) -> list[Fenced]:
    """The target's blocks of one set, each with the nearest canary block before and after it."""
    canaries = [r for r in records if r.target == canary and r.kind == "block"]
    fenced = []
    for record in records:
        if record.target != target or record.kind != "block":
            continue
        left = [c for c in canaries if c.index < record.index]
        right = [c for c in canaries if c.index > record.index]
        fenced.append(Fenced(record, left[-1] if left else None, right[0] if right else None))
    return fenced


def canary_level(records: Sequence[BlockRecord], canary: str) -> float:
    """Median of the canary's block medians, nanoseconds: blocks weigh the same whatever their length. 1 if none."""
    medians = [r.median_ns for r in records if r.target == canary and r.kind == "block"]
    return float(np.median(medians)) if medians else 1.0


def look(fenced: Sequence[Fenced], confidence: float, canaries: Sequence[float] = ()) -> Interval | None:
    """Interval of the ratio to the canary; ``None`` before the third block."""
    if len(fenced) < MIN_BLOCKS:
        return None
    return ratio_interval([f.ratio for f in fenced], confidence, canaries)


def scaled_samples(fenced: Sequence[Fenced], level: float) -> npt.NDArray[np.float64]:
    """All samples of the blocks, [n] nanoseconds, as if the canary had read ``level`` throughout."""
    return np.concatenate([f.block.samples_ns * (level / f.fence_ns) for f in fenced])


def latency_of(fenced: Sequence[Fenced], level: float, interval: Interval) -> tuple[LatencyResult, dict[str, float]]:
    """The latency and, by name, the conservative bounds of its percentiles. ``level`` is 1 without a canary."""
    samples = scaled_samples(fenced, level)
    p50 = float(np.median(samples))
    found = {f"p{p * 100:.0f}": percentile_of(samples, p) for p in PERCENTILES}
    result = LatencyResult(
        p50=p50,
        ci95=(min(p50, interval.low * level), max(p50, interval.high * level)),
        n=len(samples),
        blocks=len(fenced),
        minimum_block_median=min(f.block.median_ns for f in fenced),
        **{name: p.value for name, p in found.items() if p is not None},
    )
    return result, {name: p.upper for name, p in found.items() if p is not None}
