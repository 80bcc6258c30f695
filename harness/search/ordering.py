"""Keeps a search reproducible whatever order its trials end in.

With trials overlapping, a proposer that hears of each as it ends proposes what chance lets it. Here proposal n sees
exactly the outcomes of trials 0 … n - W, told in their order; W is the window, how many trials may be under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from harness.recipes.recipe import Recipe
from harness.search.proposer import Outcome, Proposal, Proposer
from harness.search.suggested import SuggestedProposer

T = TypeVar("T")


class OrderedTells(Generic[T]):
    """Holds finished outcomes back until their turn."""

    def __init__(self, window: int) -> None:
        if window < 1:
            raise ValueError(f"window is {window}: at least 1 trial is under way")
        self.window = window
        self._finished: dict[int, T] = {}
        self._released = 0

    def finish(self, number: int, outcome: T) -> None:
        """Raises ``ValueError`` on a number told before."""
        if number < self._released or number in self._finished:
            raise ValueError(f"trial {number} was told before")
        self._finished[number] = outcome

    def ready(self, number: int) -> bool:
        """Whether proposal ``number`` can be made: all it must see has finished."""
        return all(n in self._finished for n in range(self._released, number - self.window + 1))

    def release(self, number: int) -> list[tuple[int, T]]:
        """What ``number`` sees and no proposal before it saw, in order. Raises ``ValueError`` unless :meth:`ready`."""
        if not self.ready(number):
            raise ValueError(f"proposal {number} needs trials up to {number - self.window}, which are not all finished")
        end = max(self._released, number - self.window + 1)
        out = [(n, self._finished.pop(n)) for n in range(self._released, end)]
        self._released = end
        return out


class OrderedProposer:
    """A proposer whose proposals depend on the seed and the outcomes only, never on timing.

    A search is continued by asking again for every number in turn and telling the recorded outcomes: the proposals
    come out the same.
    """

    def __init__(self, inner: Proposer, window: int = 1) -> None:
        self._inner = inner
        self._order: OrderedTells[Outcome] = OrderedTells(window)
        self._asked: dict[int, Proposal] = {}
        self._next = 0

    @property
    def window(self) -> int:
        return self._order.window

    def with_suggestions(self, suggestions: Mapping[int, Recipe]) -> OrderedProposer:
        """The same, as yet asked for nothing, with recipes put between its own by the number they are proposed as."""
        if self._next:
            raise ValueError(f"{self._next} proposals were made before suggestions were known")
        return OrderedProposer(SuggestedProposer(self._inner, suggestions), self.window)

    def ready(self, number: int) -> bool:
        return self._order.ready(number)

    def ask(self, number: int) -> Proposal | None:
        """Raises ``ValueError`` unless ``number`` is the next one and :meth:`ready`."""
        if number != self._next:
            raise ValueError(f"asked for proposal {number}, but the next is {self._next}")
        for told, outcome in self._order.release(number):
            self._inner.tell(told, outcome)
        proposal = self._inner.ask(number)
        if proposal is not None:
            self._next += 1
        return proposal

    def tell(self, number: int, outcome: Outcome) -> None:
        """In any order; ``ValueError`` on a number that was not asked for or was told before."""
        if number >= self._next:
            raise ValueError(f"trial {number} was told, but only {self._next} were asked for")
        self._order.finish(number, outcome)
