"""Makes the proposer a plan asks for."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from harness.errors import ConfigError
from harness.recipes.space import ContinuousSpaceError, Space
from harness.search.listed import ListedProposer
from harness.search.ordering import OrderedProposer
from harness.search.proposer import PastTrial, Proposer, SamplerName
from harness.search.sources import walk

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

GRID_LIMIT = 20_000


def make_proposer(
    space: Space,
    sampler: SamplerName = "tpe",
    *,
    seed: int = 0,
    objectives: int = 1,
    window: int = 1,
    history: Sequence[PastTrial] = (),
) -> OrderedProposer:
    """A seeded proposer over ``space``; trial 0 is always the float32 baseline.

    An enumerated space is proposed in its order, whatever the sampler, and then exhausted. Otherwise the space's seeds
    come first, then the sampler. ``window``: trials that may be under way at once. ``history`` starts the sampler warm.
    Raises :class:`~harness.errors.ConfigError` on an unknown sampler, one whose package is missing, or a grid over a
    space that is continuous or too large.
    """
    if sampler not in get_args(SamplerName):
        raise ConfigError(f"unknown sampler {sampler!r}", hint=f"use one of {', '.join(get_args(SamplerName))}")
    if objectives < 1:
        raise ConfigError(f"a search with {objectives} objectives has nothing to look for")
    inner: Proposer
    if space.enumerated is not None:
        inner = ListedProposer((recipe, {}) for recipe in space.enumerated)
    elif sampler == "grid":
        inner = _grid(space, seed)
    else:
        inner = _sampled(space, sampler, seed, objectives, history)
    return OrderedProposer(inner, window)


def _grid(space: Space, seed: int) -> ListedProposer:
    """All of the space: its seeds, then the rest in random order, as a budget may end before the grid does."""
    try:
        entries = list(islice(walk(space), GRID_LIMIT + 1))
    except ContinuousSpaceError as error:
        raise ConfigError(f"space {space.name!r} has no grid: {error}", hint="use --sampler tpe or random") from None
    if len(entries) > GRID_LIMIT:
        raise ConfigError(
            f"the grid of space {space.name!r} has more than {GRID_LIMIT} recipes", hint="use --sampler tpe or random"
        )
    order = np.random.default_rng(seed).permutation(len(entries))
    params = {recipe.digest: values for recipe, values in entries}
    seeds = [(recipe, params.get(recipe.digest, {})) for recipe in space.seeds]
    return ListedProposer([*seeds, *(entries[int(i)] for i in order)])


def _sampled(space: Space, name: SamplerName, seed: int, objectives: int, history: Sequence[PastTrial]) -> Proposer:
    # Optuna takes half a second to import; commands that do not search should not wait for it.
    import optuna

    from harness.search.optuna_proposer import OptunaProposer

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # Optuna 5 prefers ``Trial.set_constraint`` over ``constraints_func``, which 4 knows and 6 still does.
        warnings.simplefilter("ignore", FutureWarning)
        proposer = OptunaProposer(space, _sampler(name, seed), seed=seed, objectives=objectives)
        proposer.warm_start(history)
    return proposer


def _sampler(name: SamplerName, seed: int) -> BaseSampler:
    from optuna import samplers

    from harness.search.optuna_proposer import constraints_of

    for package, wanted_by in (("torch", "gp"), ("cmaes", "cmaes")):
        if name == wanted_by and importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"sampler {name!r} needs the package {package!r}, which is not installed",
                hint=f"pip install {package}, or use --sampler tpe",
            )
    makers: Mapping[str, Callable[[], Any]] = {
        # group: conditional branches are modelled apart; liar: trials under way repel new ones.
        "tpe": lambda: samplers.TPESampler(
            seed=seed,
            multivariate=True,
            group=True,
            constant_liar=True,
            constraints_func=constraints_of,
        ),
        "random": lambda: samplers.RandomSampler(seed=seed),
        "nsga2": lambda: samplers.NSGAIISampler(seed=seed, population_size=20, constraints_func=constraints_of),
        "gp": lambda: samplers.GPSampler(seed=seed, constraints_func=constraints_of),
        "qmc": lambda: samplers.QMCSampler(seed=seed, scramble=True),
        "cmaes": lambda: samplers.CmaEsSampler(seed=seed),
    }
    return makers[name]()
