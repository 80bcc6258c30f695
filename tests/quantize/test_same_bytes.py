"""The same recipe gives the same bytes: in another process, with another hash seed, with and without kept statistics,
whatever was made before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from quantize_models import conv_net

from harness.quantize.contract import Artifact, QuantizeJob, QuantizeLimits
from harness.quantize.prepare import prepare_model
from harness.quantize.worker import QuantizeWorker
from harness.recipes.presets import preset
from harness.recipes.recipe import Calibration, Recipe

CORRECTED = (
    {"rounding": "adaround", "bias_correction": True},
    {"rounding": "adaquant", "weight_clip": "mse"},
    {"equalize": True, "bias_correction": True, "align_scales": ["GlobalAveragePool"]},
    {"calibration": Calibration("layerwise_percentile")},
    {"calibration": Calibration("distribution"), "scale": "power_of_two"},
)


def test_in_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(conv_net(), tmp_path / "model.onnx")
    prepared = prepare_model(tmp_path / "model.onnx", tmp_path / "float.onnx")
    np.savez(tmp_path / "calib.npz", x=np.random.default_rng(0).normal(size=(40, 3, 12, 12)).astype(np.float32))
    own = [Recipe.from_dict({"granularity": "per_channel", **_plain(changes)}) for changes in CORRECTED]
    recipes = [*preset("quick", prepared.facts).seeds, *own]

    def make(seed: int, cache: str, order: list[int]) -> dict[int, bytes]:
        monkeypatch.setenv("PYTHONHASHSEED", str(seed))
        made = {}
        with QuantizeWorker() as worker:
            for index in order:
                job = QuantizeJob(
                    prepared.path,
                    tmp_path / "calib.npz",
                    recipes[index],
                    tmp_path / f"{seed}.onnx",
                    QuantizeLimits(min_snr_db=-200.0),
                    {"cache": cache},
                )
                result = worker.quantize(job)
                assert isinstance(result, Artifact), result
                made[index] = result.path.read_bytes()
        return made

    order = list(range(len(recipes)))
    first = make(1, str(tmp_path / "cache"), order)
    second = make(2, "", order[::-1])
    unlike = [recipes[index].label for index in order if first[index] != second[index]]
    assert unlike == []
    # Not all one and the same.
    assert len(set(first.values())) > len(recipes) // 2


def _plain(changes: dict[str, Any]) -> dict[str, Any]:
    calibration = changes.get("calibration")
    return {**changes, "calibration": {"method": calibration.method}} if calibration else changes
