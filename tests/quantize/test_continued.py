"""Models that are quantized in part: the rest is quantized, what was done stays as it is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from quantize_models import Array, samples, write

from harness.quantize.acceptance import accept
from harness.quantize.continued import finished_nodes
from harness.quantize.contract import Artifact, Cause, ModelRefused, Refusal
from harness.quantize.ort_backend import OrtBackend
from harness.quantize.prepare import prepare_model
from harness.recipes.recipe import Recipe

PER_CHANNEL = Recipe(activation="uint8", granularity="per_channel")
RECIPES = {
    "uint8": PER_CHANNEL,
    "int8": PER_CHANNEL.with_changes(activation="int8"),
    "int16": Recipe(activation="int16", weight="int8"),
    "qoperator": PER_CHANNEL.with_changes(format="QOperator"),
    "dynamic": Recipe(scheme="dynamic"),
    "block": Recipe(scheme="weight_only", weight="int8"),
}


def _float_model() -> ModelProto:
    """Convolutions first, matrices last, an activation and an addition between."""
    random = np.random.default_rng(5)

    def weight(name: str, *shape: int) -> TensorProto:
        values = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return numpy_helper.from_array(values.astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "second", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["s"], "sum"),
        helper.make_node("GlobalAveragePool", ["s"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("MatMul", ["f", "w3"], ["m"], "third"),
        helper.make_node("MatMul", ["m", "w4"], ["y"], "fourth"),
    ]
    weights = [weight("w1", 6, 3, 3, 3), weight("b1", 6), weight("w2", 6, 6, 3, 3), weight("w3", 6, 8)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [*weights, weight("w4", 8, 4)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return samples(tmp_path_factory.mktemp("data") / "c.npz", x=(3, 8, 8))


def _partly(folder: Path, calibration: Path, recipe: Recipe) -> Path:
    """Quantized by ``recipe``, which leaves something in float."""
    prepared = prepare_model(write(_float_model(), folder / "float.onnx"), folder / "prepared.onnx")
    OrtBackend().quantize(prepared.path, calibration, recipe, folder / "part.onnx")
    return folder / "part.onnx"


def _outputs(path: Path, calibration: Path) -> Array:
    options = ort.SessionOptions()
    # Otherwise ONNX Runtime gives float layers 8-bit weights by itself.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rows = np.load(calibration)["x"]
    return np.concatenate([session.run(None, {"x": row[None]})[0] for row in rows])


PARTS = {
    "first conv": PER_CHANNEL.with_changes(exclude_nodes=("second", "sum", "pool", "flat", "third", "fourth")),
    "convs": PER_CHANNEL.with_changes(activation="int8", op_types=("Conv",)),
    "matrices": PER_CHANNEL.with_changes(op_types=("MatMul",)),
    "integer operators": PER_CHANNEL.with_changes(format="QOperator", op_types=("Conv",)),
    "dynamic matrix": Recipe(scheme="dynamic", exclude_nodes=("third",)),
}


@pytest.mark.parametrize("part", PARTS)
def test_the_rest_is_quantized_and_what_was_done_stays(part: str, calibration: Path, tmp_path: Path) -> None:
    path = _partly(tmp_path, calibration, PARTS[part])
    before = onnx.load(path)
    prepared = prepare_model(path, tmp_path / "p.onnx", continue_quantized=True)
    integers = {bytes(t.raw_data) for t in before.graph.initializer if len(t.dims) > 1 and t.data_type != 1}
    expected = _outputs(path, calibration)
    names = RECIPES if part == "first conv" else ("uint8", "dynamic")
    for name, recipe in ((name, RECIPES[name]) for name in names):
        out = tmp_path / f"{name}.onnx"
        OrtBackend().quantize(prepared.path, calibration, recipe, out)
        result = accept(prepared.path, out, calibration, recipe, min_snr_db=15.0)
        if isinstance(result, Refusal):
            assert result.cause == Cause.NOTHING_QUANTIZED, (name, result)
            assert name in ("dynamic", "block", "qoperator")
            continue
        assert isinstance(result, Artifact)
        made = onnx.load(out)
        assert integers <= {bytes(t.raw_data) for t in made.graph.initializer}, name
        weights = [t for t in made.graph.initializer if t.name in ("w1", "w2", "w3", "w4")]
        if name in ("uint8", "int8", "int16"):
            assert not weights, (name, [t.name for t in weights])
        got = _outputs(out, calibration)
        ratio = 10 * np.log10(np.sum(np.square(expected)) / np.sum(np.square(expected - got)))
        assert ratio >= 25.0, name
        assert not made.metadata_props


def test_nothing_is_rounded_twice_over_the_same_range(calibration: Path, tmp_path: Path) -> None:
    path = _partly(tmp_path, calibration, PARTS["first conv"])
    prepared = prepare_model(path, tmp_path / "p.onnx", continue_quantized=True)
    OrtBackend().quantize(prepared.path, calibration, PER_CHANNEL, tmp_path / "q.onnx")
    made = onnx.load(tmp_path / "q.onnx")
    writers = {name: node.op_type for node in made.graph.node for name in node.output}
    chains = Counter((writers.get(node.input[0]), node.op_type) for node in made.graph.node)
    assert chains["DequantizeLinear", "QuantizeLinear"] == 0


def test_what_counts_as_done(calibration: Path, tmp_path: Path) -> None:
    part = onnx.load(_partly(tmp_path, calibration, PARTS["first conv"]))
    done = finished_nodes(part)
    assert {"first"} <= done
    assert not {"second", "third", "fourth"} & done


def test_a_float_model_is_no_other_for_being_continued(tmp_path: Path) -> None:
    path = write(_float_model(), tmp_path / "m.onnx")
    digests = {prepare_model(path, tmp_path / f"{c}.onnx", continue_quantized=c).digest for c in (False, True)}
    assert len(digests) == 1


def test_without_the_option_it_is_refused_and_the_option_named(calibration: Path, tmp_path: Path) -> None:
    path = _partly(tmp_path, calibration, PARTS["convs"])
    with pytest.raises(ModelRefused, match="--continue-quantized") as refused:
        prepare_model(path, tmp_path / "p.onnx")
    assert refused.value.cause == Cause.ALREADY_QUANTIZED


def test_a_model_without_a_float_rest_has_nothing_to_continue(calibration: Path, tmp_path: Path) -> None:
    path = _partly(tmp_path, calibration, PER_CHANNEL)
    prepared = prepare_model(path, tmp_path / "p.onnx", continue_quantized=True)
    OrtBackend().quantize(prepared.path, calibration, PER_CHANNEL, tmp_path / "q.onnx")
    result = accept(prepared.path, tmp_path / "q.onnx", calibration, PER_CHANNEL, min_snr_db=15.0)
    assert isinstance(result, Refusal)
    assert result.cause == Cause.NOTHING_QUANTIZED
