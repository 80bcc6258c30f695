"""From a fault in a trial to the trial without it: searched, diagnosed, applied, resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import local_ray
import made_up
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from harness.controller.crew import Staff
from harness.controller.search import search
from harness.diagnose.apply import apply_to_run
from harness.diagnose.case import DiagnoseJob
from harness.diagnose.run import diagnose
from harness.ledger.run_directory import RunDirectory
from harness.plan import Plan
from harness.quantize.worker import QuantizeWorker


@pytest.fixture(autouse=True)
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOARDTUNE_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("BOARDTUNE_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("BOARDTUNE_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "boards").mkdir()
    (tmp_path / "boards" / "alpha.yaml").write_text(
        "apiVersion: boardtune/v1\nkind: Board\ntransport: {kind: ssh, host: 192.0.2.1}\nmetadata: {name: alpha}\n"
    )
    with local_ray.installed(), mock.patch("harness.report.build.write_report", lambda run: run.path):
        yield


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A detector's head: what is large and what is small in one tensor. Two trials, both quantized badly."""
    folder = tmp_path / "data"
    folder.mkdir()
    rng = np.random.default_rng(1)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "wb"], ["boxes"], "boxes"),
            helper.make_node("MatMul", ["x", "ws"], ["scores"], "scores"),
            helper.make_node("Concat", ["boxes", "scores"], ["y"], "join", axis=1),
        ],
        "head",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [
            numpy_helper.from_array((200.0 * rng.normal(size=(6, 2))).astype(np.float32), "wb"),
            numpy_helper.from_array((0.05 * rng.normal(size=(6, 2))).astype(np.float32), "ws"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(folder / "model.onnx"))
    made_up.write_data(folder / "calib.npz", 48, seed=1, labels=None)
    made_up.write_data(folder / "eval.npz", 60, seed=2, labels=None)
    return made_up.tiny_plan(folder, boards="alpha", trials=2, top_k=1, min_accuracy=None)


def run(plan: Plan, *, resume: bool = False) -> None:
    search(plan, Path("run"), resume=resume, staff=Staff(QuantizeWorker, made_up.MadeUpSessions()))


def test_what_a_diagnosis_proposes_is_tried(plan: Plan) -> None:
    run(plan)
    found = diagnose(DiagnoseJob(Path("run"), 1))
    lost = next(finding for finding in found.findings if finding.code == "small_signals_lost")
    assert [change.after for change in lost.changes] == [["join"]]
    # The made-up board computes something else than this host, which is a finding of its own, and the worse one.
    proposed = apply_to_run(Path("run"), found)
    assert [item.trial for item in proposed] == [2, 3]
    (item,) = (item for item in proposed if "small_signals_lost" in item.codes)

    run(plan, resume=True)
    with RunDirectory.open(Path("run")) as recorded:
        assert recorded.state.trials[item.trial].recipe["exclude_nodes"] == ["join"]
        assert recorded.state.trials[item.trial].status == "done"
    healed = diagnose(DiagnoseJob(Path("run"), item.trial))
    assert "small_signals_lost" not in {finding.code for finding in healed.findings}
    # Nothing is left to do, and nothing comes out different.
    run(plan, resume=True)
