"""From a plan to everything that is known before a board is touched."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.boards.chips import chip_of
from harness.boards.own_model import has_own_model
from harness.boards.registry import load_registry
from harness.boards.schema import Board
from harness.controller.finals import Asked
from harness.controller.mixed_precision import mixed_axis, recorded_axis
from harness.controller.policy import MeasurementPolicy
from harness.controller.preparation import Prepared, prepare
from harness.data.callables import load_callable
from harness.errors import ConfigError
from harness.ledger.header import run_header
from harness.ledger.state import Suggestion
from harness.plan import Plan
from harness.quantize.vendors.environments import find_environment
from harness.recipes.files import read_recipe
from harness.recipes.mixed import MixedAxis
from harness.recipes.presets import preset
from harness.recipes.recipe import FLOAT32, Recipe
from harness.recipes.space import Space, listed_space
from harness.search.make import make_proposer
from harness.search.objectives import objective_count
from harness.search.ordering import OrderedProposer
from harness.search.topk import FILTERS, UserFilter

OPEN_SPACE_TRIALS = 32
"""Least number of trials where neither the plan nor the preset says how many."""
RESUMABLE = ("plan.trials", "plan.budget", "plan.max_time")
"""Fields of the plan that may change on ``--resume``: more trials or more time."""


@dataclass(frozen=True, eq=False)
class SearchSetup:
    """What is known before a board is touched."""

    plan: Plan
    boards: Mapping[str, Board]
    prepared: Prepared
    space: Space
    mixed: MixedAxis | None
    """Which groups the space keeps precise, if any."""
    trials: int
    asked: Asked
    policy: MeasurementPolicy
    proposer: OrderedProposer
    """Fresh: it has been asked nothing."""

    @property
    def window(self) -> int:
        """Trials in the making at once."""
        return self.proposer.window

    @property
    def quantizers(self) -> int:
        """Quantizers at work at once."""
        return max(1, min(2, os.cpu_count() or 1, self.trials))


def set_up(plan: Plan, folder: Path, resumed: Mapping[str, Any] | None = None) -> SearchSetup:
    """Reads boards, model, data and recipes into ``folder``; raises before any board is touched.

    ``resumed`` is the header of the run to go on with: how it ranked the model's groups is not found out again, since
    another processor's rounding may rank them otherwise.
    """
    registry = load_registry()
    boards = {name: registry.get(name) for name in plan.boards}
    filter_by = load_filter(plan.filter)
    refuse_own_models(boards)
    chips = chips_of(boards)
    if chips:
        check_for_chips(plan)
    prepared = prepare(plan, folder)
    if resumed is None:
        mixed, left_out = mixed_axis(plan.mixed_precision, prepared)
    else:
        mixed, left_out = recorded_axis(plan.mixed_precision, resumed.get("mixed_precision")), ()
    prepared = replace(prepared, notices=(*prepared.notices, *left_out))
    space = space_of(plan, prepared, mixed, chips)
    need_backends(space.seeds)
    # All that a preset puts first, as a first stage is worth little in part.
    listed = len(space.enumerated) if space.enumerated is not None else max(OPEN_SPACE_TRIALS, len(space.seeds))
    trials = plan.trials or listed
    if plan.top_k > trials:
        raise ConfigError(
            f"--top-k {plan.top_k} is more than the {trials} recipes that preset {plan.preset!r} tries",
            hint="lower --top-k, or choose a larger preset",
        )
    if trials <= len(prepared.imported):
        raise ConfigError(
            f"--trials {trials} leaves no room for the float baseline and {len(prepared.imported)} models of "
            "--add-candidate",
            hint="raise --trials",
        )
    if space.enumerated is not None and "sampler" in plan.model_fields_set:
        unused = f"--sampler {plan.sampler} has no effect: preset {plan.preset!r} is a list, tried in its order"
        prepared = replace(prepared, notices=(*prepared.notices, unused))
    metric = prepared.scoring.metrics[0].name
    return SearchSetup(
        plan=plan,
        boards=boards,
        prepared=prepared,
        space=space,
        mixed=mixed,
        trials=trials,
        asked=Asked(plan.objective, metric, plan.top_k, filter_by),
        policy=MeasurementPolicy(plan.seed, plan.effort, {name: board.noise for name, board in boards.items()}),
        proposer=make_proposer(
            space,
            plan.sampler,
            seed=plan.seed,
            objectives=objective_count(plan.objective, metric),
            # One trial on each board, and two being quantized.
            window=plan.window or len(boards) + 2,
        ),
    )


def with_suggestions(setup: SearchSetup, suggestions: Sequence[Suggestion]) -> SearchSetup:
    """The search with recipes that were put into it, beyond as many trials as the plan asks for."""
    if not suggestions:
        return setup
    recipes = {suggestion.number: Recipe.from_dict(suggestion.recipe) for suggestion in suggestions}
    return replace(setup, trials=setup.trials + len(recipes), proposer=setup.proposer.with_suggestions(recipes))


def space_of(plan: Plan, prepared: Prepared, mixed: MixedAxis | None = None, chips: Sequence[str] = ()) -> Space:
    """The preset's space; models made elsewhere and the plan's own recipes come first, after the float baseline.
    ``chips``: of boards that run ``.espdl`` models."""
    space = preset(plan.preset, prepared.model.facts, mixed, esp_targets=chips)
    own = (*(model.recipe for model in prepared.imported), *(read_recipe(path) for path in plan.recipes))
    if space.enumerated is not None:
        return listed_space(space.name, (FLOAT32, *own, *space.enumerated))
    return replace(space, seeds=tuple({recipe.digest: recipe for recipe in (FLOAT32, *own, *space.seeds)}.values()))


def refuse_own_models(boards: Mapping[str, Board]) -> None:
    """Raises :class:`ConfigError` where a board takes no candidates."""
    fixed = [name for name, board in boards.items() if has_own_model(board)]
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)}: MLPerf Tiny firmware contains one model and takes no other, so there is nothing to "
            "search",
            hint=f"boardtune measure MODEL --boards {','.join(fixed)} times and checks the model it contains",
        )


def chips_of(boards: Mapping[str, Board]) -> tuple[str, ...]:
    """The chips of boards that run ``.espdl`` models, each once. Raises :class:`ConfigError` where only some do: they
    would have no recipe in common."""
    chips = {name: chip_of(board) for name, board in boards.items()}
    with_chip = [name for name, chip in chips.items() if chip is not None]
    others = [name for name, chip in chips.items() if chip is None]
    if with_chip and others:
        raise ConfigError(
            f"{', '.join(with_chip)} run .espdl models and {', '.join(others)} ONNX models",
            hint="they have no recipe in common: search for them in two runs",
        )
    return tuple(dict.fromkeys(chip for chip in chips.values() if chip is not None))


def check_for_chips(plan: Plan) -> None:
    """Raises :class:`ConfigError` for what boards that run ``.espdl`` models cannot do."""
    asked = {
        f"--batch {plan.batch}": plan.batch != 1,
        "--scope pipeline": plan.scope != "inference",
        f"--mixed-precision {plan.mixed_precision}": plan.mixed_precision != "none",
        "--add-candidate": bool(plan.candidates),
    }
    for what, is_asked in asked.items():
        if is_asked:
            raise ConfigError(
                f"{what} is not there for boards that run .espdl models", hint="leave it out, or name other boards"
            )


def need_backends(recipes: Iterable[Recipe]) -> None:
    """Raises :class:`ConfigError` where a recipe's quantizer is not installed, before a board is touched."""
    for backend in sorted({recipe.backend for recipe in recipes if recipe.scheme == "vendor"}):
        find_environment(backend)


def load_filter(text: str) -> str | UserFilter:
    """Raises :class:`ConfigError` on an unknown name or a function that cannot be imported."""
    if text in FILTERS:
        return text
    if ":" not in text:
        raise ConfigError(f"unknown filter {text!r}", hint=f"use one of {', '.join(FILTERS)}, or module:function")
    return load_callable(text)  # type: ignore[no-any-return]  # any callable; what it returns is checked


def header_of(setup: SearchSetup) -> dict[str, Any]:
    plan, prepared = setup.plan, setup.prepared
    packages = ("onnx", "onnxruntime", "numpy", "optuna", "ray")
    return run_header(
        version=importlib.metadata.version("boardtune"),
        model={
            "digest": prepared.model.digest,
            "path": str(plan.model),
            "parameters": prepared.model.facts.parameters,
            "opset": prepared.model.facts.opset,
            "inputs": [[spec.name, spec.dtype, list(spec.shape)] for spec in prepared.model.inputs],
        },
        data={
            "calibration": {"digest": prepared.digests["calibration"], "path": plan.calib},
            "evaluation": {"digest": prepared.digests["evaluation"], "path": plan.eval or plan.calib},
        },
        preprocess=prepared.digests["preprocess"] or None,
        metric=[metric.name for metric in prepared.scoring.metrics],
        metric_units={metric.name: metric.unit for metric in prepared.scoring.metrics},
        plan=plan.to_json(),
        seed=plan.seed,
        versions={name: importlib.metadata.version(name) for name in packages},
        candidates=[model.to_json() for model in prepared.imported],
        mixed_precision=(setup.mixed.digest, setup.mixed.to_json()) if setup.mixed is not None else None,
    )
