"""Mixed-precision recipes by a sensitivity analysis, each tried on this host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.quantize.acceptance import first_line
from harness.quantize.snr import MAX_SNR_DB
from harness.recipes.mixed import KINDS, Kind, can_mix, mixed, steps
from harness.recipes.recipe import Recipe
from harness.sensitivity.analysis import Analysis, Scorer
from harness.sensitivity.result import Effect, Sensitivity

WORTH_DB = 3.0
"""Gain over everything quantized that halves the noise."""
LEAST_DB = 1.0
RECOVERED = 0.9
"""Share of the metric's loss."""


@dataclass(frozen=True)
class MixedCandidate:
    kind: Kind
    groups: int
    """The most sensitive ones that are kept more precise."""
    recipe: Recipe
    effect: Effect

    @property
    def name(self) -> str:
        """For files and tables: ``float-4``."""
        return f"{self.kind}-{self.groups}"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "groups": self.groups,
            **self.effect.to_json(),
            "recipe": self.recipe.to_dict(),
        }


def mixed_candidates(
    analysis: Analysis, found: Sensitivity, score: Scorer, phase: Callable[[str], None]
) -> tuple[tuple[MixedCandidate, ...], tuple[str, ...]]:
    """Candidates of each kind in order of k, and notices on what could not be made."""
    made: list[MixedCandidate] = []
    notices: list[str] = []
    reference = analysis.float_outputs
    ordered = [item.group for item in found.groups]
    for kind in KINDS:
        if not can_mix(found.recipe, kind):
            notices.append(f"no {kind} candidates: {found.recipe.label} has no place for them")
            continue
        for count in steps(len(ordered)):
            recipe = mixed(found.recipe, ordered[:count], kind)
            phase(f"trying {kind}-{count}")
            try:
                outputs = analysis.by(recipe)
            except Exception as error:
                # ONNX Runtime refuses some mixtures of integer types; the others remain.
                notices.append(f"{kind}-{count} cannot be made: {first_line(error)}")
                continue
            effect = score(outputs, reference, analysis.samples.rows)
            made.append(MixedCandidate(kind, count, recipe, effect))
    return tuple(made), tuple(notices)


def best_of(candidates: tuple[MixedCandidate, ...], found: Sensitivity, kind: Kind) -> MixedCandidate | None:
    """The fewest groups that bring back :data:`RECOVERED` of what quantizing all loses on the first metric, where it
    loses something; else the fewest that halve the noise (:data:`WORTH_DB`); else those that lower it most.

    ``None`` where no mixture lowers it by :data:`LEAST_DB`, under which none is worth a trial.
    """
    base = -MAX_SNR_DB if found.quantized.snr_db is None else found.quantized.snr_db
    usable = [(c, c.effect.snr_db - base) for c in candidates if c.kind == kind and c.effect.snr_db is not None]
    usable = [(candidate, gain) for candidate, gain in usable if gain >= LEAST_DB]
    enough = [candidate for candidate, _ in usable if _recovers(candidate, found)]
    halving = [candidate for candidate, gain in usable if gain >= WORTH_DB]
    most = sorted(usable, key=lambda item: (-item[1], item[0].groups))
    return next(iter([*enough, *halving, *(candidate for candidate, _ in most)]), None)


def _recovers(candidate: MixedCandidate, found: Sensitivity) -> bool:
    metric = next(iter(found.higher_is_better), None)
    if metric is None:
        return False
    lost, remains = (found.loss_of(effect, metric) for effect in (found.quantized, candidate.effect))
    return lost is not None and remains is not None and lost > 0 and remains <= (1 - RECOVERED) * lost
