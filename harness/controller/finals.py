"""The end of a search: finalists are timed and evaluated afresh, on samples the search never saw, and picked from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.ledger.state import LedgerState
from harness.results import Candidate
from harness.search.filters import Objective
from harness.search.topk import Selection, UserFilter, select_top_k

RESERVES = 1
"""Finalists beyond K: one may turn out broken or slower on the final samples."""
ROUNDS = 3
"""Times that finalists are drawn, should finals leave fewer than K picks."""

Finalise = Callable[[str, int], None]
"""(board, trial): measures the finalist there and records it; returns when done, whatever came of it."""


@dataclass(frozen=True)
class Asked:
    """What picks are made by."""

    objective: Objective
    metric: str
    k: int
    filter_by: str | UserFilter

    def select(self, candidates: Sequence[Candidate], board: str, k: int | None = None) -> Selection:
        return select_top_k(
            candidates, board, k or self.k, objective=self.objective, metric=self.metric, filter_by=self.filter_by
        )


def run_finals(board: str, asked: Asked, state: Callable[[], LedgerState], finalise: Finalise) -> None:
    """Measures finalists of one board, the float baseline among them, until K of them stand or none is left."""
    _final_once(board, [0], state, finalise)
    for _ in range(ROUNDS):
        searched = [c for c in state().candidates() if board in c.boards]
        wanted = asked.select(searched, board, asked.k + RESERVES).picks
        untried = [pick.trial for pick in wanted if not _tried(state(), pick.trial, board)]
        if not untried:
            return
        _final_once(board, untried, state, finalise)
        if len(asked.select(finalists(state(), board), board).picks) >= asked.k:
            return


def finalists(state: LedgerState, board: str) -> list[Candidate]:
    """Candidates with a final result on the board."""
    return [c for c in state.candidates() if board in c.boards and c.boards[board].phase == "final"]


def picks_of(state: LedgerState, boards: Sequence[str], asked: Asked) -> Mapping[str, Selection]:
    """By board: from the finalists, or from the search's own results where the finals were not reached."""
    selections = {}
    for board in boards:
        final = finalists(state, board)
        selections[board] = asked.select(final or state.candidates(), board)
    return selections


def _final_once(board: str, trials: Sequence[int], state: Callable[[], LedgerState], finalise: Finalise) -> None:
    for trial in trials:
        known = state().trials.get(trial)
        measured = known is not None and board in known.boards and known.boards[board].result is not None
        if known is not None and known.status == "done" and measured and not _tried(state(), trial, board):
            finalise(board, trial)


def _tried(state: LedgerState, trial: int, board: str) -> bool:
    return state.trials[trial].boards[board].final_tried
