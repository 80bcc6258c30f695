"""One board, its connection, and the way a model is measured on it. No Ray, no ledger."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from device_agents.contract import (
    Agent,
    AgentError,
    BadData,
    Block,
    BoardFacts,
    BoardState,
    DataRef,
    DeviceCrash,
    LoadReport,
    ModelRejected,
    OutOfMemory,
    RuntimeOptions,
)
from harness.boards.agents import open_agent
from harness.boards.canary import canary_path
from harness.boards.chips import chip_of
from harness.boards.host_lock import times_on_this_host
from harness.boards.options import runtime_options
from harness.boards.own_model import doubts, sending_s
from harness.boards.schema import Board, Limits
from harness.controller.accuracy import SPOT_ROWS, Evaluated, Evaluator, chip_evaluator, evaluate_on_board
from harness.controller.considerate import considerate
from harness.controller.evaluation import postprocessed, score_outputs, sha256_file
from harness.controller.loaded_models import LoadedModels
from harness.controller.request import MeasureOutcome, MeasureRequest, Scoring
from harness.controller.wired import wired
from harness.data.metric import MetricFailed
from harness.measure.plausibility import same_outputs
from harness.measure.preflight import Preflight, preflight
from harness.measure.protocol import Measurement
from harness.measure.record import MeasurementResult
from harness.measure.settings import MeasurementSettings
from harness.measure.steps import CANARY, CANDIDATE, Cool, TimedBlock, Warmup
from harness.results import BoardResult, MetricResult, Verdict
from harness.search.constraints import Constraints

log = logging.getLogger(__name__)

_COOL_POLL_S = 2.0
_OF_THE_MODEL = (ModelRejected, OutOfMemory, DeviceCrash, BadData)
"""Failures that the board itself came through well: they say nothing against it."""

T = TypeVar("T")


class BoardSession:
    """Owns one board's agent for as long as it is open. One caller at a time.

    ``clock_lock`` gives a context in which nothing else on this host may compute; it is entered while a board that
    shares this host's processors is timed. ``work_lock`` gives one in which no clock runs, entered while such a board
    computes untimed; both are of one :class:`HostLock`. ``agent_factory`` is replaced in tests and benchmarks.
    """

    def __init__(
        self,
        board: Board,
        *,
        clock_lock: Callable[[], AbstractContextManager[object]],
        work_lock: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
        agent_factory: Callable[[Board], Agent] = open_agent,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.board = board
        self.options: RuntimeOptions = runtime_options(board)
        shared = times_on_this_host(board)
        agent = agent_factory(board)
        self._agent = wired(considerate(agent, work_lock) if shared else agent)
        chip = chip_of(board)
        self._evaluate: Evaluator = evaluate_on_board if chip is None else chip_evaluator(chip)
        self._timing = clock_lock if shared else contextlib.nullcontext
        self._sleep = sleep
        self._canary = canary_path(board)
        self._canary_sha256 = sha256_file(self._canary)
        self._facts: BoardFacts | None = None
        self._failures_in_a_row = 0
        self._sent_bytes = 0
        self._began: BoardState | None = None
        self._latest: BoardState | None = None
        self.spent_s = 0.0
        """Device time that the last :meth:`measure` took, failed attempts included, as far as it is known."""
        self._closed = False
        self.quarantined: str | None = None
        """Why the board is left out of the rest of the run."""

    @property
    def name(self) -> str:
        return self.board.name

    @property
    def facts(self) -> BoardFacts:
        if self._facts is None:
            raise RuntimeError(f"board {self.name!r} is not open")
        return self._facts

    def open(self) -> BoardFacts:
        """Connects and puts the canary there. Raises :class:`AgentError`."""
        self._facts = self._agent.connect()
        self._deploy(self._canary, self._canary_sha256)
        return self._facts

    def close(self) -> None:
        """Also from another thread: what is being measured then fails, and is not tried again."""
        self._closed = True
        self._agent.close()

    def device_clock_ns(self) -> int:
        """The board's own clock, for accounting device time."""
        return self._agent.health().clock_ns

    def measure(
        self, request: MeasureRequest, deployed: Callable[[int], None] = lambda sent_bytes: None
    ) -> MeasureOutcome:
        """Deploys, times, evaluates. Tries again after failures of the link or the board (not of the model).

        ``deployed`` is told, in each attempt, that model and samples are on the board, and what was sent since it was
        told last (bytes; the canary is among the first).

        Raises :class:`AgentError` when the model fails on the board, or when the board does not come back.
        """
        self.spent_s = 0.0
        attempts = self.board.recovery.retries + 1
        for attempt in range(1, attempts + 1):
            try:
                if attempt > 1:
                    self._recover()
                outcome = self._measure_once(request, deployed)
            except Exception as error:
                self._spend(error)
                if not isinstance(error, AgentError):
                    raise
                self._count(error)
                if not error.retryable or attempt == attempts or self.quarantined or self._closed:
                    raise
                log.warning("%s: %s; attempt %d of %d", self.name, error, attempt + 1, attempts)
            else:
                self._failures_in_a_row = 0
                self.spent_s += outcome.result.device_seconds
                outcome = replace(outcome, result=replace(outcome.result, device_seconds=self.spent_s))
                if outcome.measurement.quarantine:
                    self.quarantined = "; ".join(outcome.measurement.reasons) or "its measurements drift"
                return outcome
        raise RuntimeError("unreachable: the loop returns or raises")

    def _spend(self, error: Exception) -> None:
        """Counts a failed attempt, up to the board's last sign of life."""
        ended = self._latest
        if not isinstance(error, AgentError) or isinstance(error, _OF_THE_MODEL):
            with contextlib.suppress(Exception):  # the error at hand is what must be told
                ended = self._agent.health()
        if self._began is not None and ended is not None and ended.boot_id == self._began.boot_id:
            self.spent_s += max(0.0, (ended.clock_ns - self._began.clock_ns) / 1e9)

    def _count(self, error: AgentError) -> None:
        if isinstance(error, _OF_THE_MODEL):
            self._failures_in_a_row = 0
            return
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= self.board.recovery.quarantine_after:
            self.quarantined = f"{self._failures_in_a_row} failures in a row, the last: {error.message}"

    def _recover(self) -> None:
        self._sleep(self.board.recovery.cool_down_s)
        self._facts = self._agent.recover()
        self._deploy(self._canary, self._canary_sha256)

    def _deploy(self, path: Path, sha256: str) -> None:
        self._sent_bytes += self._agent.deploy(path, sha256).sent_bytes

    def _measure_once(self, request: MeasureRequest, deployed: Callable[[int], None]) -> MeasureOutcome:
        self._began = self._latest = None
        started, found = self._ready(request.settings)
        self._began = self._latest = started
        if found.mismatches:
            return self._unready(request, started, found)
        self._deploy(request.model, request.artifact.sha256)
        self._deploy(request.part.path, request.part.sha256)
        deployed(self._sent_bytes)
        self._sent_bytes = 0
        with LoadedModels(
            self._agent, self.options, self._canary_sha256, request.artifact.sha256, request.pipeline
        ) as sessions:
            measurement = Measurement(_settings(request, exclusive=self.board.runtime.exclusive_session))
            self._drive(measurement, sessions, request)
            timed = measurement.result()
            evaluated: Evaluated | None = None
            unlike: str | None = None
            if timed.verdict != "invalid" and timed.stop_reason != "futility":
                handle = sessions.get(CANDIDATE)
                rows = DataRef(request.part.sha256, tuple(range(min(SPOT_ROWS, request.part.samples))))
                spot = self._agent.infer(handle, rows, request.batch)
                evaluated = self._evaluate(
                    self._agent,
                    sessions.renew(CANDIDATE, postprocess=False),
                    request.model,
                    request.part,
                    request.batch,
                    timed.latency.p50 if timed.latency else None,
                    _infer_deadline(timed, request, self.board),
                )
                expected = {name: array[: len(rows.rows or ())] for name, array in evaluated.outputs.items()}
                unlike = same_outputs(spot.outputs, postprocessed(expected, request.pipeline))
            load = sessions.first_load
        ended = self._agent.health()
        return self._outcome(request, timed, load, evaluated, unlike, started, ended)

    def _ready(self, settings: MeasurementSettings) -> tuple[BoardState, Preflight]:
        """Looks whether the board is as its file wants it; only for its temperature it is waited, as long as between
        two sets of a measurement."""
        wanted = self.board.state
        state = self._agent.health()
        found = preflight(wanted, state)
        if found.too_hot and len(found.mismatches) == 1:
            state = self._cool(Cool(settings.cool_s, wanted.max_temperature_c, found.mismatches[0]))
            found = preflight(wanted, state)
        return state, found

    def _unready(self, request: MeasureRequest, state: BoardState, found: Preflight) -> MeasureOutcome:
        """An invalid result for which nothing ran on the board."""
        measurement = Measurement(request.settings)
        measurement.fail("; ".join(found.mismatches))
        timed = measurement.result()
        result = BoardResult(
            emulated=self.facts.emulated,
            verdict="invalid",
            reasons=found.mismatches,
            artifact=request.artifact,
            compiled_sha256=None,
            latency_ns=None,
            load_ns=None,
            first_ns=None,
            peak_memory_bytes=None,
            metrics={},
            placement={},
            phase=request.part.name,
        )
        return MeasureOutcome(result, timed, self._record(result, timed, found, state, state), None)

    def _drive(self, measurement: Measurement, sessions: LoadedModels, request: MeasureRequest) -> None:
        """Runs the protocol's steps; the host is kept quiet except while the board cools."""
        inputs = DataRef(request.part.sha256, tuple(range(min(measurement.settings.rows, request.part.samples))))
        canary_inputs = sessions.canary_inputs()
        step = measurement.next()
        while step is not None:
            with self._timing():
                while isinstance(step, Warmup | TimedBlock):
                    fresh = isinstance(step, Warmup) and step.fresh
                    handle = sessions.renew(step.target) if fresh else sessions.get(step.target)
                    block: Block = self._agent.measure(
                        handle,
                        canary_inputs if step.target == CANARY else inputs,
                        step.request,
                        deadline_s=60.0 + 4 * step.request.max_ns / 1e9,
                    )
                    self._latest = block.after
                    measurement.tell(step, block)
                    step = measurement.next()
            if isinstance(step, Cool):
                measurement.cooled(step, self._cool(step))
                step = measurement.next()

    def _cool(self, step: Cool) -> BoardState:
        log.info("%s cools: %s", self.name, step.reason)
        waited = 0.0
        state = self._agent.health()
        while waited < step.seconds:
            if step.below_c is not None and state.temperature_c is not None and state.temperature_c <= step.below_c:
                break
            pause = min(_COOL_POLL_S, step.seconds - waited)
            self._sleep(pause)
            waited += pause
            state = self._agent.health()
        return state

    def _outcome(
        self,
        request: MeasureRequest,
        timed: MeasurementResult,
        load: LoadReport,
        evaluated: Evaluated | None,
        unlike: str | None,
        started: BoardState,
        ended: BoardState,
    ) -> MeasureOutcome:
        found = preflight(self.board.state, started)
        verdict: Verdict = timed.verdict
        reasons = list(timed.reasons)
        if unlike is not None:
            verdict = "invalid"
            reasons.append(f"the timed model computes something else than the evaluated one: {unlike}")
        if not load.placement.evidence:
            verdict = "suspect" if verdict == "valid" else verdict
            reasons += doubts(self.board, self.facts, timed.latency.p50 if timed.latency else None)
        metrics: dict[str, MetricResult] = {}
        if evaluated is not None and request.scoring is not None:
            try:
                metrics = _metrics(request.scoring, evaluated, request)
            except MetricFailed as error:
                verdict = "invalid"
                reasons.append(str(error))
        result = BoardResult(
            emulated=self.facts.emulated,
            verdict=verdict,
            reasons=tuple(dict.fromkeys(reasons)),
            artifact=request.artifact,
            compiled_sha256=load.compiled_sha256,
            latency_ns=timed.latency,
            load_ns=load.load_ns or None,  # nothing is loaded where the firmware has the model
            first_ns=timed.first_ns,
            peak_memory_bytes=max(
                (m for m in (timed.peak_memory_bytes, evaluated.peak_memory_bytes if evaluated else None) if m),
                default=None,
            ),
            metrics=metrics,
            placement=_placement(load),
            phase=request.part.name,
            device_seconds=max(0.0, (ended.clock_ns - started.clock_ns) / 1e9),
            accuracy_from=evaluated.evidence if evaluated else "device",
        )
        if request.scoring is not None:
            constraints = board_constraints(request.scoring.constraints, self.board.limits)
            result = replace(result, constraints=constraints.decide(result, tuple(request.scoring.bounds)))
        record = self._record(result, timed, found, started, ended, evaluated.notices if evaluated else ())
        return MeasureOutcome(result, timed, record, evaluated.outputs if evaluated else None)

    def _record(
        self,
        result: BoardResult,
        timed: MeasurementResult,
        found: Preflight,
        started: BoardState,
        ended: BoardState,
        notices: Sequence[str] = (),
    ) -> dict[str, Any]:
        return {
            **timed.to_json(),
            "verdict": result.verdict,
            "reasons": list(result.reasons),
            "notices": [*timed.notices, *found.notices, *notices],
            "facts": asdict(self.facts),
            "options": asdict(self.options),
            "state_before": asdict(started),
            "state_after": asdict(ended),
            "load_ns": result.load_ns,
        }


def _placement(load: LoadReport) -> dict[str, Any]:
    placement = asdict(load.placement)
    placement["nodes"] = {name: list(nodes) for name, nodes in load.placement.nodes.items()}
    return placement


def _settings(request: MeasureRequest, *, exclusive: bool) -> MeasurementSettings:
    """The request's, with what is fed to the model. The seed, which trial and phase are in, labels the blocks."""
    asked = request.settings
    label = f"{asked.seed:016x}"
    rows = max(asked.rows, request.batch)
    return replace(
        asked,
        exclusive=exclusive,
        rows=rows,
        block=replace(asked.block, rows=rows, batch=request.batch, label=label),
        canary_block=replace(asked.canary_block, label=label),
    )


def _metrics(scoring: Scoring, evaluated: Evaluated, request: MeasureRequest) -> dict[str, MetricResult]:
    part = evaluated.part
    floats = scoring.float_scores.get(part.name, {})
    if part is not request.part:
        floats = {m.name: m.score(part.float_outputs, part.labels, part.float_outputs) for m in scoring.metrics}
    return score_outputs(part, scoring.metrics, scoring.bounds, floats, evaluated.outputs, is_float=request.is_float)


def _infer_deadline(timed: MeasurementResult, request: MeasureRequest, board: Board) -> float:
    each = timed.latency.p50 / 1e9 if timed.latency else 1.0
    sent_s = sending_s(board, request.part.path.stat().st_size)
    return 60.0 + 5.0 * each * request.part.samples / request.batch + 2.0 * sent_s


def board_constraints(asked: Constraints, limits: Limits) -> Constraints:
    """The plan's constraints, tightened by what the board's file says."""
    memory = [limit for limit in (asked.max_memory_bytes, limits.max_memory_bytes) if limit is not None]
    offload = [floor for floor in (asked.min_offload, limits.min_offload) if floor is not None]
    return replace(asked, max_memory_bytes=min(memory, default=None), min_offload=max(offload, default=None))
