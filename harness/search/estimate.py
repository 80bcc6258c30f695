"""How much device time a search will take, before it starts (``--dry-run``)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from device_agents.contract import BlockRequest
from harness.measure.settings import MeasurementSettings
from harness.measure.steady import CANARY_WARMUP

TYPICAL_NS = 5e6
"""Latency assumed of a model that was not timed: durations, not counts, then decide for anything faster than 25 ms."""


@dataclass(frozen=True)
class Estimate:
    """Device seconds on one board, from the fewest blocks to the most."""

    low_s: float
    high_s: float

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.low_s + other.low_s, self.high_s + other.high_s)

    def times(self, count: int) -> Estimate:
        return Estimate(self.low_s * count, self.high_s * count)


def estimate_measurement(settings: MeasurementSettings, latency_ns: float = TYPICAL_NS) -> Estimate:
    """Of one measurement that needs no set redone; ``latency_ns`` per inference, for candidate and canary alike."""
    return Estimate(
        _device_ns(settings, latency_ns, settings.min_blocks) / 1e9,
        _device_ns(settings, latency_ns, settings.max_blocks) / 1e9,
    )


def estimate_search(
    search: MeasurementSettings,
    final: MeasurementSettings,
    *,
    trials: int,
    top_k: int,
    latency_ns: float = TYPICAL_NS,
    evaluation_samples: int = 0,
) -> Estimate:
    """Of one board: every trial screened and evaluated once, K finalists and the float baseline finally."""
    evaluation = Estimate(evaluation_samples * latency_ns / 1e9, evaluation_samples * latency_ns / 1e9)
    screened = (estimate_measurement(search, latency_ns) + evaluation).times(trials)
    finals = (estimate_measurement(final, latency_ns) + evaluation).times(min(top_k + 1, trials))
    return screened + finals


def _device_ns(settings: MeasurementSettings, latency_ns: float, blocks: int) -> float:
    warm = max(settings.warmup_min_ns, settings.warmup_min_count * latency_ns)
    warm = min(warm, max(settings.warmup_cap_ns, latency_ns))
    sessions = 1 if settings.blocks_per_session is None else math.ceil(blocks / settings.blocks_per_session)
    fences = blocks + sessions if settings.canary else 0
    canary_warm = warm * CANARY_WARMUP if settings.canary else 0.0
    canary_warmups = 1
    if settings.exclusive and settings.canary:
        sessions, fences, canary_warmups = blocks, blocks + 1, blocks + 1
    return (
        warm * sessions
        + canary_warm * canary_warmups
        + blocks * _block_ns(settings.block, latency_ns)
        + fences * _block_ns(settings.canary_block, latency_ns)
    )


def _block_ns(request: BlockRequest, latency_ns: float) -> float:
    wanted = max(request.min_ns, request.min_count * latency_ns)
    return max(latency_ns, min(wanted, request.max_ns))
