"""The process that takes trials through their steps. Several are started for a search, so it imports little."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import ray
from ray.exceptions import RayActorError
from ray.tune import Trainable

from harness.controller.messages import BoardTask, Material, QuantizeReply
from harness.controller.policy import MeasurementPolicy
from harness.controller.trial import Quantized, run_trial
from harness.ledger.events import Event
from harness.ledger.state import TrialState
from harness.quantize.contract import Cause, Refusal
from harness.recipes.recipe import Recipe
from harness.search.gate import BoardLimits, gate, other_format


@dataclass(frozen=True)
class Crew:
    """Handles of the actors a trial works with, and what they need to know; crosses processes."""

    recorder: Any
    quantizers: tuple[Any, ...]
    material: Material
    boards: Mapping[str, Any]
    limits: Mapping[str, BoardLimits]
    policy: MeasurementPolicy
    chips: Mapping[str, str] = field(default_factory=dict)
    """Of boards that run ``.espdl`` models."""


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
            reply: QuantizeReply = ray.get(quantizer.quantize.remote(recipe, self._crew.material))
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
                settings=reply.settings,
                deploy=reply.deploy,
            )
        )
        return reply.made

    def claim(self, trial: int, identity: str | None) -> int | Literal["interrupted"] | None:
        return ray.get(self._crew.recorder.claim.remote(trial, identity))  # type: ignore[no-any-return]

    def gate(self, trial: int, recipe: Recipe, made: Quantized) -> Mapping[str, Sequence[str]]:
        unfit = {name: other_format(recipe, self._crew.chips.get(name)) for name in self._crew.limits}
        refused: dict[str, Sequence[str]] = {name: (reason,) for name, reason in unfit.items() if reason}
        if recipe.is_float32 or len(refused) == len(unfit):
            # The baseline is what everything is compared with: it is tried wherever it loads.
            return refused
        operators: frozenset[str] = frozenset()
        data_types: frozenset[str] = frozenset()
        if any(limits.operators is not None or limits.data_types is not None for limits in self._crew.limits.values()):
            found = ray.get(self._crew.recorder.inventory.remote(trial))
            operators, data_types = found.operators, found.data_types
        for name, chip in self._crew.chips.items():
            limits = self._crew.limits[name]
            if name not in refused and limits.lint == "refuse":
                refused[name] = ray.get(self._crew.recorder.lint.remote(trial, chip, limits.max_memory_bytes))
        return refused | {
            name: gate(limits, size_bytes=made.artifact.size_bytes, operators=operators, data_types=data_types)
            for name, limits in self._crew.limits.items()
            if not refused.get(name)
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
            name: BoardTask(
                number,
                "search",
                self._crew.policy.screening(number, name, futility, device_budget_ns=self.config["device_budget_ns"]),
            )
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
