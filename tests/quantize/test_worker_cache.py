"""The worker's children share statistics, and make every kind of recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from quantize_models import conv_net, samples, write

from harness.boards.folders import CACHE_VARIABLE
from harness.quantize.contract import Artifact, QuantizeJob, QuantizeLimits
from harness.quantize.worker import QuantizeWorker
from harness.recipes.recipe import Recipe

RECIPES = (
    Recipe(activation="uint8", granularity="per_channel"),
    Recipe.from_dict({"granularity": "per_channel", "calibration": {"method": "entropy"}}),
    Recipe(granularity="per_channel", equalize=True, rounding="adaround", bias_correction=True, weight_clip="mse"),
    Recipe(
        granularity="per_channel", rounding="adaquant", smooth_alpha=0.5, format="QOperator", align_scales=("Concat",)
    ),
)


def made_by(worker: QuantizeWorker, folder: Path, extra: dict[str, Any]) -> list[Artifact]:
    model = write(onnx.shape_inference.infer_shapes(conv_net()), folder / "m.onnx")
    data = samples(folder / "c.npz", x=(3, 12, 12))
    limits = QuantizeLimits(min_snr_db=0.0)
    results = [
        worker.quantize(QuantizeJob(model, data, recipe, folder / f"{recipe.digest[:8]}.onnx", limits, extra))
        for recipe in RECIPES
    ]
    artifacts = [result for result in results if isinstance(result, Artifact)]
    assert len(artifacts) == len(RECIPES), results
    return artifacts


def test_the_same_artifacts_with_and_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users = tmp_path / "users"
    monkeypatch.setenv(CACHE_VARIABLE, str(users))
    for name in ("none", "own", "users"):
        (tmp_path / name).mkdir(exist_ok=True)
    with QuantizeWorker() as worker:
        without = made_by(worker, tmp_path / "none", {"cache": ""})
        assert not (users / "calibration").exists()
        own = made_by(worker, tmp_path / "own", {"cache": str(tmp_path / "kept")})
        assert not (users / "calibration").exists()
        again = made_by(worker, tmp_path / "own", {"cache": str(tmp_path / "kept")})
        default = made_by(worker, tmp_path / "users", {})
    kept = {path.suffix for path in (tmp_path / "kept").iterdir()}
    assert kept == {".npz", ".lock"}
    assert list((users / "calibration").glob("*.npz"))
    for others in (own, again, default):
        assert [a.identity for a in others] == [a.identity for a in without]
        assert [a.snr_db for a in others] == [a.snr_db for a in without]
        assert [a.sha256 for a in others] == [a.sha256 for a in without]
    assert any("found no LayerNormalization" in notice for notice in without[3].notices)
    assert not without[0].notices
