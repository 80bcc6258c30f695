"""A diagnosis from a run directory to findings: runs both models on this host and asks every check."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from harness.audit.finding import Finding, by_severity
from harness.audit.weights import weights_of
from harness.boards.folders import cache_folder
from harness.boards.host_lock import host_lock
from harness.boards.registry import load_registry
from harness.controller.board_session import board_constraints
from harness.controller.evaluation import EvaluationPart
from harness.controller.preparation import run_on_host
from harness.data.dataset import Dataset
from harness.data.metric import MetricFailed
from harness.data.npz import read_npz
from harness.data.topk import TopK
from harness.diagnose.accuracy import LayerLoss, accuracy_findings, layer_losses
from harness.diagnose.agreement import board_differences, garbage_findings, kernel_findings
from harness.diagnose.artifact import artifact_nodes
from harness.diagnose.case import Case, DiagnoseJob, open_case
from harness.diagnose.compare import compare, plain_outputs
from harness.diagnose.facts import AccuracyFacts, BoardFacts, Classes, MetricFacts, Output, TimeFacts
from harness.diagnose.outputs import output_findings
from harness.diagnose.samples import sample_findings, worst_samples
from harness.diagnose.tensors import layers_of, readings_of
from harness.diagnose.timing import time_findings
from harness.errors import ConfigError, ModelError
from harness.ledger.state import TrialState
from harness.measure.paired import compare as compare_scores
from harness.quantize.acceptance import first_line
from harness.quantize.cache import Cache
from harness.quantize.calibrate import Subject
from harness.quantize.calibration_data import CalibrationSet, nested_order
from harness.quantize.graph import DEFAULT_DOMAINS
from harness.quantize.model_file import load_model
from harness.quantize.outputs import data_of
from harness.quantize.passes.masks import IMPOSSIBLE
from harness.quantize.static_recipe import ready_static
from harness.recipes.recipe import Recipe
from harness.scratch import scratch_folder

TYPICAL, WORST = 40, 8
"""Samples compared layer by layer: spread over the set, and those with the most noise."""
Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Diagnosis:
    trial: int
    label: str
    recipe: Recipe
    findings: tuple[Finding, ...]
    """The worst first."""
    layers: tuple[LayerLoss, ...]
    metric: MetricFacts | None
    outputs: tuple[tuple[str, float, tuple[tuple[int, float], ...]], ...]
    """(name, SNR in dB, worst samples with theirs)."""
    samples: int
    notices: tuple[str, ...]

    @property
    def accuses(self) -> bool:
        return any(finding.severity != "info" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        metric = self.metric
        return {
            "trial": self.trial,
            "label": self.label,
            "recipe": self.recipe.to_dict(),
            "samples": self.samples,
            "metric": None
            if metric is None
            else {"name": metric.name, "float": metric.float_value, "quantized": metric.value, "drop": metric.drop},
            "outputs": [
                {"name": name, "snr_db": snr, "worst_samples": [{"sample": row, "snr_db": db} for row, db in worst]}
                for name, snr, worst in self.outputs
            ],
            "layers": [
                {
                    "node": found.layer.node,
                    "op_type": found.layer.op_type,
                    "tensor": found.layer.output,
                    "snr_before_db": found.before_db,
                    "snr_db": found.loss.snr_db,
                    "clipped_share": found.loss.clipped_share,
                    "step": found.loss.grid.scale if found.loss.grid else None,
                    "range": list(found.loss.grid.bounds) if found.loss.grid else None,
                    "float_range": [found.loss.lowest, found.loss.highest],
                }
                for found in self.layers
            ],
            "findings": [finding.to_json() for finding in self.findings],
            "notices": list(self.notices),
        }


def diagnose(job: DiagnoseJob) -> Diagnosis:
    """Raises what :func:`harness.diagnose.case.open_case` raises, and ModelError where the artifact cannot be run
    here. Writes nothing into the run."""
    with scratch_folder() as folder:
        case = open_case(job, folder)
        with host_lock().work():
            facts, notices = _accuracy(case, folder)
        boards = [board for name in case.boards if (board := _board(case, name)) is not None]
        findings = [
            *accuracy_findings(facts),
            *sample_findings(facts),
            *output_findings(facts),
            *kernel_findings(facts),
            *garbage_findings(facts),
            *board_differences(case.recipe, boards, facts.metric, case.prepared.parts["search"].samples),
            *time_findings(_time(case, boards)),
        ]
        return Diagnosis(
            trial=case.trial.number,
            label=case.trial.label,
            recipe=case.recipe,
            findings=by_severity(findings),
            layers=layer_losses(facts),
            metric=facts.metric,
            outputs=tuple((o.name, o.snr_db, tuple(worst_samples(o))) for o in facts.outputs),
            samples=case.prepared.parts["search"].samples,
            notices=tuple(notices),
        )


def _accuracy(case: Case, folder: Path) -> tuple[AccuracyFacts, list[str]]:
    part = case.prepared.parts["search"]
    model, artifact = load_model(case.prepared.model.path), load_model(case.artifact)
    samples = _samples(case, part)
    got = run_on_host(case.artifact, samples.inputs, case.plan.batch)
    layers = layers_of(model)
    makers = {layer.output: layer.node for layer in layers}
    outputs = _outputs(part.float_outputs, got, makers)
    notices = []
    if case.remade:
        notices.append(f"trial {case.original.number} was refused ({case.original.cause}): its model was made again")
    metric = _metric(case, part, got, notices)
    feeds, rows = _chosen(case, samples, outputs)
    reference = _reshaped(case, model)
    try:
        found = compare(reference, artifact, readings_of(reference, artifact), feeds, folder)
        unfused = plain_outputs(artifact, [output.name for output in outputs], feeds, folder)
    except Exception as error:
        raise ModelError(
            f"ONNX Runtime here cannot run the models layer by layer: {first_line(error)}", where=case.artifact
        ) from error
    facts = AccuracyFacts(
        recipe=case.recipe,
        metric=metric,
        outputs=outputs,
        layers=layers_of(reference),
        # Masks are left out: any number as large does, and formats have different ones.
        losses={name: loss for name, loss in found.items() if max(-loss.lowest, loss.highest) < IMPOSSIBLE},
        rows=rows,
        batch=case.plan.batch,
        weights={weight.node: weight for weight in weights_of(reference)},
        inserted=frozenset(n.name for n in reference.graph.node) - {n.name for n in model.graph.node},
        classes=_classes(case, part, got),
        unfused=unfused,
        domains={n.name: n.domain for n in model.graph.node if n.domain not in DEFAULT_DOMAINS},
    )
    return facts, notices


def _reshaped(case: Case, model: ModelProto) -> ModelProto:
    """The float model as the recipe evens it out before quantizing: the same function with other values between
    layers, which are what the artifact's are to be compared with."""
    recipe = case.recipe
    if not recipe.equalize and recipe.smooth_alpha is None:
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    subject = Subject.of(
        copy, case.prepared.model.path, case.prepared.calibration, Cache(cache_folder() / "calibration")
    )
    return ready_static(subject, recipe, [], lambda: None, lambda phase: None).subject.model


def _samples(case: Case, part: EvaluationPart) -> Dataset:
    stored = read_npz(part.path, case.prepared.model.inputs)
    return Dataset(stored.arrays, None, None, str(part.path))


def _outputs(expected: Mapping[str, Array], got: Mapping[str, Array], makers: Mapping[str, str]) -> tuple[Output, ...]:
    made = []
    for name, reference in expected.items():
        ours = np.asarray(got.get(name))
        usable = reference.dtype.kind == "f" and ours.shape == reference.shape and reference.ndim > 0
        if not usable or not np.isfinite(reference).all():
            continue
        count = len(reference)
        flat: list[npt.NDArray[Any]] = [a.reshape(count, -1) for a in (reference, ours)]
        made.append(Output(name, makers.get(name, ""), flat[0], flat[1], tuple(reference.shape[1:])))
    return tuple(made)


def _metric(case: Case, part: EvaluationPart, got: Mapping[str, Array], notices: list[str]) -> MetricFacts | None:
    metric = case.prepared.scoring.metrics[0]
    reference = case.prepared.scoring.float_scores["search"][metric.name]
    try:
        score = metric.score(got, part.labels, part.float_outputs)
    except MetricFailed as error:
        notices.append(str(error))
        return None
    results = [board.result for board in case.original.boards.values() if board.result is not None]
    outcomes = [r.metrics[metric.name].outcome for r in results if metric.name in r.metrics]
    paired = compare_scores(metric.facts, score, reference, None)
    certain = metric.facts.versus_float or paired.ci95 is None or not paired.ci95[0] <= 0.0 <= paired.ci95[1]
    return MetricFacts(
        metric.name,
        metric.unit,
        metric.higher_is_better,
        metric.facts.versus_float,
        None if metric.facts.versus_float else reference.value,
        score.value,
        outcomes[0] if outcomes else "none",
        certain,
    )


def _classes(case: Case, part: EvaluationPart, got: Mapping[str, Array]) -> Classes | None:
    ranked = next((metric for metric in case.prepared.scoring.metrics if isinstance(metric, TopK)), None)
    if ranked is None or part.labels is None:
        return None
    scores = [np.asarray(outputs[ranked.output]) for outputs in (part.float_outputs, got)]
    if any(array.dtype.kind != "f" for array in scores):
        return None
    expected, answers = (np.nan_to_num(a.reshape(len(a), -1)).argmax(axis=1).astype(np.int64) for a in scores)
    return Classes(np.asarray(part.labels).astype(np.int64), expected, answers)


def _chosen(
    case: Case, samples: Dataset, outputs: tuple[Output, ...]
) -> tuple[list[Mapping[str, Array]], npt.NDArray[np.intp]]:
    """Inputs to compare layer by layer, with the sample behind each (the first of a batch)."""
    count, batch = len(samples), case.plan.batch
    chosen = np.linspace(0, count - 1, min(count, TYPICAL)).astype(np.intp).tolist()
    for output in outputs:
        chosen += [row for row, _ in worst_samples(output, WORST)]
    rows = np.array(sorted(dict.fromkeys(chosen)), np.intp)
    if batch > 1:
        # Whole batches: those that the chosen ones are in, as they were run.
        firsts = np.unique(rows // batch) * batch
        whole = [np.arange(first, first + batch) for first in firsts if first + batch <= count]
        rows = np.concatenate([np.zeros(0, np.intp), *whole])
    if not len(rows):
        rows = np.arange(min(count, max(batch, 1)), dtype=np.intp)
    taken = CalibrationSet({name: array[rows] for name, array in samples.inputs.items()}, case.prepared.model.inputs)
    order = nested_order(len(taken))
    feeds: list[Mapping[str, Array]] = list(taken.feeds())
    return feeds, rows[order[:: taken.batch]][: len(feeds)]


def _board(case: Case, name: str) -> BoardFacts | None:
    ours = _result(case.original, name)
    if ours is None:
        return None
    base = _result(case.baseline, name)
    known = case.run.state.boards.get(name, {})
    options = known.get("options", {})
    providers = [str(provider[0]) for provider in options.get("providers", ())]
    return BoardFacts(
        name=name,
        machine=str(known.get("facts", {}).get("machine", "")),
        accelerated=any(provider != "CPUExecutionProvider" for provider in providers),
        latency_ns=ours.latency_ns.p50 if ours.latency_ns else None,
        latency_ci95=ours.latency_ns.ci95 if ours.latency_ns else None,
        float_latency_ns=base.latency_ns.p50 if base and base.latency_ns else None,
        float_latency_ci95=base.latency_ns.ci95 if base and base.latency_ns else None,
        metrics={metric: value.value for metric, value in ours.metrics.items()},
        samples={metric: value.n for metric, value in ours.metrics.items()},
        units={metric: value.unit for metric, value in ours.metrics.items()},
        placement=ours.placement,
        min_offload=_floor(case, name),
    )


def _floor(case: Case, board: str) -> float | None:
    """Least share of operators on the accelerator, of the plan and the board's file where that is still there."""
    asked = case.prepared.scoring.constraints
    with contextlib.suppress(ConfigError):
        asked = board_constraints(asked, load_registry().get(board).limits)
    return asked.min_offload


def _result(trial: TrialState | None, board: str) -> Any:
    progress = trial.boards.get(board) if trial is not None else None
    return progress.result if progress is not None else None


def _time(case: Case, boards: list[BoardFacts]) -> TimeFacts:
    artifact: ModelProto = load_model(case.artifact)
    return TimeFacts(
        case.recipe, _size(case.artifact), _size(case.prepared.model.path), artifact_nodes(artifact), boards
    )


def _size(model: Path) -> int:
    return sum(path.stat().st_size for path in (model, data_of(model)) if path.exists())
