"""Ray Tune runs the trials: our searcher proposes, a reused trainable takes each trial through its steps."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.exceptions import RayActorError
from ray.tune import Trainable
from ray.tune.search import Searcher

from harness.controller.actors import BoardTask, QuantizeReply
from harness.controller.inventory import Inventory
from harness.controller.learning import Learning
from harness.controller.policy import MeasurementPolicy
from harness.controller.trial import Quantized, run_trial
from harness.errors import BoardtuneError
from harness.ledger.events import Event
from harness.ledger.state import TrialState
from harness.quantize.contract import Cause, Refusal
from harness.recipes.recipe import Recipe
from harness.search.gate import BoardLimits, gate

log = logging.getLogger(__name__)

_FINISHED: str = Searcher.FINISHED


@dataclass(frozen=True)
class Crew:
    """Handles of the actors a trial works with, and what they need to know; crosses processes."""

    recorder: Any
    quantizers: tuple[Any, ...]
    boards: Mapping[str, Any]
    limits: Mapping[str, BoardLimits]
    policy: MeasurementPolicy


class RaySteps:
    """The steps of :func:`run_trial`, as calls to the crew."""

    def __init__(self, crew: Crew, tasks: Mapping[str, BoardTask]) -> None:
        self._crew = crew
        self._tasks = tasks

    def state(self, trial: int) -> TrialState:
        return ray.get(self._crew.recorder.state.remote(trial))  # type: ignore[no-any-return]

    def stopping(self) -> bool:
        return bool(ray.get(self._crew.recorder.stopping.remote()))

    def record(self, *new: Event) -> None:
        ray.get(self._crew.recorder.record.remote(*new))

    def quantize(self, trial: int, recipe: Recipe) -> Quantized | Refusal:
        quantizer = self._crew.quantizers[trial % len(self._crew.quantizers)]
        try:
            reply: QuantizeReply = ray.get(quantizer.quantize.remote(recipe))
        except RayActorError as error:
            # It is started again and asked again a few times; what kills it each time is this recipe.
            return Refusal(Cause.CRASHED, "the process that quantizes died each time", detail=str(error))
        if isinstance(reply.made, Refusal):
            if reply.made.detail:
                ray.get(self._crew.recorder.keep_detail.remote(trial, reply.made.detail))
            return reply.made
        ray.get(
            self._crew.recorder.keep_model.remote(
                trial,
                reply.model,
                reply.made,
                notices=reply.notices,
                backend=reply.backend,
                seconds=reply.seconds,
            )
        )
        return reply.made

    def claim(self, trial: int, identity: str | None) -> int | Literal["interrupted"] | None:
        return ray.get(self._crew.recorder.claim.remote(trial, identity))  # type: ignore[no-any-return]

    def gate(self, trial: int, recipe: Recipe, made: Quantized) -> Mapping[str, Sequence[str]]:
        if recipe.is_float32:
            # The baseline is what everything is compared with: it is tried wherever it loads.
            return {}
        if all(limits.operators is None and limits.data_types is None for limits in self._crew.limits.values()):
            found = Inventory(frozenset(), frozenset())
        else:
            found = ray.get(self._crew.recorder.inventory.remote(trial))
        return {
            name: gate(
                limits,
                size_bytes=made.artifact.size_bytes,
                operators=found.operators,
                data_types=found.data_types,
            )
            for name, limits in self._crew.limits.items()
        }

    def measure(self, trial: int, boards: Sequence[str]) -> Mapping[str, str]:
        calls = {name: self._crew.boards[name].measure.remote(self._tasks[name]) for name in boards}
        replies = {name: ray.get(call) for name, call in calls.items()}
        return {name: message for name, message in replies.items() if message is not None}

    def skip(self, trial: int, boards: Sequence[str]) -> None:
        for name in boards:
            self._crew.boards[name].skip.remote([trial])


class TrialRunner(Trainable):  # type: ignore[misc]  # Ray has no types here
    """One Tune trial is one boardtune trial; the process is reused for the next. All state is in the ledger."""

    def setup(self, config: dict[str, Any], crew: Crew) -> None:
        self._crew = crew

    def step(self) -> dict[str, Any]:
        number: int = self.config["number"]
        tasks = {
            name: BoardTask(number, "search", self._crew.policy.screening(number, name, futility))
            for name, futility in self.config["futility_ns"].items()
        }
        detail = ""
        try:
            ended: str = run_trial(number, tuple(tasks), RaySteps(self._crew, tasks))
        except RayActorError as error:
            # The recorder or a board's process is gone: no fault of the trial, which is taken up again on resume.
            ended, detail = "lost", str(error)
        except Exception:
            # An exception would cost Tune the process and leave the reason in a file nobody reads.
            ended, detail = "crashed", traceback.format_exc()
        return {"number": number, "ended": ended, "detail": detail, "done": True}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """The process is kept for another trial."""
        return True

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing to save: the ledger has it."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing to load: the ledger has it."""


class LedgerSearcher(Searcher):  # type: ignore[misc]  # Ray has no types here
    """Proposes trial n when the outcomes it may see are in, and keeps the ledger informed.

    ``learning`` holds what was learnt and asks the sampler; ``may_go_on`` ends the search (budgets, interruption).
    """

    def __init__(self, learning: Learning, may_go_on: Callable[[], bool]) -> None:
        super().__init__(metric="number", mode="min")
        self.error: Exception | None = None
        """What keeps the search from going on; told by whoever runs it, as Tune would bury it."""
        self._learning = learning
        self._may_go_on = may_go_on
        self._numbers: dict[str, int] = {}
        self.failures: list[str] = []
        """Trials whose process died, in words."""

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self.error is not None or not self._may_go_on():
            return _FINISHED
        try:
            assignment = self._learning.next()
        except Exception as error:
            self.error = error
            return _FINISHED
        if assignment is None:
            return _FINISHED
        if assignment == "wait":
            return None
        self._numbers[trial_id] = assignment.number
        return {"number": assignment.number, "futility_ns": dict(assignment.futility_ns)}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Results come once, at the end."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        number = self._numbers.pop(trial_id, None)
        if number is None or self.error is not None:
            return
        try:
            self._completed(number, result, error)
        except Exception as problem:
            self.error = problem

    def _completed(self, number: int, result: dict[str, Any] | None, error: bool) -> None:
        ended = "process died" if error or result is None else result.get("ended")
        if ended == "interrupted":
            return
        if ended == "lost":
            message = str((result or {}).get("detail", "")).strip().partition("\n")[0]
            self.error = BoardtuneError(f"a process of the search died: {message}", hint="go on with --resume")
            return
        if error or result is None or ended == "crashed":
            detail = str((result or {}).get("detail", ""))
            log.error("trial %d %s\n%s", number, ended, detail)
            self.failures.append(f"trial {number} {ended}: see logs/search.log in the run directory")
            self._learning.died(number, detail)
        else:
            self._learning.ended(number)

    def save(self, checkpoint_path: str) -> None:
        """The ledger is the truth; nothing is pickled."""

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("a search is resumed from its ledger")
