"""The end of a search: finalists are timed and evaluated afresh, on samples the search never saw, and picked from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

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
    while due := finals_due(state(), board, asked):
        finalise(board, due[0])
        if not _tried(state(), due[0], board):
            return  # the user interrupts, or the board is in quarantine


def finals_due(state: LedgerState, board: str, asked: Asked) -> list[int]:
    """Finalists still to be measured, in order; empty when the board's finals are over.

    Who is drawn follows from the search's results and the finals of those drawn before, whatever was measured before an
    interruption: a resumed search draws the same.
    """
    baseline = state.trials.get(0)
    if baseline is not None and baseline.status == "done" and _untried(state, [0], board):
        return [0]
    drawn: set[int] = {0}
    for _ in range(ROUNDS):
        picks = asked.select(_pool(state, board, drawn), board, asked.k + RESERVES).trials
        if drawn.issuperset(picks):
            return []
        drawn.update(picks)
        if untried := _untried(state, picks, board):
            return untried
        standing = [candidate for candidate in finalists(state, board) if candidate.trial in drawn]
        if len(asked.select(standing, board).picks) >= asked.k:
            return []
    return []


def finalists(state: LedgerState, board: str) -> list[Candidate]:
    """Candidates with a final result on the board."""
    return [c for c in state.candidates() if board in c.boards and c.boards[board].phase == "final"]


def picks_of(state: LedgerState, boards: Sequence[str], asked: Asked) -> Mapping[str, Selection]:
    """By board: from the finalists, or from all that was measured where the finals are not over."""
    selections = {}
    for board in boards:
        final = [] if finals_due(state, board, asked) else finalists(state, board)
        everyone = asked.select(state.candidates(), board)
        selections[board] = _with_others(asked.select(final, board), everyone) if final else everyone
    return selections


def _with_others(final: Selection, everyone: Selection) -> Selection:
    """The finalists' selection, with a reason for those who were not among them."""
    left = {trial: reason for trial, reason in everyone.reasons.items() if trial not in final.reasons}
    named = {pick.trial for pick in everyone.picks}
    told = {
        trial: "by the search's own measurement it comes after the finalists" if trial in named else reason
        for trial, reason in left.items()
    }
    return replace(final, others=dict(sorted({**final.others, **told}.items())))


def _pool(state: LedgerState, board: str, drawn: Collection[int]) -> list[Candidate]:
    """With the final results of those drawn, and without those that failed there."""
    pool = []
    for trial in state.done():
        known = trial.boards.get(board)
        if known is None:
            continue
        final = trial.number in drawn and known.final_tried
        result = known.final if final else known.result
        if result is not None:
            pool.append(Candidate(trial.number, trial.recipe, trial.label, {board: result}))
    return pool


def _untried(state: LedgerState, trials: Sequence[int], board: str) -> list[int]:
    return [
        n for n in trials if (b := state.trials[n].boards.get(board)) and b.result is not None and not b.final_tried
    ]


def _tried(state: LedgerState, trial: int, board: str) -> bool:
    return state.trials[trial].boards[board].final_tried
