"""How much device time each trial of a search may take, so that the whole keeps to its budget. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.measure.settings import MeasurementSettings
from harness.search.estimate import TYPICAL_NS, estimate_measurement


@dataclass(frozen=True)
class TrialCosts:
    """What a trial takes on all boards together, in device seconds, before it is known."""

    settings: Mapping[str, MeasurementSettings]
    """By board: how a candidate is measured."""
    inferences: int
    """Of the evaluation."""

    def least_s(self, latencies_ns: Mapping[str, float]) -> float:
        """With the fewest blocks, at these latencies per inference (by board; a typical one where not known)."""
        return sum(
            estimate_measurement(settings, latency).low_s + self.inferences * latency / 1e9
            for name, settings in self.settings.items()
            for latency in (latencies_ns.get(name, TYPICAL_NS),)
        )

    def most_s(self) -> float:
        """With all blocks, at a typical latency."""
        return sum(
            estimate_measurement(settings).high_s + self.inferences * TYPICAL_NS / 1e9
            for settings in self.settings.values()
        )


@dataclass(frozen=True)
class Spent:
    """What a proposal may know of those before it."""

    trials: int
    """Ended, of whatever outcome."""
    device_s: float
    """Used by them."""
    under_way: int
    """Trials whose outcome the proposal may not depend on, ended or not."""
    latencies_ns: Mapping[str, float]
    """By board: the longest per inference."""


def allowance_s(available_s: float, spent: Spent, costs: TrialCosts, *, first: bool) -> float | None:
    """Device seconds for one more trial, all boards together; ``None``: too little is left to begin one.

    ``available_s`` is the budget less what is kept for the finalists. Trials under way are taken to cost what the known
    ones did on average. The ``first`` trial, the baseline, is begun whatever is left: nothing can be said without it.
    """
    each = spent.device_s / spent.trials if spent.trials else costs.most_s()
    left = available_s - spent.device_s - each * spent.under_way
    if not first and left < costs.least_s(spent.latencies_ns):
        return None
    return max(left, 0.0)
