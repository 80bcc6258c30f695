"""What a sensitivity analysis says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.recipes.mixed import QuantizerGroup
from harness.recipes.recipe import Recipe


@dataclass(frozen=True)
class Effect:
    """How one model does on the samples."""

    snr_db: float | None
    """Signal-to-noise ratio against float on the worst output; ``None`` where an output is not finite."""
    metrics: Mapping[str, float | None]
    """By name; ``None`` where the metric cannot be computed from the outputs."""

    def to_json(self) -> dict[str, Any]:
        return {"snr_db": self.snr_db, "metrics": dict(self.metrics)}


@dataclass(frozen=True)
class GroupSensitivity:
    group: QuantizerGroup
    alone: Effect
    """Only this group quantized."""
    without: Effect
    """All groups quantized but this one."""

    def order(self) -> tuple[float, float, str]:
        """Sorts the most sensitive first: by the noise the group makes alone, then by what leaving it out gains.

        Noise alone, because the noise of several groups adds up nearly, while what one group's absence gains is hidden
        as long as a worse group is quantized. A model whose output is no number is noise without bound.
        """
        alone = -float("inf") if self.alone.snr_db is None else self.alone.snr_db
        without = -float("inf") if self.without.snr_db is None else self.without.snr_db
        return (alone, -without, self.group.name)


@dataclass(frozen=True)
class Sensitivity:
    recipe: Recipe
    """As asked for; ``notices`` say what of it was not analysed."""
    samples: int
    float32: Effect
    quantized: Effect
    """All groups quantized."""
    groups: tuple[GroupSensitivity, ...]
    """Most sensitive first."""
    idle: tuple[str, ...]
    """Names of groups whose quantization changes no value."""
    higher_is_better: Mapping[str, bool]
    """Metric -> which way is better."""
    notices: tuple[str, ...]

    def loss(self, item: GroupSensitivity, metric: str) -> float | None:
        """What quantizing only this group takes from ``metric``, positive where it is worse than float."""
        return self.loss_of(item.alone, metric)

    def loss_of(self, effect: Effect, metric: str) -> float | None:
        """What a model with this effect loses of ``metric`` against float."""
        return self._difference(self.float32, effect, metric)

    def gain(self, item: GroupSensitivity, metric: str) -> float | None:
        """What leaving only this group in float gives, positive where it is better than quantizing all."""
        return self._difference(item.without, self.quantized, metric)

    def snr_gain_db(self, item: GroupSensitivity) -> float | None:
        """As :meth:`gain`, in signal-to-noise ratio."""
        if item.without.snr_db is None or self.quantized.snr_db is None:
            return None
        return item.without.snr_db - self.quantized.snr_db

    def _difference(self, better: Effect, worse: Effect, metric: str) -> float | None:
        one, other = better.metrics.get(metric), worse.metrics.get(metric)
        if one is None or other is None:
            return None
        return one - other if self.higher_is_better[metric] else other - one

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "recipe": self.recipe.to_dict(),
            "samples": self.samples,
            "float32": self.float32.to_json(),
            "quantized": self.quantized.to_json(),
            "higher_is_better": dict(self.higher_is_better),
            "groups": [
                {
                    "name": item.group.name,
                    "nodes": list(item.group.nodes),
                    "op_types": list(item.group.op_types),
                    "activations": list(item.group.activations),
                    "alone": item.alone.to_json(),
                    "without": item.without.to_json(),
                    "loss": {name: self.loss(item, name) for name in self.higher_is_better},
                    "gain": {name: self.gain(item, name) for name in self.higher_is_better},
                    "snr_gain_db": self.snr_gain_db(item),
                }
                for item in self.groups
            ],
            "idle": list(self.idle),
            "notices": list(self.notices),
        }
