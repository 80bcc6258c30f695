"""What is asked of a board session, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from device_agents.contract import Pipeline, Tensors
from harness.controller.evaluation import EvaluationPart, PartName
from harness.data.metric import Metric
from harness.data.score import Score
from harness.measure.paired import AccuracyBound
from harness.measure.record import MeasurementResult
from harness.measure.settings import MeasurementSettings
from harness.results import ArtifactInfo, BoardResult
from harness.search.constraints import Constraints


@dataclass(frozen=True, eq=False)
class Scoring:
    """What turns outputs into metrics and constraint outcomes."""

    metrics: tuple[Metric, ...]
    bounds: Mapping[str, AccuracyBound]
    float_scores: Mapping[PartName, Mapping[str, Score]]
    """Part name -> metric name -> score of the float model on that part."""
    constraints: Constraints


@dataclass(frozen=True, eq=False)
class MeasureRequest:
    """One model to measure; everything that decides the numbers."""

    model: Path
    artifact: ArtifactInfo
    settings: MeasurementSettings
    part: EvaluationPart
    """Samples for timing and, with ``scoring``, for accuracy."""
    scoring: Scoring | None = None
    is_float: bool = False
    batch: int = 1
    """Samples per inference."""
    pipeline: Pipeline | None = None


@dataclass(frozen=True, eq=False)
class MeasureOutcome:
    result: BoardResult
    measurement: MeasurementResult
    record: Mapping[str, Any]
    """JSON for ``measurement.json``."""
    outputs: Tensors | None
