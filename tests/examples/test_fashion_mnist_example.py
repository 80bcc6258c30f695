"""The demo's files are what its README and plan say, and its training script runs."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import train
from click.testing import CliRunner
from idx_files import small_split, write_split

from harness.cli.search import command
from harness.data.preprocess import Preprocess
from harness.plan import load_plan
from harness.tensors import TensorSpec

FOLDER = Path(__file__).parents[2] / "examples" / "fashion_mnist"
SHA256 = {
    "calib.npz": "15c34e514ccb89378804697fc7168509e0f24f9efa7b7f2834a2b33ce355b567",
    "eval.npz": "84f9394b7efde7a52d001d38cbd0182101a6b8acaf7c94bf5b70d6f8bbe8d7bd",
    "model.onnx": "a7b9a330469e5092c115a702be3aa3e3dab3aa3a2e3ae58cb26c28f5f3c49798",
}
TORCH_PYTHON = os.environ.get("TORCH_PYTHON") or (sys.executable if importlib.util.find_spec("torch") else None)
"""An interpreter with PyTorch and onnx."""


@pytest.mark.parametrize("name", SHA256)
def test_files_are_the_published_ones(name: str) -> None:
    assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == SHA256[name]


@pytest.mark.parametrize(("name", "per_class"), [("calib.npz", 51), ("eval.npz", 200)])
def test_data_is_balanced(name: str, per_class: int) -> None:
    with np.load(FOLDER / name, allow_pickle=False) as stored:
        assert stored["image"].shape == (10 * per_class, 28, 28)
        assert stored["image"].dtype == np.uint8
        assert np.array_equal(np.bincount(stored["labels"]), np.full(10, per_class))


def test_calibration_and_evaluation_share_no_image() -> None:
    with np.load(FOLDER / "calib.npz") as calib, np.load(FOLDER / "eval.npz") as evaluation:
        seen = {image.tobytes() for image in calib["image"]}
        assert not any(image.tobytes() in seen for image in evaluation["image"])


def test_model_classifies_the_evaluation_set_through_the_declared_preprocessing() -> None:
    plan = load_plan(FOLDER / "plan.yaml", {})
    assert isinstance(plan.preprocess, dict)
    session = onnxruntime.InferenceSession(str(plan.model), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    with np.load(str(plan.eval)) as stored:
        images, labels = stored["image"], stored["labels"]
    spec = TensorSpec(given.name, "float32", tuple(given.shape))
    _, ready = Preprocess.parse(plan.preprocess).apply({given.name: images}, (spec,))
    assert ready["image"].shape == (2000, 1, 28, 28)
    (logits,) = session.run(["logits"], dict(ready))
    # 89.56 % of all 10,000 test images; the standard error at 2,000 is 0.7 points.
    assert np.mean(logits.argmax(1) == labels) == pytest.approx(0.8956, abs=0.02)


def test_dry_run_tells_what_will_be_tried() -> None:
    done = CliRunner().invoke(
        command, ["--plan", str(FOLDER / "plan.yaml"), "--dry-run", "--json"], standalone_mode=False
    )
    assert done.exception is None, done.output
    told = json.loads(done.stdout)
    assert told["recipes"][0] == "float32"
    assert told["trials"] == len(told["recipes"])
    assert told["samples"] == {"search": 1000, "final": 1000}
    assert set(told["device_minutes"]) == {"local", "ryzen-ai-emulated"}


def test_arguments() -> None:
    options = train.parse_arguments([])
    assert (options.epochs, options.limit, options.seed) == (3, None, 0)
    options = train.parse_arguments(["--epochs", "1", "--limit", "5000", "--data", "x", "--out", "y"])
    assert (options.epochs, options.limit, options.data, options.out) == (1, 5000, Path("x"), Path("y"))


@pytest.mark.parametrize("wrong", [["--epochs", "0"], ["--limit", "-1"], ["--epochs", "many"], ["--nonsense"]])
def test_wrong_arguments(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        train.parse_arguments(wrong)
    assert ended.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_missing_data_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--data", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 2
    assert "dataset-fashion-mnist" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_missing_torch_is_told_and_the_data_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    _write_small_set(tmp_path)
    assert train.main(["--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "pip install torch" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["calib.npz", "eval.npz"]


@pytest.mark.slow
@pytest.mark.skipif(TORCH_PYTHON is None, reason="needs PyTorch: set TORCH_PYTHON to an interpreter that has it")
def test_training_exports_a_network_of_the_shipped_structure(tmp_path: Path) -> None:
    _write_small_set(tmp_path)
    out = tmp_path / "out"
    script = [str(TORCH_PYTHON), str(FOLDER / "train.py"), "--data", str(tmp_path), "--out", str(out), "--epochs", "1"]
    subprocess.run(script, check=True, timeout=250)
    assert _structure(out / "model.onnx") == _structure(FOLDER / "model.onnx")


def _write_small_set(folder: Path) -> None:
    write_split(folder, "train", *small_split(60, seed=1))
    write_split(folder, "t10k", *small_split(200, seed=2))


def _structure(path: Path) -> list[Any]:
    """Operators, attributes, weight shapes and interface; no weights."""
    graph = onnx.load(path).graph
    shapes = {weight.name: tuple(weight.dims) for weight in graph.initializer}
    nodes = [
        (
            node.op_type,
            [shapes.get(name) for name in node.input],
            {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if a.name != "value"},
        )
        for node in graph.node
    ]
    interface = [(value.name, value.type.SerializeToString()) for value in (*graph.input, *graph.output)]
    return [nodes, interface]
