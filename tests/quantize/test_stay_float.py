"""Layers left in float are computed in float, also after ONNX Runtime's own optimisation of the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper
from quantize_models import model_of, samples, weights, write

from harness.quantize.graph import DEQUANTIZE
from harness.quantize.ort_backend import OrtBackend
from harness.quantize.prepare import prepare_model
from harness.quantize.sessions import open_session
from harness.quantize.snr import snr_db
from harness.recipes.recipe import Recipe

UNEVEN = np.logspace(-3, 0, 8, dtype=np.float32)
RECIPE = Recipe(activation="uint8", weight="int8", granularity="per_channel")


def chain(kind: str) -> ModelProto:
    """Layer, uneven layer of ``kind`` called ``middle``, layer that evens its channels out again."""
    spatial = [] if kind == "Gemm" else [6, 6]
    shape = {"Conv": (8, 1, 3, 3), "ConvTranspose": (8, 1, 3, 3), "Gemm": (8, 8)}[kind]
    scale = UNEVEN.reshape(-1, *[1] * (len(shape) - 1))
    middle = np.diag(UNEVEN) if kind == "Gemm" else weights(2, *shape) * scale
    end = weights(3, 8, 8, *([1, 1] if spatial else [])) * 0.5
    end /= UNEVEN.reshape(-1, 1) if kind == "Gemm" else UNEVEN.reshape(1, -1, 1, 1)
    layer = "Gemm" if kind == "Gemm" else "Conv"
    options: dict[str, Any] = {} if kind == "Gemm" else {"group": 8, "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node(layer, ["x", "first.w"], ["a"], "first"),
        helper.make_node(kind, ["a", "middle.w", "middle.b"], ["b"], "middle", **options),
        helper.make_node(layer, ["b", "last.w"], ["y"], "last"),
    ]
    constants = {
        "first.w": weights(1, 8, 8, *([1, 1] if spatial else [])),
        "middle.w": middle.astype(np.float32),
        "middle.b": np.zeros(8, np.float32),
        "last.w": end.astype(np.float32),
    }
    return model_of(nodes, constants, {"x": [1, 8, *spatial]}, {"y": [1, 8, *spatial]})


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "Gemm"])
def test_a_layer_left_in_float_has_its_own_weights(tmp_path: Path, kind: str) -> None:
    prepared = prepare_model(write(chain(kind), tmp_path / "m.onnx"), tmp_path / "float.onnx")
    calibration = samples(tmp_path / "c.npz", n=8, x=[8] if kind == "Gemm" else [8, 6, 6])
    # The graph of three layers is prepared as it is: names are kept.
    recipe = RECIPE.with_changes(exclude_nodes=("middle",))
    OrtBackend().quantize(prepared.path, calibration, recipe, tmp_path / "q.onnx")
    feeds = [{"x": row[None]} for row in np.load(calibration)["x"]]

    def outputs(optimization: Any) -> list[Any]:
        session = open_session(tmp_path / "q.onnx", optimization)
        return [session.run(None, feed)[0] for feed in feeds]

    # One scale for these weights would lose all channels but a few: under 30 dB.
    assert snr_db(outputs("disabled"), outputs("all")) > 45.0


def test_only_layers_left_in_float_are_touched(tmp_path: Path) -> None:
    prepared = prepare_model(write(chain("Conv"), tmp_path / "m.onnx"), tmp_path / "float.onnx")
    calibration = samples(tmp_path / "c.npz", n=4, x=[8, 6, 6])
    for excluded, scales in (((), 0), (("middle",), 8)):
        recipe = RECIPE.with_changes(exclude_nodes=excluded)
        OrtBackend().quantize(prepared.path, calibration, recipe, tmp_path / "q.onnx")
        made = onnx.load(tmp_path / "q.onnx")
        constants = {tensor.name: tensor for tensor in made.graph.initializer}
        activations = [n for n in made.graph.node if n.op_type == DEQUANTIZE and n.input[0] not in constants]
        wide = [n for n in activations if list(constants[n.input[1]].dims) == [8]]
        assert sum(constants[n.input[1]].dims[0] for n in wide) == scales
