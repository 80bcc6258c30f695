"""What the report shows, as values: built from a run's record, without files or drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.ledger.plain import canonical_json
from harness.ledger.state import LedgerState, TrialState
from harness.ledger.summary import build_summary
from harness.report.verdict import BoardVerdict, board_verdict
from harness.results import BoardResult, Candidate

SampleKey = tuple[int, str]
"""(trial, board)"""


@dataclass(frozen=True)
class Entry:
    """One candidate on one board."""

    trial: int
    label: str
    recipe: Mapping[str, Any]
    result: BoardResult
    rank: int | None
    """From 1, for picks."""

    @property
    def is_float(self) -> bool:
        return self.recipe.get("scheme") == "float32"

    @property
    def broken(self) -> tuple[str, ...]:
        """Names of the constraints it does not keep."""
        return tuple(name for name, outcome in self.result.constraints.items() if outcome == "broken")


@dataclass(frozen=True)
class Distribution:
    """Raw steady-state samples of one candidate."""

    trial: int
    label: str
    is_float: bool
    samples_ns: npt.NDArray[np.int64]


@dataclass(frozen=True)
class CanaryBlock:
    trial: int
    phase: str
    median_ns: float
    temperature_c: float | None
    """At the end of the block."""


@dataclass(frozen=True)
class BoardSection:
    name: str
    key: str
    """Names the section's elements in a page; made by us, never from the board's name."""
    emulated: bool
    facts: Mapping[str, Any]
    options: Mapping[str, Any]
    verdict: BoardVerdict
    baseline: Entry | None
    picks: tuple[Entry, ...]
    candidates: tuple[Entry, ...]
    """All of them, by trial number, picks included."""
    distributions: tuple[Distribution, ...]
    canary: tuple[CanaryBlock, ...]
    dropped: tuple[tuple[int, str, str, str], ...]
    """(trial, status, cause, message) of trials that failed or were pruned on this board only."""
    device_seconds: float


@dataclass(frozen=True)
class Loss:
    """Trials that ended otherwise than done, of one cause."""

    status: str
    cause: str
    trials: tuple[tuple[int, str, str], ...]
    """(number, label, message)"""


@dataclass(frozen=True)
class ReportData:
    summary: Mapping[str, Any]
    boards: tuple[BoardSection, ...]
    losses: tuple[Loss, ...]
    duplicates: tuple[tuple[int, str, int], ...]
    """(number, label, original)"""
    unfinished: tuple[int, ...]
    metrics: tuple[str, ...]
    """The one ranked on first."""
    units: Mapping[str, str]
    trials: Mapping[int, TrialState]
    notices: tuple[str, ...]

    @property
    def emulated(self) -> bool:
        return any(board.emulated for board in self.boards)


def build_report_data(
    state: LedgerState,
    *,
    candidates: Mapping[str, Any] | None = None,
    summary: Mapping[str, Any] | None = None,
    measurements: Mapping[int, Mapping[str, Any]] | None = None,
    samples: Mapping[SampleKey, npt.NDArray[np.int64]] | None = None,
) -> ReportData:
    """``candidates`` and ``summary`` as in the files, ``None`` where they are not written yet; ``measurements``: what
    ``measurement.json`` holds, by trial; ``samples``: steady-state latencies of the candidate, int64 [n]."""
    written = candidates or {}
    values = tuple(Candidate.from_json(c) for c in written.get("candidates", ())) or state.candidates()
    picks = {name: tuple(numbers) for name, numbers in (written.get("picks") or state.picks).items()}
    now = build_summary(state, notices=(summary or {}).get("notices", ()))
    metrics = tuple(dict.fromkeys([*now["metric"], *(m for c in values for b in c.boards.values() for m in b.metrics)]))
    names = sorted({*state.boards, *picks, *(name for c in values for name in c.boards)})
    sections = tuple(
        _section(
            name,
            f"board-{index}",
            state,
            values,
            picks.get(name, ()),
            written,
            metrics,
            now,
            measurements or {},
            samples or {},
        )
        for index, name in enumerate(names, 1)
    )
    now["verdict"] = {section.name: section.verdict.sentence for section in sections}
    return ReportData(
        summary=now,
        boards=sections,
        losses=_losses(state),
        duplicates=tuple(
            (t.number, t.label, t.duplicate_of)
            for _, t in sorted(state.trials.items())
            if t.status == "duplicate" and t.duplicate_of is not None
        ),
        unfinished=tuple(t.number for t in state.unfinished()),
        metrics=metrics,
        units=now["metric_units"],
        trials=dict(state.trials),
        notices=tuple(now["notices"]),
    )


def _section(
    name: str,
    key: str,
    state: LedgerState,
    candidates: Sequence[Candidate],
    picks: Sequence[int],
    written: Mapping[str, Any],
    metrics: Sequence[str],
    summary: Mapping[str, Any],
    measurements: Mapping[int, Mapping[str, Any]],
    samples: Mapping[SampleKey, npt.NDArray[np.int64]],
) -> BoardSection:
    here = tuple(
        Entry(c.trial, c.label, c.recipe, c.boards[name], picks.index(c.trial) + 1 if c.trial in picks else None)
        for c in sorted(candidates, key=lambda c: c.trial)
        if name in c.boards
    )
    baseline = next((entry for entry in here if entry.is_float), None) or _written_baseline(written, name)
    chosen = tuple(sorted((e for e in here if e.rank is not None), key=lambda e: e.rank or 0))
    board = state.boards.get(name, {})
    facts = board.get("facts", {})
    emulated = bool(facts.get("emulated", False)) or any(entry.result.emulated for entry in here)
    shown = [*([baseline] if baseline and baseline.rank is None else []), *chosen]
    return BoardSection(
        name=name,
        key=key,
        emulated=emulated,
        facts=facts,
        options=board.get("options", {}),
        verdict=board_verdict(
            name,
            candidates,
            picks,
            baseline.result if baseline else None,
            metrics=metrics,
            units=summary["metric_units"],
            finished=summary["status"] == "finished",
            emulated=emulated,
        ),
        baseline=baseline,
        picks=chosen,
        candidates=here,
        distributions=tuple(
            Distribution(e.trial, e.label, e.is_float, found)
            for e in shown
            if (found := samples.get((e.trial, name))) is not None and len(found)
        ),
        canary=_canary(name, measurements),
        dropped=tuple(
            (t.number, b.status, b.cause, b.message)
            for _, t in sorted(state.trials.items())
            if (b := t.boards.get(name)) is not None and b.status in ("failed", "pruned")
        ),
        device_seconds=state.device_seconds.get(name, 0.0),
    )


def _written_baseline(written: Mapping[str, Any], name: str) -> Entry | None:
    """The baseline has the shape of a candidate; ``None`` on a board where float cannot run."""
    baseline = written.get("baseline") or {}
    value = (baseline.get("boards") or {}).get(name)
    if not value:
        return None
    label = str(baseline.get("label", "float32"))
    return Entry(int(baseline.get("trial", 0)), label, {"scheme": "float32"}, BoardResult.from_json(value), None)


def _canary(name: str, measurements: Mapping[int, Mapping[str, Any]]) -> tuple[CanaryBlock, ...]:
    """In the order of the search, then of the finals."""
    found: list[CanaryBlock] = []
    for phase in ("search", "final"):
        for trial, content in sorted(measurements.items()):
            measurement = (content.get("boards", {}).get(name) or {}).get(phase) or {}
            found.extend(
                CanaryBlock(trial, phase, float(block["median_ns"]), (block.get("after") or {}).get("temperature_c"))
                for block in measurement.get("blocks", ())
                if block.get("target") == "canary" and block.get("kind") == "block" and block.get("median_ns")
            )
    return tuple(found)


def _losses(state: LedgerState) -> tuple[Loss, ...]:
    """Failed before pruned, the most frequent cause first."""
    groups: dict[tuple[str, str], list[tuple[int, str, str]]] = {}
    for _, trial in sorted(state.trials.items()):
        if trial.status in ("failed", "pruned"):
            groups.setdefault((trial.status, trial.cause), []).append((trial.number, trial.label, trial.message))
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1]))
    return tuple(Loss(status, cause, tuple(trials)) for (status, cause), trials in ordered)


def recipe_text(recipe: Mapping[str, Any]) -> str:
    return canonical_json(recipe)
