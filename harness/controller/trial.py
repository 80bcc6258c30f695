"""One trial from proposal to verdict, whatever executes its steps (Ray actors, or plain objects in tests)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from harness.ledger import events
from harness.ledger.events import Event
from harness.ledger.state import TrialState
from harness.quantize.contract import Refusal
from harness.recipes.recipe import Recipe
from harness.results import ArtifactInfo, TrialStatus

Ended = TrialStatus | Literal["interrupted"]


@dataclass(frozen=True)
class Quantized:
    """What a quantizer actor made and the recorder put in place."""

    artifact: ArtifactInfo
    snr_db: float | None
    operators: int


class Steps(Protocol):
    """What a trial needs of the world. Every call blocks until it is done."""

    def state(self, trial: int) -> TrialState:
        """As the ledger has it: a trial that is taken up again starts where it stood."""

    def stopping(self) -> bool:
        """The user asked to stop: the step in hand is finished, no new one begins."""

    def record(self, *new: Event) -> None: ...

    def quantize(self, trial: int, recipe: Recipe) -> Quantized | Refusal:
        """Makes the artifact and records it."""

    def claim(self, trial: int, identity: str | None) -> int | Literal["interrupted"] | None:
        """Waits until every lower trial has claimed or ended, then gives the trial that made this artifact before,
        if any. ``None`` as identity: this trial made none. ``interrupted``: that cannot be known, as the search stops
        and lower trials have not claimed."""

    def gate(self, trial: int, recipe: Recipe, made: Quantized) -> Mapping[str, Sequence[str]]:
        """Board -> reasons why the artifact need not be tried there (empty: it passes)."""

    def measure(self, trial: int, boards: Sequence[str]) -> Mapping[str, str]:
        """Measures on those boards side by side and records it; board -> failure message where it failed."""

    def skip(self, trial: int, boards: Sequence[str]) -> None:
        """Tells boards, which serve trials in order, not to wait for this one."""


def run_trial(number: int, boards: Sequence[str], steps: Steps) -> Ended:
    """Takes the trial through its remaining steps. The result is in the ledger; the return value says how it ended."""
    waiting = list(boards)
    try:
        trial = steps.state(number)
        recipe = Recipe.from_dict(trial.recipe)
        if trial.terminal:
            return trial.status  # type: ignore[return-value]  # terminal stages are TrialStatus
        made = _artifact(trial, recipe, steps)
        if made is None:
            return "interrupted"
        if isinstance(made, Refusal):
            steps.claim(number, None)
            steps.record(events.failed(number, made.cause.value, made.message, detail=made.detail))
            return "failed"
        original = steps.claim(number, made.artifact.identity)
        if original == "interrupted":
            return "interrupted"
        if original is not None:
            steps.record(events.duplicate(number, original))
            return "duplicate"
        trial = steps.state(number)
        if trial.status == "quantized":
            excluded = steps.gate(number, recipe, made)
            steps.record(
                events.gated(number, {name: list(reasons) for name, reasons in excluded.items() if reasons}),
                *(
                    events.pruned(number, "gate", "; ".join(reasons), board=name)
                    for name, reasons in excluded.items()
                    if reasons
                ),
            )
            trial = steps.state(number)
        if steps.stopping():
            return "interrupted"
        left = [name for name in boards if name not in trial.boards or trial.boards[name].status == "deployed"]
        steps.skip(number, [name for name in boards if name not in left])
        waiting = []
        failures = steps.measure(number, left) if left else {}
        return _end(number, failures, steps)
    finally:
        steps.skip(number, waiting)


def _artifact(trial: TrialState, recipe: Recipe, steps: Steps) -> Quantized | Refusal | None:
    if trial.artifact is not None:
        return Quantized(trial.artifact, trial.snr_db, trial.quantized_operators or 0)
    if steps.stopping():
        return None
    return steps.quantize(trial.number, recipe)


def _end(number: int, failures: Mapping[str, str], steps: Steps) -> Ended:
    trial = steps.state(number)
    if "interrupted" in failures.values():
        return "interrupted"
    if any(board.status in ("measured", "evaluated") for board in trial.boards.values()):
        steps.record(events.done(number))
        return "done"
    statuses = {board.status for board in trial.boards.values()}
    message = "; ".join(f"{name}: {board.message}" for name, board in sorted(trial.boards.items()))
    if statuses == {"pruned"}:
        steps.record(events.pruned(number, _cause(trial), message))
        return "pruned"
    steps.record(events.failed(number, _cause(trial), message))
    return "failed"


def _cause(trial: TrialState) -> str:
    return next((board.cause for _, board in sorted(trial.boards.items()) if board.cause), "failed")
