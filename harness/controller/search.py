"""A search from plan to picks."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.controller.evaluation import PartName
from harness.controller.finals import picks_of
from harness.controller.finals_budget import FinalsBudget
from harness.controller.interrupt import Interruption
from harness.controller.learning import Learning
from harness.controller.logs import log_to_file, stop_log_to_file
from harness.controller.outcome import candidates_json, exit_code
from harness.controller.progress import Progress, SilentWatcher, Watcher
from harness.controller.setup import RESUMABLE, SearchSetup, header_of, set_up
from harness.errors import ExitCode
from harness.plan import Plan
from harness.quantize.imported import check_unchanged
from harness.scratch import scratch_folder
from harness.search.allowance import TrialCosts
from harness.search.budget import Budget, Limits
from harness.search.topk import Selection

if TYPE_CHECKING:
    from harness.controller.crew import SearchCrew, Staff

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class SearchResult:
    run_dir: Path
    candidates: Mapping[str, Any]
    """Content of candidates.json."""
    selections: Mapping[str, Selection]
    """By board."""
    exit_code: ExitCode
    stop_reason: str
    report: Path | None
    notices: tuple[str, ...]


def search(
    plan: Plan,
    run_dir: Path,
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
    ray_address: str | None = None,
    staff: Staff | None = None,
) -> SearchResult:
    """Runs the plan and writes the run directory.

    Raises the :class:`~harness.errors.BoardtuneError` family; what was recorded by then can be resumed.
    """
    from harness.controller.crew import Staff, hire
    from harness.controller.ray_session import ray_session
    from harness.ledger.run_directory import LOGS, RunDirectory, recorded_header
    from harness.report.build import write_report, write_summary

    watcher = watcher or SilentWatcher()
    with scratch_folder() as work:
        if resume and plan.candidates:
            check_unchanged(recorded_header(run_dir).get("candidates", ()), plan.candidates)
        # Empty where there is nothing to resume: a new run begins.
        resumed = recorded_header(run_dir) if resume and plan.mixed_precision != "none" else {}
        # With a large model or many samples this takes minutes.
        watcher.update(Progress("preparing", plan.trials or 0))
        setup = set_up(plan, work, resumed or None)
        header = header_of(setup)
        RunDirectory.check(run_dir, header, resume=resume, may_change=RESUMABLE)
        # Not one more: Tune starts a process for every trial that waits, to end it as soon as one is free for reuse.
        slots = setup.window + setup.quantizers
        with Interruption() as interruption, ray_session(slots, run_dir / LOGS, ray_address) as node:
            crew = hire(setup, run_dir, header, resume=resume, node=node, staff=staff or Staff())
            setup = crew.setup
            handler = log_to_file(run_dir / LOGS / "search.log")
            at_once = False
            try:
                notices = (*setup.prepared.notices, *crew.notices)
                for notice in notices:
                    watcher.notice(notice)
                crew.open_boards(watcher)
                crew.note(setup.prepared.notices)
                budget = _budget(setup, crew)
                learning = _learning(setup, crew, budget)
                crew.run(learning, interruption, watcher)
                lost = crew.all_quarantined()
                if not interruption.asked:
                    crew.run_finals(interruption, watcher, _finals_budget(setup, budget))
                state = crew.state()
                selections = picks_of(state, plan.boards, setup.asked)
                content = candidates_json(state, plan.boards, selections)
                interrupted = interruption.asked
                stop = "interrupted" if interrupted else learning.stop_reason or lost or "finished"
                crew.finish(content, selections, stop, interrupted=interrupted)
                written = RunDirectory.open(run_dir)
                write_summary(written)
                report = write_report(written)
                code = exit_code(state, selections, budget_ended=_budget_ended(learning), boards_lost=bool(lost))
                if interrupted:
                    code = ExitCode.INTERRUPTED
            except KeyboardInterrupt:
                at_once = True
                raise
            except Exception:
                log.exception("the search ended")
                raise
            finally:
                crew.dismiss(at_once=at_once)
                stop_log_to_file(handler)
        return SearchResult(run_dir, content, selections, code, stop, report, tuple(dict.fromkeys(notices)))


def _budget(setup: SearchSetup, crew: SearchCrew) -> Budget:
    plan = setup.plan
    limits = Limits(
        trials=setup.trials,
        max_time_s=plan.max_time / 1e9 if plan.max_time else None,
        device_s=plan.budget / 1e9 if plan.budget else None,
    )
    reserves = finals_reserves_s(setup)
    budget = Budget(
        limits, time.monotonic, reserve_s=sum(reserves.values()), time_reserve_s=max(reserves.values(), default=0.0)
    )
    # Trials and their device time are counted as they are proposed again.
    budget.resume(trials=0, elapsed_s=crew.state().active_s, device_s={})
    return budget


def _learning(setup: SearchSetup, crew: SearchCrew, budget: Budget) -> Learning:
    return Learning(
        setup.plan,
        tuple(setup.boards),
        setup.proposer,
        crew,
        crew.state(),
        scoring=setup.prepared.scoring,
        budget=budget,
        costs=TrialCosts(
            {name: setup.policy.screening(0, name) for name in setup.boards}, _inferences(setup, "search")
        ),
    )


def _inferences(setup: SearchSetup, part: PartName) -> int:
    """Of an evaluation."""
    return math.ceil(setup.prepared.parts[part].samples / setup.plan.batch)


def _finals_budget(setup: SearchSetup, budget: Budget) -> FinalsBudget:
    return FinalsBudget(
        setup.policy,
        boards=len(setup.boards),
        finalists=setup.plan.top_k + 1,
        inferences=_inferences(setup, "final"),
        device_s=budget.limits.device_s,
        time_left_s=lambda: budget.time_left_s,
    )


def finals_reserves_s(setup: SearchSetup) -> dict[str, float]:
    """Device time that the finalists will want, at least; by board."""
    from harness.search.estimate import estimate_measurement

    finalists = setup.plan.top_k + 1
    return {name: estimate_measurement(setup.policy.final(0, name)).low_s * finalists for name in setup.boards}


def _budget_ended(learning: Learning) -> bool:
    return learning.stop_reason is not None and "used up" in learning.stop_reason


def default_run_dir(model: Path, now: float | None = None) -> Path:
    """``runs/NAME-YYYYmmdd-HHMMSS`` in the current folder."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return Path(os.curdir) / "runs" / f"{model.stem}-{stamp}"
