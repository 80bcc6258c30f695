"""The functions that programs call; ``run_search``, ``picks`` and ``export_pick`` are run by the README's program."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
import pytest

import harness

EXAMPLE = Path(__file__).parents[2] / "examples" / "fashion_mnist"
PREPROCESS = {"scale": "1/255", "layout": "NCHW"}


def test_changes_win_over_the_plan_file() -> None:
    plan = harness.load_plan(EXAMPLE / "plan.yaml", boards="rpi5-emulated", trials=4, top_k=1)
    assert plan.boards == ("rpi5-emulated",)
    assert (plan.trials, plan.top_k) == (4, 1)
    assert plan.model == EXAMPLE / "model.onnx"
    with pytest.raises(harness.ConfigError, match=r"'trails'.*\n.*[Dd]id you mean 'trials'") as caught:
        harness.load_plan(EXAMPLE / "plan.yaml", trails=4)
    assert caught.value.exit_code == harness.ExitCode.USAGE


def test_picks_come_best_first_and_only_of_the_board_asked_for() -> None:
    def value(trial: int) -> dict[str, object]:
        return {"trial": trial, "recipe": {}, "label": f"r{trial}", "boards": {}}

    result = harness.SearchResult(
        run_dir=Path("x"),
        candidates={"candidates": [value(0), value(1), value(2)], "picks": {"pi": [2, 0], "npu": []}},
        selections={},
        exit_code=harness.ExitCode.OK,
        stop_reason="",
        report=None,
        notices=(),
    )
    assert [candidate.trial for candidate in harness.picks(result, "pi")] == [2, 0]
    assert harness.picks(result, "npu") == ()
    with pytest.raises(KeyError, match="other"):
        harness.picks(result, "other")


def test_quantizing_gives_an_artifact_or_a_refusal(tmp_path: Path) -> None:
    declared = tmp_path / "preprocess.yaml"
    declared.write_text("scale: 1/255\nlayout: NCHW\n", encoding="utf-8")
    model, calib = EXAMPLE / "model.onnx", EXAMPLE / "calib.npz"
    made = harness.quantize_model(model, calib, "preset:quick#2", tmp_path / "out", preprocess=declared)
    assert isinstance(made.result, harness.Artifact)
    assert made.result.path.parent == tmp_path / "out"
    assert hashlib.sha256(made.result.path.read_bytes()).hexdigest() == made.result.sha256
    assert any("QuantizeLinear" in node.op_type for node in onnx.load(made.result.path).graph.node)
    refused = harness.quantize_model(model, calib, "preset:quick#1", tmp_path / "out", preprocess=declared)
    assert isinstance(refused.result, harness.Refusal)
    assert refused.result.cause == "low_snr"


def test_measuring_on_an_emulated_board() -> None:
    told: list[str] = []
    measured = harness.measure_model(
        str(EXAMPLE / "model.onnx"), ["rpi5-emulated"], data=str(EXAMPLE / "eval.npz"), preprocess=PREPROCESS,
        effort="quick", tell=told.append,
    )  # fmt: skip
    result = measured.results["rpi5-emulated"]
    assert result.emulated
    assert result.verdict == "valid"
    assert result.latency_ns is not None
    low, high = result.latency_ns.ci95
    assert low <= result.latency_ns.p50 <= high
    assert result.metrics["top1"].value == pytest.approx(0.8956, abs=0.02)  # on all 10,000 test images
    assert any("axis" in message for message in told)
    with pytest.raises(harness.ConfigError, match="unknown board 'rpi5-emulatd'"):
        harness.measure_model(EXAMPLE / "model.onnx", ["rpi5-emulatd"])


def test_a_folder_that_holds_no_run(tmp_path: Path) -> None:
    with pytest.raises(harness.ConfigError, match=r"no run here"):
        harness.open_run(str(tmp_path))
