"""One part of the evaluation set, as boards and metrics need it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from device_agents.contract import Pipeline, Tensors
from device_agents.runner.pipeline import Pipeline as BoardPipeline
from harness.data.metric import Metric
from harness.data.score import Score
from harness.measure.paired import AccuracyBound, compare
from harness.results import MetricResult

PartName = Literal["search", "final"]


@dataclass(frozen=True, eq=False)
class EvaluationPart:
    """Samples on disk (what is sent to boards) with what is needed here to score the outputs."""

    name: PartName
    path: Path
    """``.npz``, one array per model input: model-ready, or raw where the pipeline runs on the board."""
    sha256: str
    samples: int
    labels: npt.NDArray[np.generic] | None
    float_outputs: Tensors
    """Of the float model, ONNX Runtime's CPU provider on this host: [samples, ...] by output name. Empty where no
    metric compares with them."""

    def rows(self, rows: Sequence[int]) -> EvaluationPart:
        """Some of its samples, to score; the file stays that of all."""
        chosen = list(rows)
        return replace(
            self,
            samples=len(chosen),
            labels=None if self.labels is None else self.labels[chosen],
            float_outputs={name: array[chosen] for name, array in self.float_outputs.items()},
        )


def score_outputs(
    part: EvaluationPart,
    metrics: Sequence[Metric],
    bounds: Mapping[str, AccuracyBound],
    float_scores: Mapping[str, Score],
    outputs: Tensors,
    *,
    is_float: bool,
) -> dict[str, MetricResult]:
    """Every metric of one candidate, compared with float on the same samples where ``is_float`` is false.

    Raises :class:`harness.data.metric.MetricFailed`.
    """
    results: dict[str, MetricResult] = {}
    for metric in metrics:
        score = metric.score(outputs, part.labels, part.float_outputs)
        reference = None if is_float else float_scores.get(metric.name)
        results[metric.name] = compare(metric.facts, score, reference, bounds.get(metric.name))
    return results


def postprocessed(outputs: Tensors, pipeline: Pipeline | None) -> Tensors:
    """What the board's runner makes of these outputs ([samples, ...]) in the timed region, one sample at a time."""
    if pipeline is None or pipeline.post == "none":
        return outputs
    after = BoardPipeline({"post": pipeline.post}).after
    return {
        name: np.concatenate([np.atleast_1d(after(array[at : at + 1])) for at in range(len(array))])
        for name, array in outputs.items()
    }


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
