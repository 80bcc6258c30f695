"""An audit from files to findings: reads, runs the float model over the calibration set, and asks every check."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from harness.audit.activations import Range, activation_findings, ranges_of
from harness.audit.finding import Finding, by_severity
from harness.audit.graph import graph_findings, refusal_findings
from harness.audit.placing import Asked, board_findings
from harness.audit.samples import sample_findings
from harness.audit.structure import Structure, structure_of, to_json
from harness.audit.weights import weight_findings
from harness.boards.folders import cache_folder
from harness.boards.host_lock import host_lock
from harness.boards.registry import load_registry
from harness.boards.schema import Board
from harness.controller.inventory import inventory
from harness.controller.preparation import read_preprocess
from harness.data.dataset import Dataset
from harness.data.source import open_dataset
from harness.errors import DataError, ModelError
from harness.quantize.acceptance import first_line
from harness.quantize.cache import Cache
from harness.quantize.calibrate import Subject, calibrated
from harness.quantize.contract import ModelRefused
from harness.quantize.graph import all_graphs
from harness.quantize.model_file import load_model
from harness.quantize.observe import Observer
from harness.quantize.outputs import data_of
from harness.quantize.passes.constants import constants_to_initializers
from harness.quantize.prepare import PreparedModel, prepare_model
from harness.quantize.shapes import free_dims, model_inputs, tensor_specs
from harness.quantize.statistics import ActivationStatistics
from harness.scratch import scratch_folder


@dataclass(frozen=True)
class AuditJob:
    """What ``audit`` is asked for."""

    model: Path
    boards: Sequence[str] = ()
    calib: str | None = None
    eval: str | None = None
    preprocess: Path | None = None
    set_dims: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Audit:
    model: Path
    structure: Structure
    ranges: tuple[Range, ...]
    """Of activations over the calibration set; empty without one."""
    samples: int | None
    """Calibration samples behind them."""
    boards: tuple[str, ...]
    findings: tuple[Finding, ...]
    """The worst first."""
    notices: tuple[str, ...]
    """What reading and preparing the model told."""

    def to_json(self) -> dict[str, Any]:
        shapes = self.structure.shapes
        seen = {found.tensor: found for found in self.ranges}
        return {
            "model": {"path": str(self.model), **to_json(self.structure)},
            "activations": [
                {
                    "tensor": name,
                    "shape": list(shapes[name]) if name in shapes else None,
                    "lowest": seen[name].lowest if name in seen else None,
                    "highest": seen[name].highest if name in seen else None,
                    "p99_9_magnitude": seen[name].high_percentile if name in seen else None,
                    "largest_over_p99_9": seen[name].tail if name in seen else None,
                    "non_finite": seen[name].non_finite if name in seen else None,
                }
                for name in dict.fromkeys([*shapes, *seen])
            ],
            "calibration_samples": self.samples,
            "boards": list(self.boards),
            "findings": [finding.to_json() for finding in self.findings],
            "notices": list(self.notices),
        }


def audit(job: AuditJob) -> Audit:
    """Raises ModelError, DataError or ConfigError for what cannot be read; what is merely wrong is a finding."""
    registry = load_registry()
    boards = [registry.get(name) for name in dict.fromkeys(job.boards)]
    given = load_model(job.model)
    with scratch_folder() as folder, host_lock().work():
        prepared, findings = _prepared(job, given, folder / "model.onnx")
        model = load_model(prepared.path) if prepared else _constants_told(given)
        structure = structure_of(model, given)
        findings += graph_findings(model, structure, set_dims=job.set_dims, prepared=prepared is not None)
        findings += weight_findings(model)
        seen: dict[str, ActivationStatistics] = {}
        samples: int | None = None
        notices = list(prepared.notices) if prepared else []
        if job.calib is not None:
            calib, told = _samples(job, model, structure, findings)
            notices += told
            if calib is not None and prepared is not None:
                samples = len(calib)
                seen = _activations(prepared, model, calib, folder, findings)
        findings += _on_boards(job, boards, model, structure)
    return Audit(
        model=job.model,
        structure=structure,
        ranges=ranges_of(seen),
        samples=samples,
        boards=tuple(board.name for board in boards),
        findings=by_severity(findings),
        notices=tuple(dict.fromkeys(notices)),
    )


def _prepared(job: AuditJob, given: ModelProto, out: Path) -> tuple[PreparedModel | None, list[Finding]]:
    """``None`` with findings where the model can be read, but not quantized as it is."""
    try:
        return prepare_model(job.model, out, job.set_dims), []
    except ModelRefused as error:
        return None, refusal_findings(error)
    except ModelError:
        left_open = [dim for dim in free_dims(given) if dim.axis > 0]
        if job.set_dims or not left_open:
            raise
        return None, []


def _constants_told(given: ModelProto) -> ModelProto:
    """A copy whose constants are initializers, as they are in a prepared model."""
    copy = ModelProto()
    copy.CopyFrom(given)
    for graph in all_graphs(copy.graph):
        constants_to_initializers(graph)
    return copy


def _samples(
    job: AuditJob, model: ModelProto, structure: Structure, findings: list[Finding]
) -> tuple[Dataset | None, list[str]]:
    inputs = tensor_specs(model_inputs(model))
    preprocess = read_preprocess(job.preprocess)
    calib = open_dataset(str(job.calib), inputs, preprocess, whole=True)
    evaluation = open_dataset(job.eval, inputs, preprocess, whole=True) if job.eval else None
    findings += sample_findings(calib, evaluation, inputs, _classes(structure))
    return calib, [*calib.notices, *(evaluation.notices if evaluation else ())]


def _classes(structure: Structure) -> int | None:
    """Of a model with one output of one score for each class."""
    if len(structure.outputs) != 1:
        return None
    rest = [size for size in structure.outputs[0][2][1:] if size != 1]
    return rest[0] if len(rest) == 1 and isinstance(rest[0], int) else None


def _activations(
    prepared: PreparedModel, model: ModelProto, calib: Dataset, folder: Path, findings: list[Finding]
) -> dict[str, ActivationStatistics]:
    path = folder / "calibration.npz"
    calib.save_npz(path, labels=False)
    try:
        subject = Subject.of(model, prepared.path, path, Cache(cache_folder() / "calibration"))
        seen = calibrated(subject)
        broken = _broken(subject, [name for name, stats in seen.items() if stats.non_finite])
    except DataError as error:
        advice = error.hint or "repair the samples"
        findings.append(Finding("bad_samples", "error", error.message, (calib.origin,), {}, advice))
        return {}
    except Exception as error:
        raise ModelError(
            f"ONNX Runtime here cannot run the model on the calibration samples: {first_line(error)}",
            where=prepared.path.name,
        ) from error
    findings += activation_findings(model, seen, broken)
    return seen


def _broken(subject: Subject, tensors: Sequence[str]) -> frozenset[str]:
    """Those of ``tensors`` in which there is a NaN or plus infinity: one more pass, over few tensors in few models."""
    if not tensors:
        return frozenset()
    observer = Observer(subject.model, tensors)
    found: set[str] = set()
    for feed in subject.data.feeds():
        for name, array in observer.observe(feed):
            values = array.astype(np.float32)
            if bool(np.isnan(values).any() or np.isposinf(values).any()):
                found.add(name)
    return frozenset(found)


def _on_boards(job: AuditJob, boards: Sequence[Board], model: ModelProto, structure: Structure) -> list[Finding]:
    if not boards:
        return []
    size = job.model.stat().st_size
    with contextlib.suppress(OSError):
        size += data_of(job.model).stat().st_size
    asked = Asked(model, structure, inventory(job.model), size)
    return [finding for board in boards for finding in board_findings(board, asked)]
