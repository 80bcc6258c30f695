"""Hires the Ray actors of a search, runs Ray Tune with them, and lets them go."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from device_agents.contract import AgentError, LeaseLost
from harness.boards.chips import chip_of
from harness.controller.actors import (
    BoardActor,
    OpenSession,
    Quantizer,
    QuantizerActor,
    RecorderActor,
    board_session,
)
from harness.controller.finals import picks_of, run_finals
from harness.controller.finals_budget import FinalsBudget
from harness.controller.interrupt import Interruption
from harness.controller.learning import Learning, worth_another_try
from harness.controller.messages import BoardTask, Material, QuantizeReply
from harness.controller.outcome import candidates_json
from harness.controller.progress import Progress, Watcher
from harness.controller.searcher import LedgerSearcher
from harness.controller.setup import RESUMABLE, SearchSetup, with_suggestions
from harness.controller.trial_runner import Crew, TrialRunner
from harness.errors import BoardtuneError, BoardUnavailable, ConfigError
from harness.ledger import events
from harness.ledger.events import Event
from harness.ledger.header import board_differences
from harness.ledger.state import LedgerState, TrialState
from harness.quantize.contract import QuantizeLimits, Refusal
from harness.quantize.worker import QuantizeWorker
from harness.recipes.recipe import Recipe
from harness.scratch import scratch_prefix
from harness.search.topk import Selection

log = logging.getLogger(__name__)

_WATCH_S = 0.5
_CLOSE_S = 20.0
_CLOSE_AT_ONCE_S = 2.0
_QUANTIZER_RETRIES = 2
"""Times that a recipe is tried again whose quantizer's process died (of lack of memory, say)."""


@dataclass(frozen=True)
class Staff:
    """Who does the work; replaced in benchmarks and tests that measure the search itself."""

    make_quantizer: Callable[[], Quantizer] = QuantizeWorker
    open_session: OpenSession = board_session


def hire(
    setup: SearchSetup, run_dir: Path, header: Mapping[str, Any], *, resume: bool, node: str, staff: Staff
) -> SearchCrew:
    """Starts the actors; takes the run directory's lock. Raises what :class:`RunDirectory` raises."""
    here = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    # Calls wait inside these actors for their turn, so they serve many at once.
    threads = 4 * setup.window + 16
    recorder = ray.remote(RecorderActor).options(num_cpus=0, max_concurrency=threads, scheduling_strategy=here).remote()
    try:
        notices = _get(recorder.open.remote(run_dir.resolve(), dict(header), resume, RESUMABLE))
    except BoardtuneError:
        ray.kill(recorder)
        raise
    limits = QuantizeLimits(setup.plan.quantize_timeout / 1e9, setup.plan.quantize_memory, setup.prepared.min_snr_db)
    material = Material(
        model=ray.put(setup.prepared.model.path.read_bytes()),
        calibration=ray.put(setup.prepared.calibration.read_bytes()),
        imported={one.recipe.source: ray.put(one.artifact.read_bytes()) for one in setup.prepared.imported},
    )
    quantizers = tuple(
        ray.remote(QuantizerActor)
        .options(num_cpus=1, max_restarts=-1, max_task_retries=_QUANTIZER_RETRIES)
        .remote(limits, staff.make_quantizer)
        for _ in range(setup.quantizers)
    )
    prepared = ray.put(setup.prepared)
    boards = {
        name: ray.remote(BoardActor)
        .options(num_cpus=0, max_concurrency=threads, scheduling_strategy=here)
        .remote(board, prepared, recorder, setup.plan.batch, staff.open_session)
        for name, board in setup.boards.items()
    }
    limits_of = {name: board.limits for name, board in setup.boards.items()}
    chips = {name: chip for name, board in setup.boards.items() if (chip := chip_of(board)) is not None}
    crew = Crew(recorder, quantizers, material, boards, limits_of, setup.policy, chips)
    return SearchCrew(setup, crew, tuple(notices))


class SearchCrew:
    """The actors of one search, as the controlling process sees them."""

    def __init__(self, setup: SearchSetup, crew: Crew, notices: tuple[str, ...]) -> None:
        self._crew = crew
        self._setup = with_suggestions(setup, self.state().suggestions)
        self.notices = notices
        self._phase = "connecting"
        self._quarantine: Mapping[str, str | None] = {}
        self._best: Mapping[str, tuple[int, ...]] = {}
        self._take_up()

    @property
    def setup(self) -> SearchSetup:
        """The search's, with the recipes that the ledger says were suggested to it."""
        return self._setup

    # -- what learning needs ---------------------------------------------------------------------------------

    def state(self, trial: int | None = None) -> Any:
        """One trial's state, or the whole ledger's."""
        recorder = self._crew.recorder
        return _get(recorder.ledger_state.remote() if trial is None else recorder.state.remote(trial))

    def propose(self, trial: int, recipe: Recipe, params: Mapping[str, Any]) -> None:
        _get(self._crew.recorder.propose.remote(trial, recipe, params))

    def died(self, trial: int, detail: str) -> None:
        """Ends a trial that was cut short, and lets the others pass it."""
        state: TrialState = self.state(trial)
        if not state.terminal:
            last = detail.strip().rpartition("\n")[2] or "the process that ran the trial died"
            self._record(events.failed(trial, "internal", last, detail=detail))
        _get(self._crew.recorder.claim.remote(trial, None))
        for board in self._crew.boards.values():
            board.skip.remote([trial])

    def note(self, notices: Sequence[str]) -> None:
        """Keeps notices that the ledger does not have yet."""
        known = set(self.state().notices)
        self._record(*(events.notice(text) for text in notices if text not in known))

    # -- the search -----------------------------------------------------------------------------------------

    def open_boards(self, watcher: Watcher) -> None:
        """Connects to all boards side by side. Raises :class:`BoardUnavailable` naming each that did not answer."""
        watcher.update(Progress(self._phase, self._setup.trials))
        recorded = self.state().boards
        calls = {name: board.open.remote() for name, board in self._crew.boards.items()}
        problems: dict[str, AgentError] = {}
        for name, call in calls.items():
            try:
                facts, options = _get(call)
            except AgentError as error:
                problems[name] = error
                continue
            if name in recorded:
                _same_board(name, recorded[name], facts, options)
            self._record(events.board(name, facts, options))
        if problems:
            lines = [f"board {name!r}: {error.message}" for name, error in problems.items()]
            hints = [error.hint for error in problems.values() if error.hint]
            busy = any(isinstance(error, LeaseLost) for error in problems.values())
            hint = hints[0] if hints else "wait for the other search" if busy else "see `boardtune boards check`"
            raise BoardUnavailable("; ".join(lines), hint=hint)

    def run(self, learning: Learning, interruption: Interruption, watcher: Watcher) -> None:
        """Runs trials until the search is over or the user interrupts."""
        self._phase = "searching"
        searcher = LedgerSearcher(learning, lambda: self._may_go_on(interruption), self._ask_boards, self._stop_actors)
        storage = tempfile.mkdtemp(prefix=scratch_prefix())
        with self._watched(interruption, watcher):
            try:
                tune.run(
                    tune.with_parameters(TrialRunner, crew=self._crew),
                    name="search",
                    search_alg=searcher,
                    num_samples=-1,
                    max_concurrent_trials=self._setup.window,
                    reuse_actors=True,
                    max_failures=0,
                    raise_on_failed_trial=False,
                    resources_per_trial={"cpu": 1},
                    storage_path=storage,
                    trial_name_creator=_trial_name,
                    trial_dirname_creator=_trial_name,
                    verbose=0,
                    callbacks=[],
                    log_to_file=False,
                )
            finally:
                shutil.rmtree(storage, ignore_errors=True)
        for failure in searcher.failures:
            watcher.notice(failure)
        if searcher.error is not None:
            raise searcher.error

    def run_finals(self, interruption: Interruption, watcher: Watcher, budget: FinalsBudget) -> None:
        """Finalists of all boards, the boards side by side, as far as the budgets allow."""
        self._phase = "finals"

        problems: list[Exception] = []

        def of_board(name: str) -> None:
            try:
                run_finals(name, self._setup.asked, self.state, partial(self._finalise, budget, watcher))
            except Exception as error:
                log.exception("the finals of %s ended", name)
                problems.append(error)

        with self._watched(interruption, watcher):
            threads = [threading.Thread(target=of_board, args=(name,), daemon=True) for name in self._crew.boards]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                for thread in threads:
                    thread.join(0.1)
        if problems:
            raise problems[0]

    def all_quarantined(self) -> str:
        """Why no board is left, or nothing."""
        reasons = {name: self._quarantine.get(name) for name in self._crew.boards}
        if not all(reasons.values()):
            return ""
        return "no board is left: " + "; ".join(f"{name}: {reason}" for name, reason in reasons.items())

    def finish(
        self, content: Mapping[str, Any], selections: Mapping[str, Selection], stop: str, *, interrupted: bool
    ) -> None:
        """Writes what the run hands over."""
        picks = {name: selection.trials for name, selection in selections.items()}
        self._record(events.stopped(stop, kind="interrupted" if interrupted else "finished"))
        if not interrupted:
            self._record(events.finished(picks))
        _get(self._crew.recorder.write_outputs.remote(dict(content)))

    def dismiss(self, *, at_once: bool = False) -> None:
        """Closes boards and quantizers, then the run directory. ``at_once``: whatever is under way is cut short, and
        nothing of it is recorded. Never raises."""
        if at_once:
            ray.kill(self._crew.recorder)
        calls = [actor.close.remote() for actor in (*self._crew.boards.values(), *self._crew.quantizers)]
        with contextlib.suppress(Exception):
            ray.wait(calls, num_returns=len(calls), timeout=_CLOSE_AT_ONCE_S if at_once else _CLOSE_S)
        if not at_once:
            with contextlib.suppress(Exception):
                ray.get(self._crew.recorder.close.remote(), timeout=_CLOSE_S)

    # -- helpers --------------------------------------------------------------------------------------------

    def _record(self, *new: Event) -> None:
        if new:
            _get(self._crew.recorder.record.remote(*new))

    def _take_up(self) -> None:
        """On resume: damaged artifacts are made again, trials that a board's failure ended are tried again, and boards
        do not wait for those that have ended."""
        for trial, problem in _get(self._crew.recorder.damaged.remote()):
            found: TrialState = self.state(trial)
            if found.status == "done":
                self._restore(found, problem)
            else:
                self._record(events.retried(trial, problem))
        state: LedgerState = self.state()
        self._record(*(events.retried(n, "a board had failed") for n in worth_another_try(state, self._setup.window)))
        state = self.state()
        for board in self._crew.boards.values():
            board.skip.remote([t.number for t in state.trials.values() if t.terminal])

    def _restore(self, trial: TrialState, problem: str) -> None:
        """What was measured stands if the same artifact can be made again."""
        reply: QuantizeReply = _get(
            self._crew.quantizers[0].quantize.remote(Recipe.from_dict(trial.recipe), self._crew.material)
        )
        if not isinstance(reply.made, Refusal) and reply.made.artifact == trial.artifact:
            _get(self._crew.recorder.restore_model.remote(trial.number, reply.model))
            self.notices += (f"{problem}; it was made again",)
        else:
            self.notices += (f"{problem}; it cannot be made again, so the trial can be neither confirmed nor exported",)

    def _finalise(self, budget: FinalsBudget, watcher: Watcher, board: str, trial: int) -> None:
        settings = budget.settings(self.state(), board, trial)
        if settings is None:
            told = f"{board}: the budget ended before every finalist was measured afresh"
            self.note((told,))
            watcher.notice(told)
            return
        task = BoardTask(trial, "final", settings)
        _get(self._crew.boards[board].measure.remote(task))

    def _may_go_on(self, interruption: Interruption) -> bool:
        return not interruption.asked and not self.all_quarantined()

    @contextlib.contextmanager
    def _watched(self, interruption: Interruption, watcher: Watcher) -> Any:
        """Looks at the ledger about twice a second for whoever watches, and passes an interruption on."""
        over = threading.Event()

        def watch() -> None:
            stopped = shown_failed = False
            while not over.wait(_WATCH_S):
                if interruption.asked and not stopped:
                    stopped = True
                    self._stop_actors()
                try:
                    self._look(watcher)
                except Exception:
                    # Nobody's search ends because it could not be shown.
                    if not shown_failed:
                        log.exception("the progress display failed")
                    shown_failed = True

        thread = threading.Thread(target=watch, daemon=True, name="watch")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(5.0)
            if interruption.asked:
                self._stop_actors()

    def _stop_actors(self) -> None:
        self._crew.recorder.stop.remote()
        for board in self._crew.boards.values():
            board.stop.remote()

    def _look(self, watcher: Watcher) -> None:
        snapshot = _get(self._crew.recorder.snapshot.remote())
        state: LedgerState = self.state()
        selections = picks_of(state, tuple(self._crew.boards), self._setup.asked)
        best = {name: selection.trials for name, selection in selections.items()}
        if best != self._best:
            # So that a pick can be exported while the search goes on.
            self._best = best
            content = candidates_json(state, tuple(self._crew.boards), selections)
            _get(self._crew.recorder.write_candidates.remote(content))
        watcher.update(Progress(self._phase, self._setup.trials, snapshot, state.candidates(), best))

    def _ask_boards(self) -> None:
        calls = {name: board.quarantined.remote() for name, board in self._crew.boards.items()}
        self._quarantine = {name: _get(call) for name, call in calls.items()}


def _same_board(name: str, recorded: Mapping[str, Any], facts: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Results of another board, runtime or set of options must not stand beside those recorded."""
    unlike = [str(difference) for difference in board_differences(recorded["facts"], facts)]
    if recorded["options"] != options:
        unlike.append(f"options: the run has {recorded['options']}, now {options}")
    if unlike:
        raise ConfigError(
            f"board {name!r} is not as it was when the run began: {'; '.join(unlike)}",
            hint="start a new run directory; results of the two cannot be compared",
        )


def _trial_name(trial: Any) -> str:
    return f"{trial.config['number']:04d}"


def _get(reference: Any) -> Any:
    """``ray.get`` that raises the actor's own exception, and says so when the actor itself is gone."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, BoardtuneError | AgentError):
            raise cause from None
        raise
    except RayActorError as error:
        raise BoardtuneError(f"a process of the search died: {error}", hint="resume with --resume") from None
