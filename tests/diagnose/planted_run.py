"""Run directories with one quantized trial in which a known fault is, made by the real quantizer without any search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from harness.audit.finding import Finding
from harness.controller.evaluation import score_outputs
from harness.controller.preparation import Prepared, run_on_host
from harness.controller.setup import header_of, set_up
from harness.diagnose.case import DiagnoseJob
from harness.diagnose.changes import apply
from harness.diagnose.run import Diagnosis, diagnose
from harness.ledger import events
from harness.ledger.files import sha256_of
from harness.ledger.run_directory import RunDirectory
from harness.plan import make_plan
from harness.quantize.identity import identity
from harness.quantize.ort_backend import OrtBackend
from harness.quantize.prepare import PreparedModel, prepare_model
from harness.recipes.recipe import FLOAT32, Recipe
from harness.results import ArtifactInfo, BoardResult, LatencyResult

Array = npt.NDArray[Any]
_PREPARED: dict[tuple[str, str], tuple[bytes, PreparedModel]] = {}


def prepared_once(model: Path, out: Path, *arguments: Any, **options: Any) -> PreparedModel:
    """As ``prepare_model``; the same model is prepared once in all tests, as each time takes a process."""
    key = (sha256_of(model) if model.is_file() else "", repr((arguments, options)))
    if key not in _PREPARED or not key[0]:
        made = prepare_model(model, out, *arguments, **options)
        _PREPARED[key] = (out.read_bytes(), made)
    content, made = _PREPARED[key]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(content)
    return replace(made, path=out)


rng = np.random.default_rng


def normal(seed: int, *shape: int) -> Array:
    return rng(seed).standard_normal(shape).astype(np.float32)


def model_of(
    nodes: Sequence[NodeProto],
    constants: Mapping[str, Array],
    x: Sequence[int],
    outputs: Mapping[str, Sequence[int]],
    domains: Sequence[str] = (),
) -> ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(x))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


@dataclass
class Planted:
    """A model, its data, and the trials to make of it. ``latency_ns``: of a model file, by board."""

    model: ModelProto
    calib: Array
    evaluation: Array
    recipe: Recipe
    labels: npt.NDArray[np.int64] | None = None
    boards: Mapping[str, Callable[[Path], float]] = field(default_factory=lambda: {"local": lambda path: 1e6})
    options: Mapping[str, Any] = field(default_factory=dict)
    machines: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, Callable[[Path, Path], Path]] = field(default_factory=dict)
    """What a board really executes instead of the artifact: (artifact, folder) -> model."""
    refused: bool = False
    """The quantized trial was refused: its model was not kept."""

    def make(self, folder: Path) -> Path:
        """The run directory."""
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(self.model, str(folder / "model.onnx"))
        np.savez(folder / "calib.npz", x=self.calib)
        labels = {} if self.labels is None else {"labels": self.labels}
        np.savez(folder / "eval.npz", x=self.evaluation, **labels)
        plan = make_plan(
            {
                "model": str(folder / "model.onnx"),
                "calib": str(folder / "calib.npz"),
                "eval": str(folder / "eval.npz"),
                "boards": ",".join(self.boards),
                "min_snr": -100.0,
                **self.options,
            }
        )
        setup = set_up(plan, folder / "work")
        with RunDirectory.create(folder / "run", header_of(setup)) as run:
            for name in self.boards:
                facts = {"machine": self.machines.get(name, "x86_64"), "emulated": False}
                run.record(events.board(name, facts, {"providers": [["CPUExecutionProvider", []]]}))
            for number, recipe in enumerate((FLOAT32, self.recipe)):
                self._trial(run, number, recipe, setup.prepared, folder)
        return folder / "run"

    def _trial(self, run: RunDirectory, number: int, recipe: Recipe, prepared: Prepared, folder: Path) -> None:
        run.write_recipe(number, recipe.to_dict())
        run.record(events.proposed(number, recipe.to_dict(), recipe.label, {}, recipe.digest))
        if self.refused and number:
            run.record(events.failed(number, "low_snr", "the worst output keeps too little"))
            return
        OrtBackend().quantize(prepared.model.path, prepared.calibration, recipe, run.draft_path(number))
        path = run.commit_model(number, run.draft_path(number))
        info = ArtifactInfo(sha256_of(path), identity(path), path.stat().st_size)
        run.record(events.quantized(number, info, snr_db=None), events.gated(number))
        for name, latency in self.boards.items():
            executed = self.devices[name](path, folder) if name in self.devices and number else path
            result = self._result(latency(path), info, executed, prepared, is_float=number == 0)
            run.record(events.deployed(number, name), events.measured(number, name, result))
            run.record(events.evaluated(number, name, result))
        run.record(events.done(number))

    def _result(
        self, latency: float, info: ArtifactInfo, executed: Path, prepared: Prepared, *, is_float: bool
    ) -> BoardResult:
        part, scoring = prepared.parts["search"], prepared.scoring
        samples = np.load(part.path)
        outputs = run_on_host(executed, {name: samples[name] for name in samples.files}, 1)
        try:
            metrics = score_outputs(
                part, scoring.metrics, scoring.bounds, scoring.float_scores["search"], outputs, is_float=is_float
            )
        except Exception:
            metrics = {}
        return BoardResult(
            emulated=False,
            verdict="valid",
            reasons=(),
            artifact=info,
            compiled_sha256=None,
            latency_ns=LatencyResult(latency, (latency * 0.99, latency * 1.01), 200, 3),
            load_ns=1,
            first_ns=1,
            peak_memory_bytes=1,
            metrics=metrics,
            placement={"nodes": {}, "evidence": ["cpu-only"], "offload_ratio": None},
        )


def diagnosed(run: Path, trial: int = 1) -> Diagnosis:
    return diagnose(DiagnoseJob(run, trial))


def accused(found: Diagnosis) -> dict[str, Finding]:
    """Findings that accuse, the first of each code."""
    made: dict[str, Finding] = {}
    for finding in found.findings:
        if finding.severity != "info":
            made.setdefault(finding.code, finding)
    return made


def cured(planted: Planted, finding: Finding, folder: Path) -> Diagnosis:
    """The same with the recipe that the finding proposes."""
    assert finding.changes, finding
    planted.recipe = apply(planted.recipe, finding.changes)
    return diagnosed(planted.make(folder))
