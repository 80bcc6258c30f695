"""What is left of the budgets for the finalists: they are measured shorter, then fewer of them, the best last to go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.controller.policy import MeasurementPolicy
from harness.ledger.state import LedgerState
from harness.measure.settings import MeasurementSettings
from harness.search.estimate import TYPICAL_NS, estimate_measurement

_MARGIN = 1.25
"""A measurement is begun if so many times its estimate is left: warm-up may take longer than it must."""


@dataclass(frozen=True)
class FinalsBudget:
    """Decides from the ledger alone how the next finalist of a board is measured; the same after an interruption."""

    policy: MeasurementPolicy
    boards: int
    finalists: int
    """Wanted on each board, the baseline among them."""
    inferences: int
    """Of the final evaluation."""
    device_s: float | None
    """The plan's device time over all boards; ``None``: no limit."""
    time_left_s: Callable[[], float | None]

    def settings(self, state: LedgerState, board: str, trial: int) -> MeasurementSettings | None:
        """``None``: the budgets do not allow another finalist on this board."""
        time_left = self.time_left_s()
        if time_left is not None and time_left <= 0:
            return None
        if self.device_s is None:
            return self.policy.final(trial, board)
        # The boards' finals run side by side: each has a share that does not depend on how far the others are.
        searched = sum(sum(t.device_seconds.values()) for t in state.trials.values())
        left = max(0.0, self.device_s - searched) / self.boards - state.finals_seconds.get(board, 0.0)
        tried = sum(1 for t in state.trials.values() if (b := t.boards.get(board)) is not None and b.final_tried)
        result = state.trials[trial].boards[board].result
        latency = result.latency_ns.p50 if result is not None and result.latency_ns is not None else TYPICAL_NS
        evaluation_s = self.inferences * latency / 1e9
        for sharing in range(max(1, self.finalists - tried), 0, -1):
            allowed_s = left / sharing
            for settings in self.policy.shorter_finals(trial, board):
                measured_s = estimate_measurement(settings, latency).low_s
                if _MARGIN * measured_s + evaluation_s <= allowed_s:
                    return replace(settings, device_budget_ns=round((allowed_s - evaluation_s) * 1e9))
        return None
