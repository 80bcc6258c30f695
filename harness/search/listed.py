"""Proposes a list of recipes, in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from harness.recipes.recipe import FLOAT32, Recipe
from harness.search.proposer import Origin, Outcome, Proposal

Entry = tuple[Recipe, Mapping[str, Any]]


class ListedProposer:
    """The float32 baseline, then every other recipe of the list once."""

    def __init__(self, entries: Iterable[Entry], origin: Origin = "enumerated") -> None:
        unique: dict[str, Entry] = {FLOAT32.digest: (FLOAT32, {})}
        for recipe, params in entries:
            unique.setdefault(recipe.digest, (recipe, params))
        self._entries = tuple(unique.values())
        self._origin: Origin = origin

    def ask(self, number: int) -> Proposal | None:
        if number >= len(self._entries):
            return None
        recipe, params = self._entries[number]
        return Proposal(number, recipe, params, "baseline" if recipe.is_float32 else self._origin)

    def tell(self, number: int, outcome: Outcome) -> None:
        """A list learns nothing."""
