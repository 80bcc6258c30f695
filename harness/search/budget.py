"""What a search may use, what it has used, and when it must stop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

StopReason = Literal["trials", "time", "device_time"]


@dataclass(frozen=True)
class Limits:
    """``None``: no limit."""

    trials: int | None = None
    max_time_s: float | None = None
    """Wall time of the search."""
    device_s: float | None = None
    """Device time over all boards together."""


class Budget:
    """Counts trials, wall time and device time. ``clock`` gives seconds and never goes back.

    ``reserve_s`` is device time over all boards, ``time_reserve_s`` wall time kept for measuring the finalists: the
    search stops when only one of them is left. Neither takes more than half.
    """

    def __init__(
        self, limits: Limits, clock: Callable[[], float], *, reserve_s: float = 0.0, time_reserve_s: float = 0.0
    ) -> None:
        self.limits = limits
        self._clock = clock
        self._reserve_s = min(reserve_s, (limits.device_s or 0.0) / 2)
        self._time_reserve_s = min(time_reserve_s, (limits.max_time_s or 0.0) / 2)
        self._started = clock()
        self._earlier_s = 0.0
        self._trials = 0
        self._device_s: dict[str, float] = defaultdict(float)

    def resume(self, *, trials: int, elapsed_s: float, device_s: Mapping[str, float]) -> None:
        """Counts in what the run used before it was interrupted."""
        self._trials += trials
        self._earlier_s += elapsed_s
        for board, seconds in device_s.items():
            self.spend(board, seconds)

    def start_trial(self) -> None:
        self._trials += 1

    def spend(self, board: str, seconds: float) -> None:
        """Raises ``ValueError`` on a negative time."""
        if not seconds >= 0:
            raise ValueError(f"device time {seconds} s on {board}: must not be negative")
        self._device_s[board] += seconds

    @property
    def trials(self) -> int:
        return self._trials

    @property
    def elapsed_s(self) -> float:
        return self._earlier_s + self._clock() - self._started

    @property
    def device_s(self) -> dict[str, float]:
        return dict(self._device_s)

    @property
    def device_left_s(self) -> float | None:
        """Of the whole budget, the reserve included; never below 0."""
        if self.limits.device_s is None:
            return None
        return max(0.0, self.limits.device_s - sum(self._device_s.values()))

    @property
    def search_device_s(self) -> float | None:
        """Of the whole budget, what the search may use."""
        return None if self.limits.device_s is None else self.limits.device_s - self._reserve_s

    @property
    def time_left_s(self) -> float | None:
        return None if self.limits.max_time_s is None else max(0.0, self.limits.max_time_s - self.elapsed_s)

    def stop_reason(self) -> StopReason | None:
        """Why no further trial may start, if so; the number of trials is looked at first, so that it wins a tie."""
        if self.limits.trials is not None and self._trials >= self.limits.trials:
            return "trials"
        if self.time_left_s is not None and self.time_left_s <= self._time_reserve_s:
            return "time"
        left = self.device_left_s
        if left is not None and left <= self._reserve_s:
            return "device_time"
        return None
