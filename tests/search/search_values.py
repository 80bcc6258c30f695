"""Candidates and spaces to search, made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.recipes.recipe import Calibration, Recipe
from harness.recipes.space import ParameterSource, Space, grid
from harness.results import (
    ArtifactInfo,
    BoardResult,
    Candidate,
    LatencyResult,
    LimitStanding,
    MetricResult,
    Outcome,
    Verdict,
)

BOARD = "pi"


def candidate(
    trial: int,
    latency_ns: float | None = 1e6,
    accuracy: float | None = 0.9,
    *,
    width: float = 0.01,
    verdict: Verdict = "valid",
    constraints: Mapping[str, Outcome] | None = None,
    scheme: str = "static",
    identity: str | None = None,
    higher_is_better: bool = True,
    difference: float | None = None,
    board: str = BOARD,
    ci95: tuple[float, float] | None = None,
    limit: LimitStanding | None = None,
) -> Candidate:
    latency = (
        None
        if latency_ns is None
        else LatencyResult(latency_ns, (latency_ns * (1 - width), latency_ns * (1 + width)), n=100, blocks=3)
    )
    metrics = (
        {}
        if accuracy is None
        else {"top1": _metric(accuracy, difference, ci95, higher_is_better, limit, constraints or {})}
    )
    result = BoardResult(
        emulated=False,
        verdict=verdict,
        reasons=() if verdict == "valid" else ("drift: it drifted",),
        artifact=ArtifactInfo(f"sha{trial}", identity or f"id{trial}", 1000),
        compiled_sha256=None,
        latency_ns=latency,
        load_ns=1,
        first_ns=1,
        peak_memory_bytes=1,
        metrics=metrics,
        placement={},
        constraints=constraints or {},
    )
    return Candidate(trial, {"scheme": scheme}, f"label {trial}", {board: result})


def _metric(
    accuracy: float,
    difference: float | None,
    ci95: tuple[float, float] | None,
    higher_is_better: bool,
    limit: LimitStanding | None,
    constraints: Mapping[str, Outcome],
) -> MetricResult:
    outcome = constraints.get("accuracy", "none") if limit is not None else "none"
    return MetricResult(accuracy, difference, ci95, outcome, 1000, higher_is_better, limit=limit)


def small_recipe(source: ParameterSource) -> Recipe:
    """Twelve recipes, one of them the float baseline's neighbour, in a conditional space."""
    scheme = source.categorical("scheme", ("static", "float16", "dynamic"))
    if scheme == "float16":
        return Recipe(scheme="float16")
    if scheme == "dynamic":
        return Recipe.from_dict(
            {"scheme": "dynamic", "granularity": source.categorical("granularity", ("per_tensor", "per_channel"))}
        )
    return Recipe.from_dict(
        {
            "scheme": "static",
            "activation": source.categorical("activation", ("uint8", "int8", "uint16")),
            "granularity": source.categorical("granularity", ("per_tensor", "per_channel")),
            "calibration": {"method": source.categorical("method", ("minmax", "entropy"))},
        }
    )


def small_space(seeds: tuple[Recipe, ...] = ()) -> Space:
    space = Space("small", None, small_recipe, seeds=seeds)
    return Space("small", None, small_recipe, size=sum(1 for _ in grid(space)), seeds=seeds)


def open_recipe(source: ParameterSource) -> Recipe:
    """A conditional space with a continuous parameter."""
    scheme = source.categorical("scheme", ("static", "dynamic"))
    excluded = [t for t in ("Conv", "Gemm", "Add") if source.categorical(f"float.{t}", ("no", "yes")) == "yes"]
    values: dict[str, Any] = {"scheme": scheme, "exclude_op_types": excluded}
    if scheme == "static":
        tail = source.floating("tail", 1e-4, 1.0, log=True)
        values["calibration"] = {
            "method": "percentile",
            "percentile": 100.0 - tail,
            "samples": 8 * source.integer("samples", 1, 8),
        }
    return Recipe.from_dict(values)


def open_space(seeds: tuple[Recipe, ...] = ()) -> Space:
    return Space("open", None, open_recipe, seeds=seeds)


STATIC = Recipe(scheme="static", activation="uint8", calibration=Calibration("entropy"))
