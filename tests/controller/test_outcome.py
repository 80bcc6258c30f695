"""Exit codes and candidates.json."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from test_learning import Ledger, result

from harness.controller.finals import Asked, finalists, picks_of, run_finals
from harness.controller.outcome import candidates_json, exit_code
from harness.errors import ExitCode
from harness.ledger import events
from harness.ledger.state import LedgerState
from harness.recipes.recipe import FLOAT32, Recipe
from harness.results import BoardResult

ASKED = Asked("latency", "top1", 1, "pareto")
RECIPES = (FLOAT32, Recipe(), Recipe(activation="uint8"), Recipe(scheme="float16"))


def ledger_of(*results: BoardResult | None) -> Ledger:
    """Trial n has the n-th result on alpha; ``None``: it failed."""
    ledger = Ledger()
    for trial, found in enumerate(results):
        ledger.propose(trial, RECIPES[trial], {})
        if found is None:
            ledger.record(events.failed(trial, "LinkError", "gone"))
        else:
            ledger.finish(trial, alpha=replace(found, artifact=replace(found.artifact, identity=f"i{trial}")))
    return ledger


def code_of(state: LedgerState, *, budget_ended: bool = False, boards_lost: bool = False) -> ExitCode:
    selections = picks_of(state, ("alpha",), ASKED)
    return exit_code(state, selections, budget_ended=budget_ended, boards_lost=boards_lost)


BROKEN = {"latency": "broken"}


@pytest.mark.parametrize(
    ("results", "budget_ended", "boards_lost", "code"),
    [
        ([result()], False, False, ExitCode.OK),
        ([result(constraints=BROKEN), result(2e6)], True, False, ExitCode.OK),
        ([result()], False, True, ExitCode.OK),
        ([result(constraints=BROKEN)], False, False, ExitCode.NO_FEASIBLE_CANDIDATE),
        ([None, None], False, False, ExitCode.NO_FEASIBLE_CANDIDATE),
        ([], True, False, ExitCode.BUDGET_ENDED),
        ([result(constraints=BROKEN)], True, False, ExitCode.BUDGET_ENDED),
        ([result(verdict="invalid"), None], False, False, ExitCode.MEASUREMENTS_INVALID),
        ([result(verdict="invalid"), result(constraints=BROKEN)], False, False, ExitCode.NO_FEASIBLE_CANDIDATE),
        ([None, None], False, True, ExitCode.BOARD_UNAVAILABLE),
    ],
)
def test_exit_codes(results: list[BoardResult | None], budget_ended: bool, boards_lost: bool, code: ExitCode) -> None:
    assert code_of(ledger_of(*results).now, budget_ended=budget_ended, boards_lost=boards_lost) == code


def test_the_fields_that_others_script_against() -> None:
    ledger = ledger_of(result(2e6), result(1e6), None)
    state = ledger.now
    selections = picks_of(state, ("alpha",), ASKED)
    content = json.loads(json.dumps(candidates_json(state, ("alpha",), selections)))
    assert set(content) == {"candidates", "picks", "baseline", "trials", "device_seconds"}
    assert content["picks"] == {"alpha": [1]}
    assert content["trials"] == {"done": 2, "failed": 1, "pruned": 0, "duplicate": 0}
    assert content["baseline"]["trial"] == 0
    first, second = content["candidates"]
    assert {"trial", "recipe", "boards"} <= set(first)
    board = second["boards"]["alpha"]
    assert {"emulated", "verdict", "artifact", "compiled_sha256", "latency_ns", "load_ns", "first_ns",
            "peak_memory_bytes", "metrics", "placement", "reason"} <= set(board)  # fmt: skip
    assert {"sha256", "identity", "size_bytes"} <= set(board["artifact"])
    assert {"p50", "p90", "ci95", "n"} <= set(board["latency_ns"])
    assert {"value", "difference", "ci95", "outcome"} <= set(board["metrics"]["top1"])
    assert board["reason"]


def test_a_baseline_that_cannot_run_is_null() -> None:
    ledger = ledger_of(None, result())
    content = candidates_json(ledger.now, ("alpha",), picks_of(ledger.now, ("alpha",), ASKED))
    assert content["baseline"] == {"trial": None, "recipe": None, "label": "float32", "boards": {"alpha": None}}


class TestFinals:
    def run(self, ledger: Ledger, finals: dict[int, BoardResult | None], k: int = 1) -> list[int]:
        """Measures as told; gives the trials in the order they were measured."""
        measured: list[int] = []

        def finalise(board: str, trial: int) -> None:
            measured.append(trial)
            if trial in finals:
                ledger.record(events.final(trial, board, finals[trial], cause="" if finals[trial] else "LinkError"))

        run_finals("alpha", replace(ASKED, k=k), lambda: ledger.now, finalise)
        return measured

    def test_the_baseline_first_then_k_and_a_reserve(self) -> None:
        ledger = ledger_of(result(4e6), result(3e6), result(2e6), result(1e6))
        final = {n: result((4 - n) * 1e6, phase="final", identity=f"i{n}") for n in range(4)}
        final = {n: replace(r, artifact=ledger.now.trials[n].artifact or r.artifact) for n, r in final.items()}
        assert self.run(ledger, final) == [0, 3, 2]
        assert {c.trial for c in finalists(ledger.now, "alpha")} == {0, 2, 3}

    def test_more_are_drawn_when_finalists_fall(self) -> None:
        ledger = ledger_of(result(4e6), result(3e6), result(2e6), result(1e6))
        fallen = result(constraints=BROKEN, phase="final")
        measured = self.run(ledger, {0: fallen, 3: fallen, 2: None, 1: result(3e6, phase="final")})
        assert measured == [0, 3, 2, 1]
        assert picks_of(ledger.now, ("alpha",), ASKED)["alpha"].trials == (1,)

    def test_a_board_that_gives_everything_back_ends_it(self) -> None:
        ledger = ledger_of(result(2e6), result(1e6))
        assert self.run(ledger, {}) == [0]
        # The search's own results are picked from.
        assert picks_of(ledger.now, ("alpha",), ASKED)["alpha"].trials == (1,)

    def test_finals_that_are_not_over_do_not_decide(self) -> None:
        """Only the baseline was confirmed when the user interrupted."""
        ledger = ledger_of(result(2e6), result(1e6))
        ledger.record(events.final(0, "alpha", result(2e6, phase="final")))
        assert picks_of(ledger.now, ("alpha",), ASKED)["alpha"].trials == (1,)

    @pytest.mark.parametrize("killed_after", range(5))
    def test_a_resumed_search_draws_the_same(self, killed_after: int) -> None:
        """Finals that come out otherwise than the search said must not change who else is drawn."""
        final = {n: result(1e6 * (1 + n), phase="final", identity=f"i{n}") for n in range(4)}
        searched = [result(4e6), result(3e6), result(2e6), result(1e6)]
        whole = self.run(ledger_of(*searched), dict(final))
        ledger = ledger_of(*searched)
        before = self.run(ledger, {n: final[n] for n in whole[:killed_after]})
        assert before == whole[: killed_after + 1]
        assert [*before[:killed_after], *self.run(ledger, dict(final))] == whole

    def test_what_was_tried_is_not_tried_again(self) -> None:
        ledger = ledger_of(result(2e6), result(1e6))
        self.run(ledger, {0: result(2e6, phase="final"), 1: None})
        assert self.run(ledger, {}) == []
