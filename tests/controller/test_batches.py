"""A batch from the plan to the clock: real quantizer, real runner on an emulated board, no Ray."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import local_ray
import made_up
import numpy as np
import pytest

from harness.controller.preparation import prepare, run_on_host
from harness.controller.search import search
from harness.errors import DataError, ExitCode, ModelError
from harness.ledger.run_directory import RunDirectory
from harness.plan import Plan, make_plan
from harness.results import Candidate

EXAMPLE = Path(__file__).parents[2] / "examples" / "fashion_mnist"


@pytest.fixture
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOARDTUNE_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("BOARDTUNE_RUNTIME_DIR", str(tmp_path / "runtime"))
    with local_ray.installed(), mock.patch("harness.report.build.write_report", lambda run: run.path):
        yield


def example_plan(folder: Path, batch: int) -> Plan:
    for name, count in (("calib", 32), ("eval", 206)):
        with np.load(EXAMPLE / f"{name}.npz") as data:
            np.savez(folder / f"{name}.npz", **{key: data[key][:count] for key in data.files})
    return make_plan(
        {
            "model": str(EXAMPLE / "model.onnx"),
            "calib": str(folder / "calib.npz"),
            "eval": str(folder / "eval.npz"),
            "preprocess": {"scale": "1/255", "layout": "NCHW"},
            "boards": "rpi5-emulated",
            "trials": 3,
            "top_k": 1,
            "effort": "quick",
            "min_accuracy": "-50pp",
            "batch": batch,
        }
    )


@pytest.mark.usefixtures("_world")
def test_a_search_with_batches_is_slower_and_as_accurate(tmp_path: Path) -> None:
    found: dict[int, dict[int, Candidate]] = {}
    for batch in (1, 4):
        result = search(example_plan(tmp_path, batch), tmp_path / f"run-{batch}")
        assert result.exit_code == ExitCode.OK
        values = (Candidate.from_json(value) for value in result.candidates["candidates"])
        found[batch] = {value.trial: value for value in values}
        assert result.candidates["picks"]["rpi5-emulated"]
    measured = [trial for trial, value in found[1].items() if value.boards]
    assert len(measured) >= 2
    for trial in measured:
        one, four = (found[batch][trial].boards["rpi5-emulated"] for batch in (1, 4))
        assert four.verdict == "valid"
        assert one.latency_ns is not None
        assert four.latency_ns is not None
        # Launches and the invocation are paid once for four samples, the work four times.
        assert 1.3 < four.latency_ns.p50 / one.latency_ns.p50 < 4.0
        assert {name: metric.value for name, metric in four.metrics.items()}["top1"] == one.metrics["top1"].value
    with RunDirectory.open(tmp_path / "run-4") as run:
        events = [json.loads(line) for line in (run.path / "ledger.jsonl").read_text().splitlines()]
    sent = [event["sent_bytes"] for event in events if event["event"] == "deployed"]
    assert len(sent) == len(measured)
    assert all(sent)
    # The finalist is there already, the samples it reports on are not.
    finals = [event["sent_bytes"] for event in events if event["event"] == "final"]
    assert finals
    assert finals[0] > 100 * 28 * 28


def test_outputs_on_this_host_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    model = made_up.write_model(tmp_path / "m.onnx")
    x = np.random.default_rng(0).normal(size=(10, 6)).astype(np.float32)
    whole = run_on_host(model, {"x": x}, 10)["y"]
    np.testing.assert_allclose(whole, x @ made_up.WEIGHTS, rtol=1e-5)
    for batch in (1, 3, 4, 16):
        np.testing.assert_allclose(run_on_host(model, {"x": x}, batch)["y"], whole, rtol=1e-5)


def test_preparation_with_batches(tmp_path: Path) -> None:
    plan = made_up.tiny_plan(tmp_path / "data", batch=6)
    prepared = prepare(plan, tmp_path)
    assert prepared.model.inputs[0].shape == (6, 6)
    assert {part.samples for part in prepared.parts.values()} == {30}
    assert any("whole batches of 6: 4 of 16 samples are left out" in notice for notice in prepared.notices)
    with pytest.raises(DataError, match="17 samples at a time, the calibration data has 16"):
        prepare(plan.model_copy(update={"batch": 17}), tmp_path)
    with pytest.raises(ModelError, match="--batch 6 and --set-dim batch=8 contradict"):
        prepare(plan.model_copy(update={"set_dim": {"batch": 8}}), tmp_path)
