"""The same recipe gives the same bytes: in another process, with another hash seed, with and without kept statistics,
whatever was made before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import ModelProto, helper
from quantize_models import conv_net, model_of, samples, weights

from harness.quantize.contract import Artifact, QuantizeJob, QuantizeLimits
from harness.quantize.prepare import prepare_model
from harness.quantize.worker import QuantizeWorker
from harness.recipes.presets import preset
from harness.recipes.recipe import Recipe

CORRECTED: tuple[Mapping[str, Any], ...] = (
    {"rounding": "adaround", "bias_correction": True},
    {"rounding": "adaquant", "weight_clip": "mse"},
    {"calibration": {"method": "layerwise_percentile"}},
    {"calibration": {"method": "distribution"}, "scale": "power_of_two"},
    # Made last without kept statistics, and first with them: the others go on from there.
    {"calibration": {"method": "entropy", "samples": 20}},
)
CONVOLUTIONS = ({"equalize": True, "bias_correction": True, "align_scales": ["GlobalAveragePool"]},)
ATTENTION = ({"smooth_alpha": 0.5}, {"scheme": "weight_only", "weight": "int4", "block_size": 32})


def normalized_net() -> ModelProto:
    """LayerNormalization → MatMul → Relu → MatMul."""
    constants = {"g": weights(1, 64), "a": weights(2, 64, 48), "b": weights(3, 48, 10)}
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g"], ["n"], "norm"),
        helper.make_node("MatMul", ["n", "a"], ["m"], "matmul1"),
        helper.make_node("Relu", ["m"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "b"], ["y"], "matmul2"),
    ]
    return model_of(nodes, constants, {"x": [1, 7, 64]}, {"y": [1, 7, 10]})


@pytest.mark.parametrize(
    ("model", "shape", "further"),
    [(conv_net, (3, 12, 12), CONVOLUTIONS), (normalized_net, (7, 64), ATTENTION)],
    ids=["convolutions", "attention"],
)
def test_in_two_processes(
    model: Any, shape: tuple[int, ...], further: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(model(), tmp_path / "model.onnx")
    prepared = prepare_model(tmp_path / "model.onnx", tmp_path / "float.onnx")
    calibration = samples(tmp_path / "calib.npz", n=40, x=shape)
    own = [Recipe.from_dict({"granularity": "per_channel", **changes}) for changes in (*further, *CORRECTED)]
    recipes = [*preset("quick", prepared.facts).seeds, *own]

    def make(seed: int, cache: str, order: list[int]) -> dict[int, bytes]:
        monkeypatch.setenv("PYTHONHASHSEED", str(seed))
        limits, made = QuantizeLimits(min_snr_db=-200.0), {}
        with QuantizeWorker() as worker:
            for index in order:
                out = tmp_path / f"{seed}.onnx"
                job = QuantizeJob(prepared.path, calibration, recipes[index], out, limits, {"cache": cache})
                result = worker.quantize(job)
                assert isinstance(result, Artifact), result
                made[index] = result.path.read_bytes()
        return made

    order = list(range(len(recipes)))
    first = make(1, "", order)
    second = make(2, str(tmp_path / "cache"), order[::-1])
    assert [recipes[index].label for index in order if first[index] != second[index]] == []
    # Not all one and the same.
    assert len(set(first.values())) > len(recipes) // 2
