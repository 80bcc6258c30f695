"""Puts the recipes that a diagnosis proposes into the run, to be tried by the next ``search --resume``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.audit.finding import Finding
from harness.diagnose.changes import apply
from harness.diagnose.run import Diagnosis
from harness.errors import ConfigError
from harness.ledger import events
from harness.ledger.run_directory import RunDirectory
from harness.recipes.recipe import Recipe


@dataclass(frozen=True)
class Proposed:
    recipe: Recipe
    file: Path | None
    """``None`` where there was nothing new to propose."""
    codes: tuple[str, ...]
    """Of the findings that want it."""
    trial: int
    """The number it will be tried as, or was."""

    def to_json(self) -> dict[str, Any]:
        return {
            "trial": self.trial,
            "recipe": self.recipe.to_dict(),
            "file": str(self.file) if self.file else None,
            "findings": list(self.codes),
        }


def proposals(diagnosis: Diagnosis) -> list[tuple[Recipe, tuple[str, ...]]]:
    """Different recipes in the order of their findings, each with the findings that want it. What only informs proposes
    nothing."""
    wanted: dict[Recipe, list[str]] = {}
    for finding, recipe in _made(diagnosis):
        codes = wanted.setdefault(recipe, [])
        if finding.code not in codes:
            codes.append(finding.code)
    return [(recipe, tuple(codes)) for recipe, codes in wanted.items()]


def apply_to_run(run: Path, diagnosis: Diagnosis) -> list[Proposed]:
    """Writes ``proposed/NNNN-DIGEST8.json`` and records each recipe that the run has not tried and was not given
    before; those it has are returned with the trial they are.

    Raises :class:`ConfigError` where the run is in use.
    """
    with RunDirectory.open_for_suggestions(run) as opened:
        known = {suggestion.recipe_digest: suggestion.number for suggestion in opened.state.suggestions}
        known |= {trial.recipe_digest: number for number, trial in opened.state.trials.items()}
        made = []
        for recipe, codes in proposals(diagnosis):
            if recipe.digest in known:
                made.append(Proposed(recipe, None, codes, known[recipe.digest]))
                continue
            file = opened.write_proposed(f"{diagnosis.trial:04d}-{recipe.digest[:8]}", recipe.to_dict())
            reason = f"diagnosis of trial {diagnosis.trial}: {', '.join(codes)}"
            opened.record(events.suggested(recipe.to_dict(), recipe.label, recipe.digest, reason))
            made.append(Proposed(recipe, file, codes, opened.state.suggestions[-1].number))
        return made


def _made(diagnosis: Diagnosis) -> Iterator[tuple[Finding, Recipe]]:
    for finding in diagnosis.findings:
        if finding.severity == "info" or not finding.changes:
            continue
        try:
            yield finding, apply(diagnosis.recipe, finding.changes)
        except ConfigError:
            continue  # Fields that do not fit together: the finding's advice stands without a recipe.
