"""How many samples would decide a limit on accuracy that is undecided on those at hand."""

from __future__ import annotations

import math
from collections.abc import Callable

Interval = tuple[float, float]

MOST = 10_000_000
"""Samples beyond which a number says only that the estimate lies on the limit."""
_TOLD = 2
"""Significant digits: the estimate it rests on has hardly more."""


def samples_to_decide(
    n: int, decided: Callable[[Interval], bool], interval_at: Callable[[float], Interval]
) -> int | None:
    """Samples from which ``decided`` holds if the rates seen among ``n`` stay as they are; rounded up.

    ``interval_at`` gives the interval that ``factor`` times as many samples with the same rates would have; it gets
    narrower as that grows. ``None`` where more than :data:`MOST` would be needed.
    """
    high = 2.0
    while not decided(interval_at(high)):
        high *= 2
        if n * high > MOST:
            return None
    low = high / 2
    while n * (high - low) > max(1.0, n * high / 1000):
        middle = (low + high) / 2
        low, high = (low, middle) if decided(interval_at(middle)) else (middle, high)
    return _rounded_up(n * high)


def _rounded_up(value: float) -> int:
    """To :data:`_TOLD` significant digits."""
    step: int = 10 ** max(0, math.floor(math.log10(value)) + 1 - _TOLD)
    return step * math.ceil(value / step)
