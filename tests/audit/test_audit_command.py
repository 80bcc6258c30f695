"""``boardtune audit`` from the command line to text, JSON and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from harness.cli.audit import command
from harness.errors import BoardtuneError, ConfigError, DataError, ModelError

EXAMPLE = Path(__file__).parents[2] / "examples" / "fashion_mnist"
rng = np.random.default_rng


def run(*arguments: object) -> str:
    result = CliRunner().invoke(command, [str(a) for a in arguments])
    if result.exception:
        raise result.exception
    assert result.exit_code == 0
    return result.stdout


def found(*arguments: object) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return value


def codes(value: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in value["findings"]]


def write_model(path: Path, *, length: int | str = 6, bias: float = 0.0) -> Path:
    """x [batch, length, 8] -> MatMul -> Log -> y."""
    weights = np.abs(rng(1).standard_normal((8, 4))).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"], "matmul"),
            helper.make_node("Add", ["m", "b"], ["s"], "add"),
            helper.make_node("Log", ["s"], ["y"], "log"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", length, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", length, 4])],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.float32([bias] * 4), "b")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def write_samples(path: Path, samples: int = 40, scale: float = 1.0, shift: float = 0.0, length: int = 6) -> Path:
    np.savez(path, x=(rng(2).random((samples, length, 8)) * scale + shift).astype(np.float32))
    return path


def test_the_example_is_diagnosed_before_it_is_quantized(tmp_path: Path) -> None:
    """Naive int8 of this network loses ten points, for its depthwise weights: the audit names them beforehand."""
    (tmp_path / "p.yaml").write_text("scale: 1/255\nlayout: NCHW\n")
    arguments = (
        EXAMPLE / "model.onnx", "--calib", EXAMPLE / "calib.npz", "--eval", EXAMPLE / "eval.npz",
        "--preprocess", tmp_path / "p.yaml", "--board", "rpi5-emulated", "--board", "ryzen-ai-emulated",
    )  # fmt: skip
    value = found(*arguments)
    spread = next(f for f in value["findings"] if f["code"] == "weight_spread")
    assert spread["where"][0] == "/3/3.0/Conv"
    assert spread["changes"] == [{"field": "granularity", "from": None, "to": "per_channel"}]
    assert value["calibration_samples"] == 510
    # Seen by ONNX's own model: 28 × 28, 24 channels, 3 × 3, stride 2.
    assert value["model"]["node_macs"]["/0/Conv"] == 24 * 14 * 14 * 9
    assert "float_falls_back" in codes(value)
    assert not any(finding["severity"] == "error" for finding in value["findings"])
    activations = {row["tensor"]: row for row in value["activations"]}
    assert activations["image"]["lowest"] >= 0.0
    assert activations["image"]["highest"] == pytest.approx(1.0, abs=1e-6)
    text = run(*arguments)
    assert "1.04 M MACs" in text
    assert "recipe: granularity" in text


def test_a_model_whose_sizes_are_free_is_described_without_them(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx", length="length", bias=1.0)
    value = found(model)
    assert value["model"]["macs"] is None
    assert value["model"]["parameters"] == 8 * 4 + 4
    dynamic = next(f for f in value["findings"] if f["code"] == "dynamic_shape")
    assert dynamic["severity"] == "warning"
    sized = found(model, "--set-dim", "length=5")
    assert sized["model"]["macs"] == 5 * 8 * 4
    assert next(f for f in sized["findings"] if f["code"] == "dynamic_shape")["severity"] == "info"


def test_samples_that_break_the_model(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx")
    calib = write_samples(tmp_path / "c.npz", shift=-0.5)
    value = found(model, "--calib", calib)
    broken = next(f for f in value["findings"] if f["code"] == "non_finite_activation")
    assert broken["severity"] == "error"
    assert broken["where"] == ["y"]
    samples = np.load(calib)["x"]
    samples[3, 0, 0] = np.nan
    np.savez(calib, x=samples)
    with pytest.raises(DataError, match="NaN in sample 3"):
        found(model, "--calib", calib)


def test_data_on_another_scale_is_a_finding_and_no_failure(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx", bias=1.0)
    calib, evaluation = write_samples(tmp_path / "c.npz"), write_samples(tmp_path / "e.npz", scale=255.0)
    value = found(model, "--calib", calib, "--eval", evaluation)
    unlike = next(f for f in value["findings"] if f["code"] == "calibration_unlike_evaluation")
    assert unlike["severity"] == "error"
    assert unlike["evidence"]["evaluation_range_of_x"][1] > 200


def test_a_quantized_model_is_refused_as_a_finding(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s"], ["q"], "q"),
            helper.make_node("DequantizeLinear", ["q", "s"], ["y"], "dq"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.float32(0.1), "s")],
    )
    path = tmp_path / "q.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    assert "already_quantized" in codes(found(path))


@pytest.mark.parametrize(
    ("arguments", "kind", "told"),
    [
        (["missing.onnx"], ModelError, "no such model file"),
        (["text.onnx"], ModelError, "not an ONNX model"),
        (["m.onnx", "--calib", "none.npz"], DataError, "no such file"),
        (["m.onnx", "--eval", "c.npz"], ConfigError, "--calib"),
        (["m.onnx", "--board", "rpi9-emulated"], BoardtuneError, "rpi"),
        (["m.onnx", "--set-dim", "width=3"], ModelError, "no free dimension"),
        (["m.onnx", "--set-dim", "width"], ConfigError, "--set-dim"),
        (["m.onnx", "--calib", "c.npz", "--preprocess", "none.yaml"], ConfigError, "none.yaml"),
        (["m.onnx", "--calib", "other.npz"], DataError, "x"),
    ],
)
def test_bad_input_is_told(tmp_path: Path, arguments: list[str], kind: type[Exception], told: str) -> None:
    write_model(tmp_path / "m.onnx", bias=1.0)
    write_samples(tmp_path / "c.npz")
    write_samples(tmp_path / "other.npz", length=9)
    (tmp_path / "text.onnx").write_text("no model at all")
    with pytest.raises(kind) as raised:
        run(*arguments)
    assert told in str(raised.value)
