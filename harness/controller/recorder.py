"""The one writer of a run directory, and the order in which concurrent trials pass."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from device_agents.emulated.espdl.reader import read_model
from harness.controller.inventory import Inventory, inventory
from harness.controller.trial import Quantized
from harness.controller.turns import WAIT_S
from harness.failpoints import passing
from harness.ledger import events
from harness.ledger.events import Event
from harness.ledger.run_directory import Phase, RunDirectory
from harness.ledger.samples import SampleBlock
from harness.ledger.state import LedgerState, TrialState
from harness.lints.espdl import BoardMemory, lint
from harness.measure.record import MeasurementResult
from harness.measure.steps import CANARY
from harness.quantize.made_espdl import told
from harness.recipes.recipe import Recipe
from harness.results import BoardResult


@dataclass(frozen=True)
class Snapshot:
    """What a progress display shows."""

    counts: Mapping[str, int]
    running: tuple[tuple[int, str, str], ...]
    """(trial, label, stage) of trials in the making."""
    device_seconds: Mapping[str, float]
    ended: int
    finals: int = 0
    """Finalists measured afresh, counted on every board."""


class Recorder:
    """Thread-safe; the files of an event are written before it."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._changed = threading.Condition()
        self._stopping = False
        # What resumed trials claimed before counts; unfinished ones without an artifact claim anew.
        self._claims: dict[int, str | None] = {
            n: t.artifact.identity if t.artifact else None
            for n, t in run.state.trials.items()
            if t.terminal or t.status not in ("proposed", "quantized")
        }

    @property
    def path(self) -> Path:
        return self._run.path

    def ledger_state(self) -> LedgerState:
        """A copy that stays as it is."""
        with self._changed:
            state = self._run.state
            return replace(
                state,
                boards=dict(state.boards),
                trials=dict(state.trials),
                device_seconds=dict(state.device_seconds),
                finals_seconds=dict(state.finals_seconds),
                notices=list(state.notices),
                picks=dict(state.picks),
            )

    def state(self, trial: int) -> TrialState:
        return self._run.state.trials[trial]

    def stop(self) -> None:
        """Trials begin no further step."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def stopping(self) -> bool:
        return self._stopping

    def record(self, *new: Event) -> None:
        for event in new:
            passing(f"ledger.before.{event['event']}")
        with self._changed:
            self._run.record(*new)
            self._changed.notify_all()
        for event in new:
            passing(f"ledger.after.{event['event']}")

    def propose(self, trial: int, recipe: Recipe, params: Mapping[str, Any]) -> None:
        self._run.write_recipe(trial, recipe.to_dict())
        self.record(events.proposed(trial, recipe.to_dict(), recipe.label, params, recipe.digest))

    def keep_model(
        self, trial: int, model: bytes, made: Quantized, *, notices: Sequence[str], backend: str, seconds: float,
        settings: Mapping[str, Any] | None = None, deploy: bytes | None = None,
    ) -> None:  # fmt: skip
        """Puts an accepted artifact in the run directory and records it."""
        draft = self._run.draft_path(trial)
        draft.write_bytes(model)
        passing("model.before.commit")
        self._run.commit_model(trial, draft)
        if settings:
            self._run.write_settings(trial, settings)
        if deploy is not None:
            self._run.write_deploy_model(trial, deploy)
        self.record(
            events.quantized(
                trial,
                made.artifact,
                snr_db=made.snr_db,
                quantized_operators=made.operators,
                notices=notices,
                backend=backend,
                seconds=seconds,
            )
        )

    def keep_detail(self, trial: int, text: str) -> None:
        self._run.write_detail(trial, text)

    def model_path(self, trial: int) -> Path:
        return self._run.model_path(trial)

    def inventory(self, trial: int) -> Inventory:
        """Read here, where the file is: a trial may run on another node."""
        return inventory(self._run.model_path(trial))

    def lint(self, trial: int, chip: str, memory_bytes: int | None = None) -> tuple[str, ...]:
        """Errors in an ``.espdl`` model: what the chip's kernels would compute otherwise, or not at all, or what does
        not fit into ``memory_bytes`` of the board with the model itself."""
        memory = None if memory_bytes is None else BoardMemory(psram_bytes=memory_bytes)
        findings = lint(read_model(self._run.model_path(trial)), chip, memory)
        return told([finding for finding in findings if finding.severity == "error"])

    def restore_model(self, trial: int, model: bytes) -> None:
        """Puts a model back whose file was lost or altered; the ledger already has it."""
        draft = self._run.draft_path(trial)
        draft.write_bytes(model)
        self._run.commit_model(trial, draft)

    def keep_result(
        self, trial: int, board: str, phase: Phase, result: BoardResult, record: Mapping[str, Any],
        measurement: MeasurementResult | None, *, futile: bool = False, sent_bytes: int = 0,
    ) -> None:  # fmt: skip
        """One board's measurement and evaluation of a trial, in the search or as a finalist; ``futile``: it was broken
        off because the candidate can no longer be picked there. ``sent_bytes``: of a finalist; in the search they
        are in the ledger by then."""
        if measurement is not None:
            self._run.write_samples(trial, board, phase, _blocks(measurement), emulated=result.emulated)
        self._run.write_measurement(trial, board, phase, record)
        passing("measurement.written")
        if phase == "final":
            self.record(events.final(trial, board, result, sent_bytes=sent_bytes, device_seconds=result.device_seconds))
            return
        if futile:
            message = "certainly slower than what could still be picked"
            self.record(
                events.pruned(
                    trial, "futility", message, board=board, result=result, device_seconds=result.device_seconds
                )
            )
            return
        self.record(
            events.measured(trial, board, result, device_seconds=result.device_seconds),
            events.evaluated(trial, board, result),
        )

    def claim(self, trial: int, identity: str | None, timeout_s: float = WAIT_S) -> int | Literal["interrupted"] | None:
        """Waits until every lower trial has claimed or ended; then the lowest trial that made this artifact, if any.

        So which of two equal artifacts is the duplicate does not depend on which was quantized first. ``interrupted``:
        the search stops before all lower trials have claimed. Raises ``TimeoutError`` naming the trials waited for
        when nothing at all happens for ``timeout_s``.
        """
        with self._changed:

            def missing() -> list[int]:
                trials = self._run.state.trials
                return [n for n, t in trials.items() if n < trial and n not in self._claims and not t.terminal]

            while identity is not None and (waited_for := missing()):
                if self._stopping:
                    return "interrupted"
                if not self._changed.wait(timeout_s):
                    raise TimeoutError(f"trial {trial} waited {timeout_s:.0f} s for trials {waited_for}")
            if identity is None:
                self._claims.setdefault(trial, None)
            else:
                self._claims[trial] = identity
            self._changed.notify_all()
            if identity is None:
                return None
            same = [n for n, made in self._claims.items() if made == identity and n < trial]
            return next((n for n in sorted(same) if self._run.state.trials[n].duplicate_of is None), None)

    def write_candidates(self, candidates: Mapping[str, Any]) -> None:
        """candidates.json alone, while the search goes on."""
        self._run.write_candidates(candidates)

    def write_outputs(self, candidates: Mapping[str, Any]) -> None:
        """candidates.json and trials.csv."""
        self._run.write_candidates(candidates)
        self._run.write_trials_csv()

    def snapshot(self) -> Snapshot:
        state = self.ledger_state()
        running = tuple((t.number, t.label, t.status) for t in state.unfinished())
        counts = state.counts()
        finals = sum(board.final_tried for trial in state.trials.values() for board in trial.boards.values())
        return Snapshot(counts, running, dict(state.device_seconds), sum(counts.values()), finals)


def _blocks(measurement: MeasurementResult) -> list[SampleBlock]:
    return [
        SampleBlock("canary" if record.target == CANARY else "candidate", record.index, record.samples_ns)
        for record in measurement.records
        if record.kind == "block"
    ]
