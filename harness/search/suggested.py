"""Puts recipes that somebody suggested between a proposer's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from harness.recipes.recipe import Recipe
from harness.search.proposer import Outcome, Proposal, Proposer


class SuggestedProposer:
    """``suggestions`` (by the number they are proposed as) beside the proposals of ``inner``.

    The inner proposer counts its own proposals only and hears of their outcomes only, so it proposes what it would
    have without the suggestions, later. With no suggestions it is the inner proposer.
    """

    def __init__(self, inner: Proposer, suggestions: Mapping[int, Recipe]) -> None:
        """Trial 0 is the float baseline and cannot be suggested: ``ValueError``."""
        if min(suggestions, default=1) < 1:
            raise ValueError("trial 0 is the float32 baseline: nothing else can be proposed as it")
        self._inner = inner
        self._suggestions = dict(suggestions)

    def ask(self, number: int) -> Proposal | None:
        recipe = self._suggestions.get(number)
        if recipe is not None:
            return Proposal(number, recipe, {}, "enumerated")
        proposal = self._inner.ask(self._own(number))
        return None if proposal is None else replace(proposal, number=number)

    def tell(self, number: int, outcome: Outcome) -> None:
        if number not in self._suggestions:
            self._inner.tell(self._own(number), outcome)

    def _own(self, number: int) -> int:
        """What the inner proposer calls proposal ``number``."""
        return number - sum(suggested < number for suggested in self._suggestions)
