"""Proposals from an Optuna sampler, by ask and tell.

Optuna runs nothing here and stores nothing: the ledger is the truth, and a study is rebuilt from it by asking and
telling again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from harness.errors import ConfigError
from harness.recipes.recipe import FLOAT32, Recipe
from harness.recipes.space import ContinuousSpaceError, Space
from harness.search.proposer import Origin, Outcome, PastTrial, Proposal
from harness.search.sources import FixedSource, MissingParameter, NearSource, walk

NEAR_TRIES = 100
"""Recipes looked at near one that the sampler proposed again. Asking it anew would cost it its whole model each time,
and every answer stays in its study."""
RANDOM_TRIES = 100
ENUMERATION_LIMIT = 20_000
"""Recipes looked at when a finite space is searched for what is left."""

_VIOLATIONS = "violations"


def constraints_of(trial: FrozenTrial) -> Sequence[float]:
    """Optuna's ``constraints_func``: what was told with the outcome."""
    return tuple(trial.user_attrs.get(_VIOLATIONS, ())) or (0.0,)


class OptunaSource:
    """Passes a space's questions to an Optuna trial."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def categorical(self, name: str, choices: Sequence[str]) -> str:
        return str(self._trial.suggest_categorical(name, choices))

    def integer(self, name: str, low: int, high: int) -> int:
        return int(self._trial.suggest_int(name, low, high))

    def floating(self, name: str, low: float, high: float, log: bool = False) -> float:
        return float(self._trial.suggest_float(name, low, high, log=log))


class OptunaProposer:
    """The baseline, the space's seeds, then the sampler; never the same recipe twice."""

    def __init__(self, space: Space, sampler: optuna.samplers.BaseSampler, *, seed: int, objectives: int) -> None:
        self._space = space
        self._objectives = objectives
        # No pruner: there are no intermediate values here, and the default would look for some on every tell.
        self._study = optuna.create_study(
            directions=["minimize"] * objectives, sampler=sampler, pruner=optuna.pruners.NopPruner()
        )
        self._rng = np.random.default_rng(seed)
        self._seen: set[str] = {FLOAT32.digest}
        self._trials: dict[int, Trial] = {}
        """Optuna's trials that wait for their outcome, by our number."""
        self._unknown_seeds: dict[int, str] = {}
        self._known: dict[str, Outcome] = {}
        """Outcomes by digest that Optuna has not heard of, as no parameters were known for the recipe."""
        self._exhausted = False
        self._constraints = 1
        self._catalogue = {**self._enumerate(), **space.answers}
        self._seeds = [r for r in space.seeds if not r.is_float32]

    def ask(self, number: int) -> Proposal | None:
        if number == 0:
            self._unknown_seeds[0] = FLOAT32.digest
            return Proposal(0, FLOAT32, {}, "baseline")
        while self._seeds:
            recipe = self._seeds.pop(0)
            if recipe.digest not in self._seen:
                return self._propose_seed(number, recipe)
        if self._exhausted:
            return None
        proposal = self._from_sampler(number) or self._left_over(number)
        self._exhausted = proposal is None
        return proposal

    def tell(self, number: int, outcome: Outcome) -> None:
        digest = self._unknown_seeds.pop(number, None)
        if digest is not None:
            self._known[digest] = outcome
            return
        self._settle(self._trials.pop(number), outcome)

    def warm_start(self, history: Sequence[PastTrial]) -> int:
        """Tells the sampler of trials of an earlier search; returns how many fit this space.

        Their recipes may be proposed again: they were measured under other conditions.
        """
        taken = 0
        for past in history:
            if self._fits(past.params):
                trial, _ = self._ask_fixed(past.params)
                self._settle(trial, past.outcome)
                taken += 1
        return taken

    def _propose_seed(self, number: int, recipe: Recipe) -> Proposal:
        self._seen.add(recipe.digest)
        params = self._catalogue.get(recipe.digest)
        if params is None:
            self._unknown_seeds[number] = recipe.digest
            return Proposal(number, recipe, {}, "enumerated")
        return self._propose_fixed(number, recipe, params, "enumerated")

    def _propose_fixed(self, number: int, recipe: Recipe, params: Mapping[str, Any], origin: Origin) -> Proposal:
        self._seen.add(recipe.digest)
        self._trials[number], _ = self._ask_fixed(params)
        return Proposal(number, recipe, dict(params), origin)

    def _from_sampler(self, number: int) -> Proposal | None:
        trial = self._study.ask()
        try:
            recipe = self._space.suggest(OptunaSource(trial))
        except ConfigError:
            # A combination the recipe itself refuses: Optuna is to leave it.
            self._settle(trial, Outcome("failed"))
            return self._drawn(number, trial.params)
        if recipe.digest not in self._seen:
            self._seen.add(recipe.digest)
            self._trials[number] = trial
            return Proposal(number, recipe, dict(trial.params), "sampler")
        # What is known of it, once: told again and again it would count for more than it is worth.
        known = self._known.pop(recipe.digest, None)
        if known is None:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._settle(trial, known)
        return self._drawn(number, trial.params)

    def _drawn(self, number: int, params: Mapping[str, Any]) -> Proposal | None:
        """A new recipe that differs little from ``params``, then more, at last one at random."""
        for attempt in range(NEAR_TRIES + RANDOM_TRIES):
            redraw = min(1.0, (1 + attempt / 20) / max(1, len(params))) if attempt < NEAR_TRIES else 1.0
            source = NearSource(params, self._rng, redraw)
            try:
                recipe = self._space.suggest(source)
            except ConfigError:
                continue
            if recipe.digest not in self._seen:
                return self._propose_fixed(number, recipe, source.params, "sampler")
        return None

    def _left_over(self, number: int) -> Proposal | None:
        try:
            for recipe, params in islice(walk(self._space), ENUMERATION_LIMIT):
                if recipe.digest not in self._seen:
                    return self._propose_fixed(number, recipe, params, "sampler")
        except ContinuousSpaceError:
            pass
        return None

    def _enumerate(self) -> dict[str, Mapping[str, Any]]:
        """Parameters by digest where the space is small enough, so that seeds teach the sampler too."""
        size = self._space.size
        if not self._space.seeds or size is None or size > ENUMERATION_LIMIT:
            return {}
        wanted = {recipe.digest for recipe in self._space.seeds}
        return {r.digest: params for r, params in walk(self._space) if r.digest in wanted}

    def _fits(self, params: Mapping[str, Any]) -> bool:
        try:
            self._space.suggest(FixedSource(params))
        except (MissingParameter, ConfigError):
            return False
        return bool(params)

    def _ask_fixed(self, params: Mapping[str, Any]) -> tuple[Trial, Recipe]:
        self._study.enqueue_trial(dict(params))
        trial = self._study.ask()
        return trial, self._space.suggest(OptunaSource(trial))

    def _settle(self, trial: Trial, outcome: Outcome) -> None:
        values = outcome.values
        usable = values is not None and len(values) == self._objectives and all(map(math.isfinite, values))
        violations = [v if math.isfinite(v) else 1e30 for v in outcome.violations]
        self._constraints = max(self._constraints, len(violations))
        # Optuna wants as many for every trial.
        violations += [0.0] * (self._constraints - len(violations))
        trial.set_user_attr(_VIOLATIONS, violations)
        if usable and outcome.status in ("done", "duplicate"):
            self._study.tell(trial, list(values or ()))
        elif outcome.status in ("failed", "pruned"):
            # Samplers forget failed trials and would propose their like again; pruned ones count as bad.
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, state=TrialState.FAIL)
