"""What proposes recipes: the contract, and the way to make one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from harness.recipes.recipe import Recipe
from harness.results import TrialStatus

SamplerName = Literal["tpe", "random", "grid", "nsga2", "gp", "qmc", "cmaes"]
Origin = Literal["baseline", "enumerated", "sampler"]


@dataclass(frozen=True)
class Proposal:
    """One recipe to try."""

    number: int
    recipe: Recipe
    params: Mapping[str, Any]
    """The space's parameters that made it (JSON values); empty for the baseline and enumerated recipes."""
    origin: Origin


@dataclass(frozen=True)
class Outcome:
    """What became of a proposal. All values: lower is better."""

    status: TrialStatus
    values: tuple[float, ...] | None = None
    """One per objective; ``None`` (or any value not finite) where nothing rankable was measured."""
    violations: tuple[float, ...] = ()
    """One per constraint: <= 0 kept, > 0 by how much it is broken, in whatever unit, the same for all trials."""


@dataclass(frozen=True)
class PastTrial:
    """A finished trial of an earlier search, to start a new one warm."""

    params: Mapping[str, Any]
    """Of its proposal, recorded."""
    outcome: Outcome


class Proposer(Protocol):
    """Asked for numbers 0, 1, 2, … in order; told in any order."""

    def ask(self, number: int) -> Proposal | None:
        """The proposal of that number; ``None`` when nothing new is left to try. Trial 0 is the float32 baseline."""

    def tell(self, number: int, outcome: Outcome) -> None: ...
