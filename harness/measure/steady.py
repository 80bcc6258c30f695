"""When a warm-up is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from device_agents.contract import BlockRequest
from harness.measure.settings import MeasurementSettings

CANARY_WARMUP = 0.2
"""Scale of the canary's warm-up against the candidate's: it is small, and known."""

MAX_WINDOWS = 32
"""Doubling windows reach any cap long before; a board that answers each with too few samples must not go on forever."""


@dataclass
class SteadyState:
    """Watches the warm-up windows of one session.

    Steady: at least the settings' count and duration, and the medians of the last two windows differ by less than the
    tolerance. Windows double from the third on, as a noisy model needs longer ones to agree. Where the cap is reached,
    agreement alone decides: a model of several seconds cannot run ten times in it.
    """

    settings: MeasurementSettings
    block: BlockRequest
    """What is fed to the model besides: windows feed the same."""
    scale: float = 1.0
    """Of count and durations; below 1 for the canary, whose warmth is only needed for the canary's sake."""
    medians: list[float] = field(default_factory=list)
    count: int = 0
    elapsed_ns: int = 0

    def add(self, samples: npt.NDArray[np.int64]) -> None:
        self.medians.append(float(np.median(samples)))
        self.count += len(samples)
        self.elapsed_ns += int(samples.sum())

    @property
    def agrees(self) -> bool:
        return agree(self.medians, self.settings.steady_tolerance)

    @property
    def steady(self) -> bool:
        enough = (
            self.count >= self.settings.warmup_min_count and self.elapsed_ns >= self.settings.warmup_min_ns * self.scale
        )
        return self.agrees and (enough or self.capped)

    @property
    def capped(self) -> bool:
        return self.elapsed_ns >= self.settings.warmup_cap_ns * self.scale or len(self.medians) >= MAX_WINDOWS

    @property
    def over(self) -> bool:
        return self.steady or self.capped

    def request(self) -> BlockRequest:
        """The next window."""
        window = self.settings.warmup_window_ns * self.scale * 2 ** max(0, len(self.medians) - 1)
        left = max(1, int(self.settings.warmup_cap_ns * self.scale) - self.elapsed_ns)
        length = max(1, min(int(window), left))
        return replace(self.block, min_count=3, min_ns=length, max_ns=left)


def agree(medians: Sequence[float], tolerance: float) -> bool:
    """Whether the last two medians differ by less than ``tolerance`` of the larger."""
    if len(medians) < 2:
        return False
    last, before = medians[-1], medians[-2]
    return abs(last - before) < tolerance * max(last, before)
