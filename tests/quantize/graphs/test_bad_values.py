"""Values that are not finite: refused by name where they are a fault, left in float where they are a mask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from graph_builder import Array, GraphBuilder
from onnx import ModelProto

from harness.quantize.contract import Artifact, Cause, QuantizeJob, Refusal
from harness.quantize.prepare import prepare_model
from harness.quantize.worker import QuantizeWorker
from harness.recipes.recipe import Recipe

RECIPE = Recipe(activation="uint8", granularity="per_channel")


@pytest.fixture(scope="module")
def worker() -> Iterator[QuantizeWorker]:
    with QuantizeWorker() as started:
        yield started


def attention() -> ModelProto:
    """With the mask as an input."""
    g = GraphBuilder()
    x, mask = g.input("x", 1, 6, 8), g.input("mask", 1, 1, 6)
    q, k, v = (g.node("MatMul", [x, g.weight(f"w{n}", 8, 8)], n) for n in "qkv")
    t = g.node("Transpose", [k], "t", perm=[0, 2, 1])
    m = g.node("Add", [g.node("MatMul", [q, t], "s"), mask], "m")
    a = g.node("MatMul", [g.node("Softmax", [m], "p", axis=-1), v], "a")
    g.node("MatMul", [a, g.weight("wo", 8, 8)], "y")
    g.output("y")
    return g.model()


def quantize(worker: QuantizeWorker, folder: Path, data: dict[str, Array]) -> Artifact | Refusal:
    (folder / "m.onnx").write_bytes(attention().SerializeToString())
    np.savez(folder / "c.npz", **data)
    prepare_model(folder / "m.onnx", folder / "p.onnx")
    return worker.quantize(QuantizeJob(folder / "p.onnx", folder / "c.npz", RECIPE, folder / "q.onnx"))


def arrays(low: float) -> dict[str, Array]:
    random = np.random.default_rng(3)
    mask = np.zeros((16, 1, 1, 6), np.float32)
    for row, length in enumerate(random.integers(2, 7, 16)):
        mask[row, :, :, length:] = low
    return {"x": random.standard_normal((16, 1, 6, 8)).astype(np.float32), "mask": mask}


@pytest.mark.parametrize("low", [-np.inf, float(np.finfo(np.float32).min), -1e9])
def test_masks_fed_as_inputs_stay_in_float(worker: QuantizeWorker, tmp_path: Path, low: float) -> None:
    result = quantize(worker, tmp_path, arrays(low))
    assert isinstance(result, Artifact), result
    assert result.snr_db is not None
    assert result.snr_db >= 25.0
    assert any("mask values" in notice for notice in result.notices)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_bad_samples_are_named(worker: QuantizeWorker, tmp_path: Path, value: float) -> None:
    data = arrays(-1e9)
    data["x"][5, 0, 2, 3] = value
    result = quantize(worker, tmp_path, data)
    assert isinstance(result, Refusal)
    assert result.cause == Cause.BAD_CALIBRATION
    for word in ("'x'", "1 of 48", "sample 5"):
        assert word in result.message


def test_weights_that_are_not_finite_stay_in_float(worker: QuantizeWorker, tmp_path: Path) -> None:
    g = GraphBuilder()
    x = g.input("x", 2, 6)
    w = g.random.standard_normal((6, 6)).astype(np.float32)
    w[2, 3] = np.inf
    h = g.node("MatMul", [x, g.constant("w", w)], "h")
    c = g.node("Clip", [h, g.constant("low", np.float32(-2)), g.constant("high", np.float32(2))], "c")
    g.node("MatMul", [c, g.weight("v", 6, 6)], "y")
    g.output("y")
    (tmp_path / "m.onnx").write_bytes(g.model().SerializeToString())
    np.savez(tmp_path / "c.npz", x=np.random.default_rng(1).standard_normal((16, 2, 6)).astype(np.float32))
    prepare_model(tmp_path / "m.onnx", tmp_path / "p.onnx")
    result = worker.quantize(QuantizeJob(tmp_path / "p.onnx", tmp_path / "c.npz", RECIPE, tmp_path / "q.onnx"))
    assert isinstance(result, Artifact), result
    assert any("not finite" in notice for notice in result.notices)
