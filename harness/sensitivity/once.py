"""What ``boardtune sensitivity`` does: one model, one recipe, the sensitivity of its groups, and recipes from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.boards.folders import cache_folder
from harness.boards.host_lock import host_lock
from harness.data.dataset import Dataset
from harness.data.metrics import resolve_metrics
from harness.data.preprocess import Preprocess
from harness.data.source import open_dataset
from harness.errors import ConfigError
from harness.quantize.cache import Cache
from harness.quantize.calibrate import Subject
from harness.quantize.calibration_data import CalibrationSet
from harness.quantize.contract import Artifact, Cause, ModelRefused, QuantizeJob, QuantizeLimits
from harness.quantize.model_file import refuse_two_files
from harness.quantize.prepare import PreparedModel, prepare_model
from harness.quantize.snr import MAX_SNR_DB
from harness.quantize.worker import QuantizeWorker
from harness.recipes.files import resolve_recipe
from harness.recipes.mixed import KINDS
from harness.recipes.recipe import Recipe
from harness.scratch import scratch_folder
from harness.sensitivity.activations import Samples
from harness.sensitivity.analysis import CACHED_BYTES, Analysis, analyse, analysed
from harness.sensitivity.candidates import MixedCandidate, best_of, mixed_candidates
from harness.sensitivity.plot import draw
from harness.sensitivity.result import Sensitivity
from harness.sensitivity.scoring import Scorer

DEFAULT_RECIPE = Recipe(scheme="static", activation="uint8", weight="int8", granularity="per_channel")
"""Analysed where no recipe is given: 8 bits, min-max."""
_ON_CALIBRATION = "no evaluation set: sensitivity is that on the calibration samples (SNR)"


@dataclass(frozen=True)
class SensitivityJob:
    model: Path
    calib: str
    eval: str | None = None
    """The calibration set, without its labels, where it is ``None``."""
    preprocess: Path | None = None
    recipe: str | None = None
    """A file or ``preset:NAME[#k]``; :data:`DEFAULT_RECIPE` where it is ``None``."""
    samples: int | None = None
    """Evaluation samples, spread evenly over the set; ``None`` takes all."""
    set_dims: Mapping[str, int] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    cached_bytes: int = CACHED_BYTES


@dataclass(frozen=True)
class SensitivityReport:
    found: Sensitivity
    candidates: tuple[MixedCandidate, ...]
    notices: tuple[str, ...]

    def best(self) -> tuple[MixedCandidate, ...]:
        """Of each kind, at most one."""
        picks = (best_of(self.candidates, self.found, kind) for kind in KINDS)
        return tuple(pick for pick in picks if pick is not None)

    def to_json(self) -> dict[str, Any]:
        """The value ``boardtune sensitivity --json`` prints."""
        return {
            **self.found.to_json(),
            "notices": list(self.notices),
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "best": [candidate.name for candidate in self.best()],
        }


def run_sensitivity(job: SensitivityJob, phase: Callable[[str], None] = lambda name: None) -> SensitivityReport:
    """Analyses, and tries mixed-precision candidates. ``phase`` is told what comes next.

    Raises ConfigError and its kinds (ModelError, DataError) naming what does not fit.
    """
    with scratch_folder() as scratch, host_lock().work() as work:
        phase("preparing the model")
        refuse_two_files(job.model, "sensitivity")
        prepared = prepare_model(job.model, scratch / "float.onnx", job.set_dims)
        recipe = DEFAULT_RECIPE if job.recipe is None else resolve_recipe(job.recipe, prepared.facts)
        declared = Preprocess.load(job.preprocess) if job.preprocess else None
        calibration = open_dataset(job.calib, prepared.inputs, declared, whole=True)
        calibration.save_npz(scratch / "calibration.npz", labels=False)
        phase("quantizing once in a process of its own")
        _try(prepared.path, scratch, recipe)
        evaluation = _evaluation(job, prepared, declared, calibration)
        metrics = resolve_metrics(job.metrics, evaluation, prepared.outputs)
        scored = [metric for metric in metrics if metric.name != "snr"]
        scorer = Scorer(scored, evaluation.labels)
        subject = Subject.read(prepared.path, scratch / "calibration.npz", Cache(cache_folder() / "calibration"))
        samples = Samples(CalibrationSet(evaluation.inputs, prepared.inputs), job.samples)

        def breathe() -> None:
            work.breathe()

        analysis = Analysis(subject, recipe, samples, cached_bytes=job.cached_bytes, breathe=breathe, phase=phase)
        better = {metric.name: metric.higher_is_better for metric in scored}
        found = analyse(analysis, scorer, better, phase)
        candidates, refused = mixed_candidates(analysis, found, scorer, phase)
    notices = (
        *prepared.notices,
        *calibration.notices,
        *((_ON_CALIBRATION,) if job.eval is None else evaluation.notices),
        *found.notices,
        *refused,
    )
    return SensitivityReport(found, candidates, tuple(dict.fromkeys(notices)))


def _try(model: Path, scratch: Path, recipe: Recipe) -> None:
    """Makes the recipe's model where a crash or an endless loop of the quantizer does no harm; what the analysis makes
    differs from it in the nodes left in float only. Its calibration statistics are found again.

    Raises ConfigError where the recipe cannot be made, ModelRefused where the quantizer fails on the model.
    """
    analysed(recipe)
    limits = QuantizeLimits(min_snr_db=-MAX_SNR_DB)
    job = QuantizeJob(model, scratch / "calibration.npz", recipe, scratch / "quantized.onnx", limits)
    with QuantizeWorker() as worker:
        result = worker.quantize(job)
    # What it computes is for the analysis to say, and that a value is not finite.
    if isinstance(result, Artifact) or result.cause in (Cause.LOW_SNR, Cause.NON_FINITE):
        return
    if result.cause in (Cause.UNSUPPORTED, Cause.BAD_CALIBRATION):
        raise ConfigError(result.message)
    raise ModelRefused(result.message, cause=result.cause, hint="choose another recipe with --recipe")


def _evaluation(
    job: SensitivityJob, prepared: PreparedModel, declared: Preprocess | None, calibration: Dataset
) -> Dataset:
    if job.eval is not None:
        return open_dataset(job.eval, prepared.inputs, declared)
    return Dataset(calibration.inputs, None, None, calibration.origin)


def write_report(report: SensitivityReport, out: Path) -> tuple[Path, ...]:
    """Writes ``sensitivity.json``, ``sensitivity.svg`` and ``.png``, and the recipe of each candidate; returns the
    files, those of the best candidates last. Raises ConfigError where the folder cannot be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        files = [out / "sensitivity.json"]
        files[0].write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
        for ending in ("svg", "png"):
            files.append(out / f"sensitivity.{ending}")
            draw(report.found, report.candidates, files[-1])
        best = {candidate.name for candidate in report.best()}
        for candidate in sorted(report.candidates, key=lambda candidate: candidate.name in best):
            files.append(out / f"{candidate.name}.recipe.json")
            text = json.dumps(candidate.recipe.to_dict(), indent=2, sort_keys=True)
            files[-1].write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out: cannot write: {error.strerror or error}", where=out) from error
    return tuple(files)
