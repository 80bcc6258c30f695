"""What a run hands over: candidates.json, and the exit code that says how it went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.errors import ExitCode
from harness.ledger.state import LedgerState
from harness.recipes.recipe import Recipe
from harness.results import BoardResult, Candidate, to_json
from harness.search.topk import Selection


def candidates_json(state: LedgerState, boards: Sequence[str], selections: Mapping[str, Selection]) -> dict[str, Any]:
    """The content of ``candidates.json``; the same for the same ledger, byte for byte."""
    candidates = [_with_reasons(candidate, selections) for candidate in state.candidates()]
    baseline = next((c for c in candidates if Recipe.from_dict(c.recipe).is_float32), None)
    return {
        "candidates": [_shown(candidate) for candidate in candidates],
        "picks": {name: [pick.trial for pick in selections[name].picks] for name in boards},
        "baseline": _baseline(baseline, boards),
        "trials": state.counts(),
        "device_seconds": {name: round(state.device_seconds.get(name, 0.0), 6) for name in boards},
    }


def exit_code(
    state: LedgerState, selections: Mapping[str, Selection], *, budget_ended: bool, boards_lost: bool = False
) -> ExitCode:
    """3 no board has a feasible candidate (4 if none is left to find one on, 6 if a budget ended before one), 5
    nothing measured is valid, 1 every trial met a defect of boardtune."""
    if any(selection.picks for selection in selections.values()):
        return ExitCode.OK
    if boards_lost:
        return ExitCode.BOARD_UNAVAILABLE
    if state.trials and all(trial.cause == "internal" for trial in state.trials.values()):
        return ExitCode.INTERNAL
    results = [result for candidate in state.candidates() for result in candidate.boards.values()]
    if results and all(result.verdict == "invalid" for result in results):
        return ExitCode.MEASUREMENTS_INVALID
    return ExitCode.BUDGET_ENDED if budget_ended else ExitCode.NO_FEASIBLE_CANDIDATE


def _with_reasons(candidate: Candidate, selections: Mapping[str, Selection]) -> Candidate:
    boards = {
        name: replace(result, reason=selections[name].reasons.get(candidate.trial)) if name in selections else result
        for name, result in sorted(candidate.boards.items())
    }
    return replace(candidate, boards=boards)


def _shown(candidate: Candidate) -> dict[str, Any]:
    value = to_json(candidate)
    value["boards"] = {name: board_json(result) for name, result in candidate.boards.items()}
    return value


def board_json(result: BoardResult) -> dict[str, Any]:
    """One board's part of ``candidates.json``, and of ``measure --json``."""
    return to_json(result)


def _baseline(baseline: Candidate | None, boards: Sequence[str]) -> dict[str, Any]:
    """The same shape as a candidate; ``null`` for a board where float cannot run."""
    if baseline is None:
        return {"trial": None, "recipe": None, "label": "float32", "boards": dict.fromkeys(boards)}
    value = _shown(baseline)
    value["boards"] = {name: value["boards"].get(name) for name in boards}
    return value
