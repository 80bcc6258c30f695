"""The second example without PyTorch: its plan, its preprocessing, the head, and the environment it makes."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import build
import linear_head
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
import toolchain
from idx_files import small_split, write_split
from onnx import TensorProto, helper

from harness.plan import load_plan

FOLDER = Path(__file__).parents[2] / "examples" / "efficientnet_lite0"


def test_plan_loads_and_names_the_files_the_build_makes() -> None:
    plan = load_plan(FOLDER / "plan.yaml", {})
    assert [plan.model, Path(plan.calib), Path(str(plan.eval))] == [
        FOLDER / name for name in ("model.onnx", "calib.npz", "eval.npz")
    ]
    assert plan.boards == ("local",)


def test_made_files_are_ignored_by_git() -> None:
    ignored = (FOLDER / ".gitignore").read_text(encoding="utf-8").split()
    assert {"model.onnx", "calib.npz", "eval.npz"} <= set(ignored)


def test_preprocessing_is_what_the_network_was_trained_with() -> None:
    """(x - 127) / 128 on three equal channels, as in Google's efficientnet/lite (MEAN_RGB 127, STDDEV_RGB 128)."""
    seen: list[npt.NDArray[np.float32]] = []

    def run(_: None, feeds: dict[str, npt.NDArray[np.float32]]) -> list[npt.NDArray[np.float32]]:
        seen.append(feeds["image"])
        return [feeds["image"].mean(axis=(2, 3))]

    session = SimpleNamespace(get_inputs=lambda: [SimpleNamespace(name="image")], run=run)
    # Flat images stay flat when they are resized.
    levels = np.array([0, 127, 255] * 30, dtype=np.uint8)
    images = np.broadcast_to(levels[:, None, None], (90, 28, 28)).copy()
    features = build.features_of(session, images, build.read_preprocess(FOLDER / "plan.yaml"))
    assert [batch.shape for batch in seen] == [(64, 3, 96, 96), (26, 3, 96, 96)]
    expected = (levels[:, None].astype(np.float64) - 127) / 128
    assert features == pytest.approx(np.repeat(expected, 3, axis=1), abs=1e-6)


def test_fitted_head_is_the_minimum_of_the_penalised_loss() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 200)
    raw = generator.normal(size=(200, 4)) + np.eye(3, 4)[labels]
    # Centred and of unit variance, so that the penalty is on the coefficients returned.
    centred = raw - raw.mean(0)
    features = (centred / centred.std()).astype(np.float32)
    fitted = linear_head.fit_head(features, labels, penalty=0.01)
    best = _loss(fitted, features, labels, 0.01)
    for _ in range(50):
        step = linear_head.Head(
            (fitted.weight + generator.normal(scale=0.05, size=(3, 4))).astype(np.float32),
            (fitted.bias + generator.normal(scale=0.05, size=3)).astype(np.float32),
        )
        assert _loss(step, features, labels, 0.01) > best


def test_head_does_not_depend_on_the_scale_of_the_features() -> None:
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 4, 300)
    features = (generator.normal(size=(300, 6)) + 2 * np.eye(4, 6)[labels]).astype(np.float32)
    scaled = (features * 1000 + 500).astype(np.float32)
    plain, other = linear_head.fit_head(features, labels), linear_head.fit_head(scaled, labels)
    assert scaled @ other.weight.T + other.bias == pytest.approx(features @ plain.weight.T + plain.bias, abs=0.02)


def test_constant_feature_is_harmless() -> None:
    labels = np.array([0, 1] * 20)
    features = np.stack([labels * 2.0 - 1, np.full(40, 7.0)], axis=1).astype(np.float32)
    fitted = linear_head.fit_head(features, labels)
    assert np.isfinite(fitted.weight).all()
    assert np.array_equal((features @ fitted.weight.T + fitted.bias).argmax(1), labels)


def test_attached_head_computes_the_logits() -> None:
    generator = np.random.default_rng(2)
    fitted = linear_head.Head(
        generator.normal(size=(10, 6)).astype(np.float32), generator.normal(size=10).astype(np.float32)
    )
    backbone = _backbone("features")
    before = backbone.SerializeToString()
    model = linear_head.attach_head(backbone, fitted)
    assert backbone.SerializeToString() == before
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    image = generator.normal(size=(5, 6)).astype(np.float32)
    (logits,) = session.run(None, {"image": image})
    assert [output.name for output in session.get_outputs()] == ["logits"]
    assert logits == pytest.approx(np.maximum(image, 0) @ fitted.weight.T + fitted.bias, abs=1e-5)


def test_head_needs_a_backbone() -> None:
    with pytest.raises(ValueError, match=r"\['other'\]"):
        linear_head.attach_head(
            _backbone("other"), linear_head.Head(np.zeros((2, 6), np.float32), np.zeros(2, np.float32))
        )


def test_arguments() -> None:
    options = build.parse_arguments(["--images", "1000", "--cache", "c", "--torch-index", ""])
    assert (options.images, options.cache, options.torch_index, options.python) == (1000, Path("c"), "", None)
    assert options.out == FOLDER


@pytest.mark.parametrize("count", ["99", "1001", "none"])
def test_images_must_be_balanced(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build.parse_arguments(["--images", count])
    assert "--images" in capsys.readouterr().err


def test_missing_data_is_told_before_anything_is_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = tmp_path / "cache"
    assert build.main(["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--cache", str(cache)]) == 2
    assert "dataset-fashion-mnist" in capsys.readouterr().err
    assert not cache.exists()


def test_python_without_torch_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_split(tmp_path, "train", *small_split(60, seed=1))
    write_split(tmp_path, "t10k", *small_split(200, seed=2))
    # -S: an interpreter without any site packages.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -I "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    arguments = ["--data", str(tmp_path), "--out", str(tmp_path), "--cache", str(tmp_path / "c"), "--python"]
    assert build.main([*arguments, str(python)]) == 2
    assert "No module named 'torch'" in capsys.readouterr().err
    assert not (tmp_path / "model.onnx").exists()
    assert list((tmp_path / "c").iterdir()) == []


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert toolchain.default_folder() == tmp_path / "boardtune" / "examples" / "efficientnet_lite0"


class Installations:
    """Stands for venv and pip; keeps what was asked of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, exit_code: int = 0) -> None:
        self.commands: list[Sequence[str]] = []
        self.exit_code = exit_code
        monkeypatch.setattr(venv, "create", self._create)
        monkeypatch.setattr(subprocess, "run", self._run)

    def _create(self, folder: Path, **_: Any) -> None:
        python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
        python.parent.mkdir(parents=True)
        python.touch()

    def _run(self, command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        return subprocess.CompletedProcess(command, self.exit_code, "", "ERROR: no matching distribution")


def test_environment_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installations = Installations(monkeypatch)
    first = toolchain.ensure_environment(tmp_path, index="https://example.org/cpu")
    assert toolchain.ensure_environment(tmp_path) == first
    (command,) = installations.commands
    assert command[0] == str(first)
    assert set(toolchain.REQUIREMENTS) <= set(command)
    assert "https://example.org/cpu" in command


def test_environment_of_other_requirements_is_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installations = Installations(monkeypatch)
    toolchain.ensure_environment(tmp_path)
    (tmp_path / "installed.txt").write_text("torch==1.0\n", encoding="utf-8")
    monkeypatch.setattr(venv, "create", lambda *_, **__: None)
    toolchain.ensure_environment(tmp_path)
    assert len(installations.commands) == 2


def test_failed_installation_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installations = Installations(monkeypatch, exit_code=1)
    with pytest.raises(toolchain.ToolchainProblem, match="no matching distribution"):
        toolchain.ensure_environment(tmp_path / "a")
    installations.exit_code = 0
    monkeypatch.setattr(venv, "create", lambda *_, **__: None)
    toolchain.ensure_environment(tmp_path / "a")
    assert len(installations.commands) == 2


def _loss(fitted: linear_head.Head, features: npt.NDArray[np.float32], labels: Any, penalty: float) -> float:
    scores = features.astype(np.float64) @ fitted.weight.T.astype(np.float64) + fitted.bias
    likelihood = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return float(-np.log(likelihood[range(len(labels)), labels]).mean() + penalty / 2 * (fitted.weight**2).sum())


def _backbone(output: str) -> Any:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["image"], [output])],
        "backbone",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 6])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", 6])],
    )
    return onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
