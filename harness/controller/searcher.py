"""Ray Tune's searcher: proposes trials from what was learnt, and hears of their end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ray.tune.search import Searcher

from harness.controller.learning import Learning
from harness.errors import BoardtuneError

log = logging.getLogger(__name__)

_FINISHED: str = Searcher.FINISHED


class LedgerSearcher(Searcher):  # type: ignore[misc]  # Ray has no types here
    """Proposes trial n when the outcomes it may see are in, and keeps the ledger informed.

    ``learning`` holds what was learnt and asks the sampler; ``may_go_on`` ends the search (interruption, lost boards);
    ``after_failure`` is called when a trial has failed, before the next is proposed; ``give_up`` when the search cannot
    go on, so that no trial waits for one that will not come.
    """

    def __init__(
        self,
        learning: Learning,
        may_go_on: Callable[[], bool],
        after_failure: Callable[[], None] = lambda: None,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(metric="number", mode="min")
        self.error: Exception | None = None
        """What keeps the search from going on; told by whoever runs it, as Tune would bury it."""
        self._learning = learning
        self._may_go_on = may_go_on
        self._after_failure = after_failure
        self._give_up = give_up
        self._numbers: dict[str, int] = {}
        self.failures: list[str] = []
        """Trials whose process died, in words."""

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self.error is not None or not self._may_go_on():
            return _FINISHED
        try:
            assignment = self._learning.next()
        except Exception as error:
            self._end(error)
            return _FINISHED
        if assignment is None:
            return _FINISHED
        if assignment == "wait":
            return None
        self._numbers[trial_id] = assignment.number
        return {
            "number": assignment.number,
            "futility_ns": dict(assignment.futility_ns),
            "device_budget_ns": assignment.device_budget_ns,
        }

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Results come once, at the end."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        number = self._numbers.pop(trial_id, None)
        if number is None or self.error is not None:
            return
        try:
            self._completed(number, result, error)
        except Exception as problem:
            self._end(problem)

    def _end(self, error: Exception) -> None:
        self.error = error
        self._give_up()

    def _completed(self, number: int, result: dict[str, Any] | None, error: bool) -> None:
        ended = "process died" if error or result is None else result.get("ended")
        if ended == "interrupted":
            return
        if ended == "lost":
            message = str((result or {}).get("detail", "")).strip().partition("\n")[0]
            raise BoardtuneError(f"a process of the search died: {message}", hint="go on with --resume")
        if error or result is None or ended == "crashed":
            detail = str((result or {}).get("detail", ""))
            log.error("trial %d %s\n%s", number, ended, detail)
            self.failures.append(f"trial {number} {ended}: see logs/search.log in the run directory")
            self._learning.died(number, detail)
        else:
            self._learning.ended(number)
        if ended != "done":
            self._after_failure()

    def save(self, checkpoint_path: str) -> None:
        """The ledger is the truth; nothing is pickled."""

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("a search is resumed from its ledger")
