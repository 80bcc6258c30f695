"""boardtune from Python. ``import harness`` is fast: a name is loaded when it is first used, and Ray by a search.

    plan = harness.load_plan("plan.yaml", boards="local", trials=8)
    result = harness.run_search(plan, "runs/one")
    best = harness.picks(result, "local")

docs/python-api.md says more.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from device_agents.contract import AgentError
    from harness.api import (
        export_pick,
        load_plan,
        measure_model,
        open_run,
        picks,
        quantize_model,
        reproduce_trial,
        run_search,
        show_model,
    )
    from harness.boards.registry import load_registry
    from harness.controller.measuring import Measured, MeasureJob
    from harness.controller.search import SearchResult
    from harness.errors import (
        BoardtuneError,
        BoardUnavailable,
        ConfigError,
        DataError,
        ExitCode,
        MeasurementsInvalid,
        ModelError,
        NoFeasibleCandidate,
    )
    from harness.plan import Plan
    from harness.quantize.contract import Artifact, Refusal
    from harness.recipes.recipe import Recipe
    from harness.results import BoardResult, Candidate, LatencyResult, MetricResult

__all__ = [
    "AgentError",
    "Artifact",
    "BoardResult",
    "BoardUnavailable",
    "BoardtuneError",
    "Candidate",
    "ConfigError",
    "DataError",
    "ExitCode",
    "LatencyResult",
    "MeasureJob",
    "Measured",
    "MeasurementsInvalid",
    "MetricResult",
    "ModelError",
    "NoFeasibleCandidate",
    "Plan",
    "Recipe",
    "Refusal",
    "SearchResult",
    "export_pick",
    "load_plan",
    "load_registry",
    "measure_model",
    "open_run",
    "picks",
    "quantize_model",
    "reproduce_trial",
    "run_search",
    "show_model",
]

_HOMES = {
    "device_agents.contract": ("AgentError",),
    "harness.api": (
        "export_pick",
        "load_plan",
        "measure_model",
        "open_run",
        "picks",
        "quantize_model",
        "reproduce_trial",
        "run_search",
        "show_model",
    ),
    "harness.boards.registry": ("load_registry",),
    "harness.controller.measuring": ("MeasureJob", "Measured"),
    "harness.controller.search": ("SearchResult",),
    "harness.errors": (
        "BoardUnavailable",
        "BoardtuneError",
        "ConfigError",
        "DataError",
        "ExitCode",
        "MeasurementsInvalid",
        "ModelError",
        "NoFeasibleCandidate",
    ),
    "harness.plan": ("Plan",),
    "harness.quantize.contract": ("Artifact", "Refusal"),
    "harness.recipes.recipe": ("Recipe",),
    "harness.results": ("BoardResult", "Candidate", "LatencyResult", "MetricResult"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'harness' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
