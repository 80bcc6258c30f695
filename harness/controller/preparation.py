"""From a plan to what trials work on: prepared model, calibration set, evaluation parts, float scores. No board is
touched here, so that every mistake in the input is told before one is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from device_agents.contract import Pipeline, Tensors
from device_agents.runner import ort
from device_agents.runner.errors import RunnerError
from device_agents.runner.feeds import Collector, Feeder, Samples
from device_agents.runner.platform import Options
from harness.boards.host_lock import host_lock
from harness.controller.evaluation import EvaluationPart, PartName, sha256_file
from harness.controller.floor import floor_db
from harness.controller.request import Scoring
from harness.data.checks import check_data
from harness.data.dataset import Dataset
from harness.data.metric import Metric
from harness.data.metrics import resolve_metrics
from harness.data.preprocess import Preprocess
from harness.data.score import Score
from harness.data.source import open_dataset
from harness.data.split import split_rows
from harness.errors import ConfigError, DataError, ModelError
from harness.measure.paired import AccuracyBound, default_bound
from harness.plan import Plan
from harness.quantize.acceptance import first_line
from harness.quantize.calibration_data import CalibrationSet
from harness.quantize.imported import ImportedModel, import_models
from harness.quantize.model_file import refuse_two_files
from harness.quantize.preparation import BATCH_WITHIN
from harness.quantize.prepare import PreparedModel, prepare_model
from harness.search.constraints import Constraints

_HOST = Options([("CPUExecutionProvider", {})], 0, 1, "all", {})
"""On all of this host's processors."""
SEARCHED_ON = 1000
"""Evaluation samples to search on, at most: they only rank, for which a point is enough; the rest decide, once for each
finalist."""
_WITHOUT_EVALUATION = "no evaluation set: candidates are compared with float on the calibration samples (SNR)"


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything derived from the plan's model and data; files live in one folder."""

    model: PreparedModel
    calibration: Path
    """``.npz``, model-ready."""
    calibration_sha256: str
    parts: Mapping[PartName, EvaluationPart]
    scoring: Scoring
    pipeline: Pipeline | None
    digests: Mapping[str, str]
    """Role (calibration, evaluation, preprocess) -> digest of the content."""
    notices: tuple[str, ...]
    min_snr_db: float
    """Under which a quantized model is refused."""
    imported: tuple[ImportedModel, ...] = ()
    """Models made elsewhere that take part."""


def prepare(plan: Plan, folder: Path) -> Prepared:
    """Reads, checks and writes into ``folder``.

    Raises :class:`ModelError`, :class:`DataError` or :class:`ConfigError` naming what does not fit.
    """
    with host_lock().work():
        refuse_two_files(plan.model, "a search")
        model = prepare_model(plan.model, folder / "model.onnx", dict(plan.set_dim), batch=plan.batch)
    imported, told = import_models(plan.candidates, model, folder)
    preprocess = read_preprocess(plan.preprocess)
    calibration = open_dataset(plan.calib, model.inputs, preprocess)
    evaluation = open_dataset(plan.eval, model.inputs, preprocess) if plan.eval else calibration
    if plan.eval is None:
        # Labels of the calibration set must not decide: it is what the quantizer saw.
        evaluation = Dataset(evaluation.inputs, evaluation.raw, None, evaluation.origin, evaluation.notices)
    metrics = resolve_metrics(plan.metrics, evaluation, model.outputs)
    bounds = accuracy_bounds(plan.min_accuracy, metrics)
    notices = [
        *model.notices,
        *told,
        *(() if plan.eval else (_WITHOUT_EVALUATION,)),
        *check_data(calibration, evaluation, model.inputs, metrics),
        *_left_over(calibration, model),
    ]
    pipeline = _pipeline(plan, preprocess, model, evaluation)
    with host_lock().work():
        float_outputs = run_on_host(model.path, evaluation.inputs, plan.batch)
    parts = _parts(plan, evaluation, float_outputs, folder, raw=pipeline is not None)
    del float_outputs
    notices += _too_few(metrics, bounds, min(part.samples for part in parts.values()))
    calibration_path = folder / "calibration.npz"
    calibration.save_npz(calibration_path, labels=False)
    scores = {name: _float_scores(part, metrics) for name, part in parts.items()}
    if not any(metric.facts.versus_float for metric in metrics):
        # Scores of text or pixels can be gigabytes, and these go to every actor.
        parts = {name: replace(part, float_outputs={}) for name, part in parts.items()}
    constraints = Constraints(
        max_latency_ns=plan.max_latency,
        max_size_bytes=plan.max_size,
        max_memory_bytes=plan.max_memory,
        min_offload=plan.min_offload,
    )
    return Prepared(
        model=model,
        calibration=calibration_path,
        calibration_sha256=sha256_file(calibration_path),
        parts=parts,
        scoring=Scoring(metrics, bounds, scores, constraints),
        pipeline=pipeline,
        digests={
            "calibration": calibration.digest,
            "evaluation": evaluation.digest,
            "preprocess": preprocess.digest if preprocess else "",
        },
        notices=tuple(dict.fromkeys(notices)),
        min_snr_db=floor_db(plan, metrics, bounds),
        imported=imported,
    )


def read_preprocess(declared: Path | Mapping[str, Any] | None) -> Preprocess | None:
    """From a file or the plan itself; raises :class:`ConfigError`."""
    if declared is None:
        return None
    return Preprocess.load(declared) if isinstance(declared, Path) else Preprocess.parse(declared)


def accuracy_bounds(text: str | None, metrics: tuple[Metric, ...]) -> dict[str, AccuracyBound]:
    """Metric name -> bound. Raises :class:`ConfigError` where the text names no such metric or does not fit it."""
    if text is None:
        bound = default_bound(metrics[0].facts)
        return {metrics[0].name: bound} if bound else {}
    bound = AccuracyBound.parse(text)
    wanted = bound.metric or metrics[0].name
    for metric in metrics:
        if metric.name == wanted:
            bound.check(metric.facts)
            return {wanted: bound}
    names = ", ".join(metric.name for metric in metrics)
    raise ConfigError(f"--min-accuracy {text!r} is about {wanted!r}, which is not measured", hint=f"metrics: {names}")


def run_on_host(model: Path, inputs: Tensors, batch: int) -> dict[str, npt.NDArray[np.generic]]:
    """Outputs on this host's CPU provider: [samples, ...] by output name, fed and collected as boards do it.

    Raises :class:`ModelError` or :class:`DataError`.
    """
    try:
        session = ort.OrtSession(str(model), _HOST)
    except Exception as error:
        raise ModelError(f"ONNX Runtime here cannot load the model: {first_line(error)}", where=model) from error
    arrays = {name: np.asarray(array) for name, array in inputs.items()}
    try:
        feeder = Feeder(session.inputs, Samples(arrays), None, None, exact=True)
        collector = Collector(session.outputs)
        for real, raw in feeder.batches(batch):
            collector.add(session.run(feeder.feed(raw)), real, feeder.group or real)
        return collector.result()
    except RunnerError as error:
        raise DataError(error.message, hint=error.hint, where=model) from error
    except Exception as error:
        hint = BATCH_WITHIN if batch > 1 else ""
        message = f"ONNX Runtime here cannot run the model: {first_line(error)}"
        raise ModelError(message, where=model, hint=hint) from error


def _left_over(calibration: Dataset, model: PreparedModel) -> list[str]:
    """Samples that fill no whole batch. Raises :class:`DataError` where there is not even one batch."""
    used = CalibrationSet(calibration.inputs, model.inputs)
    left = len(calibration) - len(used)
    if not left:
        return []
    return [f"calibration uses whole batches of {used.batch}: {left} of {len(calibration)} samples are left out"]


def _too_few(metrics: Sequence[Metric], bounds: Mapping[str, AccuracyBound], samples: int) -> list[str]:
    """Bounds that so few samples cannot decide."""
    told = [bounds[m.name].sample_notice(m.facts, samples) for m in metrics if m.name in bounds]
    return [notice for notice in told if notice is not None]


def _parts(
    plan: Plan, evaluation: Dataset, float_outputs: Tensors, folder: Path, *, raw: bool
) -> dict[PartName, EvaluationPart]:
    """Disjoint parts to search on and to report on; the same samples twice where there are too few to split."""
    share = min(0.5, SEARCHED_ON / max(1, len(evaluation)))
    search, final = split_rows(evaluation.labels, len(evaluation), plan.seed, share)
    parts: dict[PartName, EvaluationPart] = {}
    for name, rows in (("search", search), ("final", final)):
        part = evaluation.rows(rows)
        path = folder / f"evaluation-{name}.npz"
        part.save_npz(path, labels=False, raw=raw)
        key: PartName = "search" if name == "search" else "final"
        parts[key] = EvaluationPart(
            name=key,
            path=path,
            sha256=sha256_file(path),
            samples=len(part),
            labels=part.labels,
            float_outputs={output: array[rows] for output, array in float_outputs.items()},
        )
    return parts


def _float_scores(part: EvaluationPart, metrics: tuple[Metric, ...]) -> dict[str, Score]:
    return {metric.name: metric.score(part.float_outputs, part.labels, part.float_outputs) for metric in metrics}


def _pipeline(plan: Plan, preprocess: Preprocess | None, model: PreparedModel, evaluation: Dataset) -> Pipeline | None:
    if plan.scope == "inference":
        return None
    if preprocess is None or evaluation.raw is None:
        raise ConfigError(
            "scope 'pipeline' times the pre- and post-processing, and none is declared",
            hint="give --preprocess P.yaml, or use scope 'inference'",
        )
    return preprocess.to_pipeline(model.inputs, evaluation.raw, plan.postprocess)
