"""Ray Tune's searcher: what ends it, and that it then lets nobody wait."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from ray.tune.search import Searcher

from harness.controller.learning import Assignment
from harness.controller.searcher import LedgerSearcher


class Proposing:
    """The part of Learning that the searcher uses: proposes, until it is to break."""

    def __init__(self, breaks_at: int | None = None) -> None:
        self.number = 0
        self.breaks_at = breaks_at
        self.calls: list[str] = []

    def next(self) -> Assignment | Literal["wait"] | None:
        if self.number == self.breaks_at:
            raise ConnectionError("the recorder died")
        self.number += 1
        return Assignment(self.number - 1, {"local": None})

    def ended(self, number: int) -> None:
        self.calls.append(f"ended {number}")

    def died(self, number: int, detail: str) -> None:
        self.calls.append(f"died {number}: {detail}")


def searcher(learning: Proposing) -> tuple[LedgerSearcher, list[str]]:
    told: list[str] = []
    made = LedgerSearcher(
        learning,  # type: ignore[arg-type]
        lambda: True,
        after_failure=lambda: told.append("failure"),
        give_up=lambda: told.append("gave up"),
    )
    return made, told


def test_done_and_failed_trials_go_on() -> None:
    learning = Proposing()
    made, told = searcher(learning)
    for name in ("a", "b", "c"):
        assert isinstance(made.suggest(name), dict)
    made.on_trial_complete("a", {"ended": "done"})
    made.on_trial_complete("b", {"ended": "failed"})
    made.on_trial_complete("c", None, error=True)
    assert learning.calls == ["ended 0", "ended 1", "died 2: "]
    assert told == ["failure", "failure"]
    assert made.error is None
    assert isinstance(made.suggest("d"), dict)


@pytest.mark.parametrize("way", ["lost", "proposal", "record"])
def test_what_ends_the_search_gives_up_the_trials_that_wait(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learning = Proposing(breaks_at=1 if way == "proposal" else None)
    made, told = searcher(learning)
    assert isinstance(made.suggest("a"), dict)
    if way == "proposal":
        assert made.suggest("b") == Searcher.FINISHED
    elif way == "lost":
        made.on_trial_complete("a", {"ended": "lost", "detail": "the actor died\nlong story"})
        assert "the actor died" in str(made.error)
        assert "long story" not in str(made.error)
    else:

        def gone(number: int) -> Any:
            raise ConnectionError("the recorder died")

        monkeypatch.setattr(learning, "ended", gone)
        made.on_trial_complete("a", {"ended": "done"})
    assert made.error is not None
    assert told == ["gave up"]
    assert made.suggest("c") == Searcher.FINISHED
    assert learning.calls == []
