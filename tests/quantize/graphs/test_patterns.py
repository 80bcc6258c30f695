"""Each known pattern of failure, through preparation and the killable worker, with the ratio it must reach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from graph_builder import Array
from odd_patterns import ODD_PATTERNS
from patterns import PATTERNS, Pattern

from harness.quantize.contract import Artifact, Cause, QuantizeJob, QuantizeLimits, Refusal
from harness.quantize.prepare import prepare_model
from harness.quantize.worker import QuantizeWorker
from harness.recipes.recipe import Recipe

_BASE = Recipe(granularity="per_channel")
RECIPES = {
    "s8s8": _BASE,
    "u8s8": _BASE.with_changes(activation="uint8"),
    "qop": _BASE.with_changes(activation="uint8", format="QOperator"),
    "block": Recipe(scheme="weight_only", weight="int8"),
    "s8s4": _BASE.with_changes(weight="int4"),
    "equalized": _BASE.with_changes(equalize=True),
    "float16": Recipe(scheme="float16"),
    "dynamic": Recipe(scheme="dynamic", granularity="per_channel"),
}


@pytest.fixture(scope="module")
def worker() -> Iterator[QuantizeWorker]:
    with QuantizeWorker() as started:
        yield started


def ratio_db(float_model: bytes, made: Path, data: dict[str, Array]) -> float:
    """Of the worst output over the samples, against the model as it was given: independent of the product's own."""
    sessions = [ort.InferenceSession(m, providers=["CPUExecutionProvider"]) for m in (float_model, str(made))]
    signal: dict[str, float] = {}
    noise: dict[str, float] = {}
    names = [output.name for output in sessions[0].get_outputs()]
    assert [output.name for output in sessions[1].get_outputs()] == names
    for row in range(len(next(iter(data.values())))):
        feed = {name: np.asarray(array[row]) for name, array in data.items()}
        for name, want, got in zip(names, *(s.run(names, feed) for s in sessions), strict=True):
            assert want.dtype == got.dtype
            assert want.shape == got.shape
            signal[name] = signal.get(name, 0.0) + float(np.sum(np.square(want.astype(np.float64))))
            noise[name] = noise.get(name, 0.0) + float(np.sum(np.square(want.astype(np.float64) - got)))
    return min(10 * np.log10(signal[n] / noise[n]) if noise[n] else 200.0 for n in names)


@pytest.mark.parametrize("pattern", [*PATTERNS, *ODD_PATTERNS], ids=lambda pattern: pattern.name)
def test_pattern(pattern: Pattern, worker: QuantizeWorker, tmp_path: Path) -> None:
    model = pattern.build()
    content = model.SerializeToString()
    (tmp_path / "m.onnx").write_bytes(content)
    data = pattern.data(model)
    np.savez(tmp_path / "c.npz", **data)
    prepare_model(tmp_path / "m.onnx", tmp_path / "p.onnx")
    for name, expected in pattern.floors.items():
        out = tmp_path / f"{name}.onnx"
        limits = QuantizeLimits(timeout_s=60.0)
        job = QuantizeJob(tmp_path / "p.onnx", tmp_path / "c.npz", RECIPES[name], out, limits)
        result = worker.quantize(job)
        if isinstance(expected, Cause):
            assert isinstance(result, Refusal), name
            assert result.cause == expected, result.message
            continue
        assert isinstance(result, Artifact), f"{name}: {result}"
        assert result.snr_db is not None
        assert result.snr_db >= expected, name
        if pattern.runs_as_given:
            # Sums in another order may round another way: half a decibel.
            assert ratio_db(content, out, data) >= expected - 0.5, name
