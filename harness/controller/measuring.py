"""One model on some boards, by the whole protocol and without a search: ``boardtune measure``. Starts no Ray."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from device_agents.contract import Agent, AgentError, ModelRejected, Pipeline
from harness.boards.agents import open_agent
from harness.boards.host_lock import host_lock
from harness.boards.registry import load_registry
from harness.boards.schema import Board
from harness.controller.board_session import BoardSession
from harness.controller.deployable import deployable, fits
from harness.controller.evaluation import EvaluationPart, sha256_file
from harness.controller.policy import MeasurementPolicy
from harness.controller.preparation import accuracy_bounds, read_preprocess, run_on_host
from harness.controller.request import MeasureOutcome, MeasureRequest, Scoring
from harness.data.dataset import Dataset
from harness.data.metrics import resolve_metrics
from harness.data.preprocess import Preprocess
from harness.data.source import open_dataset, random_dataset
from harness.errors import BoardtuneError, ConfigError
from harness.plan import Effort, Postprocess
from harness.results import ArtifactInfo, BoardResult
from harness.scratch import scratch_folder
from harness.search.constraints import Constraints
from harness.tensors import TensorSpec

log = logging.getLogger(__name__)

RANDOM_SAMPLES = 8
"""Inputs made up where none are given; timing cycles through them."""


@dataclass(frozen=True)
class MeasureJob:
    """What ``measure`` is asked for."""

    model: Path
    boards: Sequence[str]
    data: str | None = None
    """Samples, as for a plan; ``None``: seeded random inputs."""
    reference: Path | None = None
    """Float model that accuracy is compared with."""
    preprocess: Path | Mapping[str, Any] | None = None
    set_dim: Mapping[str, int] | None = None
    metrics: Sequence[str] = ()
    batch: int = 1
    """Samples per inference."""
    pipeline: bool = False
    """Whether pre- and post-processing are timed too."""
    postprocess: Postprocess = "none"
    effort: Effort = "standard"
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Measured:
    results: Mapping[str, BoardResult]
    """Of the boards that measured it."""
    notices: tuple[str, ...]
    records: Mapping[str, Mapping[str, Any]]
    """Board -> the measurement's record, blocks and all."""
    failures: Mapping[str, Exception] = field(default_factory=dict)
    """Board -> why it has no result: an :class:`AgentError`, or a :class:`BoardtuneError` about its file or the model
    there; anything else is a defect."""


def measure(
    job: MeasureJob,
    *,
    tell: Callable[[str], None] = lambda message: None,
    agent_factory: Callable[[Board], Agent] = open_agent,
) -> Measured:
    """Measures on one board after the other; what fails on one does not keep the others from measuring.

    Raises ConfigError/ModelError/DataError before a board is touched.
    """
    if job.postprocess != "none" and not job.pipeline:
        raise ConfigError(f"--postprocess {job.postprocess} is timed with --scope pipeline only", hint="add it")
    registry = load_registry()
    boards = [registry.get(name) for name in dict.fromkeys(job.boards)]
    with scratch_folder() as folder:
        ready = deployable(job.model, folder, job.set_dim or {}, job.batch)
        notices = list(ready.notices)
        preprocess = read_preprocess(job.preprocess)
        dataset, told = _samples(job, ready.inputs, preprocess)
        notices += told
        part, scoring = _evaluation(job, dataset, ready.outputs, folder, raw=job.pipeline)
        pipeline = _pipeline(job, preprocess, ready.inputs, dataset)
        info = ArtifactInfo(sha256_file(ready.path), ready.identity, ready.path.stat().st_size)
        policy = MeasurementPolicy(job.seed, job.effort, {board.name: board.noise for board in boards})
        if ready.unloadable is not None:
            notices.append(f"{ready.unloadable.message}; a board with another runtime may still load it")
        for notice in notices:
            tell(notice)
        outcomes: dict[str, MeasureOutcome] = {}
        failures: dict[str, Exception] = {}
        for board in boards:
            request = MeasureRequest(
                model=ready.path,
                artifact=info,
                settings=policy.final(0, board.name),
                part=part,
                scoring=scoring,
                is_float=job.reference is None,
                batch=job.batch,
                pipeline=pipeline,
            )
            try:
                fits(ready, board)
                outcomes[board.name] = _measured(board, request, agent_factory)
            except ModelRejected as error:
                failures[board.name] = ready.unloadable or error
            except Exception as error:
                if not isinstance(error, AgentError | BoardtuneError):
                    log.info("measuring on %s", board.name, exc_info=True)
                failures[board.name] = error
        return Measured(
            {name: outcome.result for name, outcome in outcomes.items()},
            tuple(notices),
            {name: outcome.record for name, outcome in outcomes.items()},
            failures,
        )


def _measured(board: Board, request: MeasureRequest, agent_factory: Callable[[Board], Agent]) -> MeasureOutcome:
    lock = host_lock()
    session = BoardSession(board, clock_lock=lock.clock, work_lock=lock.work, agent_factory=agent_factory)
    try:
        session.open()
        return session.measure(request)
    finally:
        session.close()


def _samples(job: MeasureJob, inputs: Sequence[TensorSpec], preprocess: Preprocess | None) -> tuple[Dataset, list[str]]:
    if job.data is None:
        dataset = random_dataset(inputs, max(RANDOM_SAMPLES, job.batch), job.seed)
        return dataset, list(dataset.notices)
    dataset = open_dataset(job.data, inputs, preprocess)
    return dataset, list(dataset.notices)


def _evaluation(
    job: MeasureJob, dataset: Dataset, outputs: Sequence[TensorSpec], folder: Path, *, raw: bool
) -> tuple[EvaluationPart, Scoring | None]:
    if raw and dataset.raw is None:
        raise ConfigError("the pipeline needs --preprocess and samples", hint="give both, or leave out --scope")
    path = folder / "samples.npz"
    dataset.save_npz(path, labels=False, raw=raw)
    with host_lock().work():
        floats = run_on_host(job.reference, dataset.inputs, job.batch) if job.reference else {}
    part = EvaluationPart("final", path, sha256_file(path), len(dataset), dataset.labels, floats)
    if job.data is None or (dataset.labels is None and job.reference is None and not job.metrics):
        return part, None
    metrics = resolve_metrics(job.metrics, dataset, outputs)
    if job.reference is None:
        if job.metrics and (versus := [m.name for m in metrics if m.facts.versus_float]):
            raise ConfigError(f"metric {versus[0]!r} compares with a float model", hint="give it with --reference")
        metrics = tuple(metric for metric in metrics if not metric.facts.versus_float)
    scores = {m.name: m.score(floats, dataset.labels, floats) for m in metrics} if job.reference else {}
    return part, Scoring(metrics, accuracy_bounds(None, metrics) if metrics else {}, {"final": scores}, Constraints())


def _pipeline(
    job: MeasureJob, preprocess: Preprocess | None, inputs: Sequence[TensorSpec], dataset: Dataset
) -> Pipeline | None:
    if not job.pipeline or preprocess is None or dataset.raw is None:
        return None
    return preprocess.to_pipeline(inputs, dataset.raw, job.postprocess)
