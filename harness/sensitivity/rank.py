"""The ranking of a model's groups that a search's mixed-precision axis needs: made once, kept by content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from harness.errors import BoardtuneError
from harness.quantize.calibrate import Subject
from harness.quantize.child import ask_child
from harness.recipes.mixed import QuantizerGroup
from harness.recipes.recipe import Recipe
from harness.sensitivity.activations import Samples
from harness.sensitivity.analysis import Analysis
from harness.sensitivity.scoring import worst_snr_db

VERSION = 1
"""Raised when a ranking may come out differently."""
SAMPLES = 64
"""Of the calibration set, spread evenly over it. The samples a search reports on have no part in what it tries."""
TIMEOUT_S = 1800.0
_CHILD = "harness.sensitivity.rank_child"


class NoRankingError(BoardtuneError):
    """The groups cannot be ranked; the message says why."""


def ranked_groups(
    model: Path, calibration: Path, recipe: Recipe, *, cache: Path | None, digests: Mapping[str, str]
) -> tuple[QuantizerGroup, ...]:
    """The groups of a static recipe, the most sensitive first, found in a child process that may crash.

    ``cache`` is the folder of calibration statistics, where rankings are kept too; ``digests`` as
    :class:`~harness.quantize.calibrate.Subject` takes them. Raises NoRankingError.
    """
    request = {
        "model": str(model),
        "calibration": str(calibration),
        "recipe": recipe.to_dict(),
        "cache": str(cache) if cache else "",
        "digests": dict(digests),
    }
    reply = ask_child(_CHILD, request, TIMEOUT_S)
    if "groups" not in reply:
        raise NoRankingError(reply.get("error") or f"{reply['phase']} died ({reply['died']})")
    return tuple(QuantizerGroup.from_json(value) for value in reply["groups"])


def rank(subject: Subject, recipe: Recipe, phase: Callable[[str], None]) -> tuple[QuantizerGroup, ...]:
    """As :func:`ranked_groups`, here; by the noise that each group makes alone on calibration samples.

    The subject's model is consumed. Raises what ONNX Runtime raises, and ModelRefused where nothing is quantized.
    """
    key = subject.key(f"sensitivity:{VERSION}:{SAMPLES}:{recipe.digest}")
    found = subject.cache.read(key)
    if found is not None:
        return tuple(QuantizerGroup.from_json(value) for value in found.meta)
    samples = Samples(subject.data, SAMPLES)
    analysis = Analysis(subject, recipe, samples, phase=phase)
    ratios: dict[QuantizerGroup, float] = {}
    for number, group in enumerate(analysis.groups, start=1):
        phase(f"ranking group {number} of {len(analysis.groups)}: {group.name}")
        outputs = analysis.alone(group)
        if outputs is not None:
            ratio = worst_snr_db(outputs, analysis.float_outputs)
            ratios[group] = -float("inf") if ratio is None else ratio
    ordered = sorted(ratios, key=lambda group: (ratios[group], group.name))
    subject.cache.write(key, [vars(group) for group in ordered], {})
    return tuple(ordered)
