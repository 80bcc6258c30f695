"""What a search would do, without touching a board."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.controller.setup import set_up
from harness.plan import Plan
from harness.scratch import scratch_folder
from harness.search.estimate import Estimate, estimate_search


@dataclass(frozen=True)
class DryRun:
    recipes: tuple[str, ...]
    """Labels of what is tried first; an open space is sampled after them."""
    trials: int
    preset: str
    open_space: bool
    metrics: tuple[str, ...]
    estimates: Mapping[str, Estimate]
    """Device time by board."""
    samples: Mapping[str, int]
    emulated: frozenset[str]
    """Boards whose latency is modelled."""
    notices: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "trials": self.trials,
            "preset": self.preset,
            "recipes": list(self.recipes),
            "open_space": self.open_space,
            "metrics": list(self.metrics),
            "samples": dict(self.samples),
            "device_minutes": {
                name: {"low": round(e.low_s / 60, 2), "high": round(e.high_s / 60, 2)}
                for name, e in self.estimates.items()
            },
            "emulated": sorted(self.emulated),
            "notices": list(self.notices),
        }

    def lines(self) -> list[str]:
        more = " (then sampled)" if self.open_space and self.trials > len(self.recipes) else ""
        lines = [f"{self.trials} trials of preset {self.preset}{more}, ranked on {self.metrics[0]}:"]
        lines += [f"  {number:4d}  {label}" for number, label in enumerate(self.recipes[: self.trials])]
        samples = ", ".join(f"{count} to {name}" for name, count in self.samples.items())
        lines.append(f"evaluation samples: {samples}")
        for name, estimate in self.estimates.items():
            low, high = estimate.low_s / 60, estimate.high_s / 60
            stamp = " (emulated)" if name in self.emulated else ""
            lines.append(f"{name}{stamp}: {low:.1f} to {high:.1f} device minutes")
        return [*lines, *(f"note: {notice}" for notice in self.notices)]


def describe(plan: Plan) -> DryRun:
    """Checks everything a search checks before it connects; raises the same errors."""
    with scratch_folder() as folder:
        setup = set_up(plan, folder)
        space, prepared = setup.space, setup.prepared
        first = space.enumerated if space.enumerated is not None else space.seeds
        estimates = {
            name: estimate_search(
                setup.policy.screening(0, name),
                setup.policy.final(0, name),
                trials=setup.trials,
                top_k=plan.top_k,
                evaluation_samples=prepared.parts["search"].samples,
            )
            for name in setup.boards
        }
        return DryRun(
            recipes=tuple(recipe.label for recipe in first[: setup.trials]),
            trials=setup.trials,
            preset=plan.preset,
            open_space=space.enumerated is None,
            metrics=tuple(metric.name for metric in prepared.scoring.metrics),
            estimates=estimates,
            samples={name: part.samples for name, part in prepared.parts.items()},
            emulated=frozenset(name for name, board in setup.boards.items() if board.emulated is not None),
            notices=prepared.notices,
        )
