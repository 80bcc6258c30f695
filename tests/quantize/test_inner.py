"""Layers inside control flow, quantized dynamically."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from quantize_models import Array, samples, write

from harness.quantize import graph as graphs
from harness.quantize.ort_backend import OrtBackend
from harness.quantize.prepare import prepare_model
from harness.recipes.recipe import Recipe

DYNAMIC = Recipe(scheme="dynamic", granularity="per_channel")


def _info(name: str, kind: int, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def _looping_model() -> ModelProto:
    """A Loop whose body multiplies its state by a weight from outside, by one of its own with a bias, and branches."""
    random = np.random.default_rng(11)

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array((random.standard_normal(shape) / np.sqrt(6)).astype(np.float32), name)

    branch = [
        helper.make_graph([helper.make_node("MatMul", ["t", "outer"], ["a"], "in_then")], "then", [], [_info("a", 1)]),
        helper.make_graph(
            [helper.make_node("Gemm", ["t", "own", "bias"], ["b"], "in_else", transB=1)], "else", [], [_info("b", 1)]
        ),
    ]
    for inner in branch:
        inner.output[0].CopyFrom(_info(inner.output[0].name, TensorProto.FLOAT, 2, 6))
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "outer"], ["h"], "first"),
            helper.make_node("Tanh", ["h"], ["t"], "tanh"),
            helper.make_node("If", ["go"], ["i"], "choice", then_branch=branch[0], else_branch=branch[1]),
            helper.make_node("Gemm", ["i", "own", "bias"], ["next"], "second", transB=1),
            helper.make_node("Identity", ["go"], ["again"], "go_on"),
        ],
        "body",
        [_info("n", TensorProto.INT64), _info("go", TensorProto.BOOL), _info("state", TensorProto.FLOAT, 2, 6)],
        [_info("again", TensorProto.BOOL), _info("next", TensorProto.FLOAT, 2, 6)],
        [weight("own", 6, 6), weight("bias", 6)],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Loop", ["trips", "yes", "x"], ["s"], "loop", body=body),
            helper.make_node("MatMul", ["s", "last"], ["y"], "after"),
        ],
        "g",
        [_info("x", TensorProto.FLOAT, 2, 6)],
        [_info("y", TensorProto.FLOAT, 2, 3)],
        [
            weight("outer", 6, 6),
            weight("last", 6, 3),
            numpy_helper.from_array(np.array(2), "trips"),
            numpy_helper.from_array(np.array(True), "yes"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _made(folder: Path, recipe: Recipe) -> ModelProto:
    prepared = prepare_model(write(_looping_model(), folder / "m.onnx"), folder / "p.onnx")
    calibration = samples(folder / "c.npz", x=(2, 6))
    OrtBackend().quantize(prepared.path, calibration, recipe, folder / "q.onnx")
    onnx.checker.check_model(folder / "q.onnx")
    return onnx.load(folder / "q.onnx")


def _outputs(path: Path) -> Array:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(3)
    return np.stack([session.run(None, {"x": random.standard_normal((2, 6), np.float32)})[0] for _ in range(16)])


def _inside(model: ModelProto) -> list[str]:
    main = {node.name for node in model.graph.node}
    return [node.op_type for node in graphs.all_nodes(model) if node.name not in main]


def test_layers_of_bodies_compute_on_integers_and_stay_close(tmp_path: Path) -> None:
    made = _made(tmp_path, DYNAMIC)
    inside = _inside(made)
    assert inside.count("MatMulInteger") == 4
    assert "MatMul" not in inside
    assert "Gemm" not in inside
    expected, got = _outputs(tmp_path / "m.onnx"), _outputs(tmp_path / "q.onnx")
    assert 10 * np.log10(np.sum(np.square(expected)) / np.sum(np.square(expected - got))) >= 30.0


@pytest.mark.parametrize("weight", ["int8", "uint8"])
@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
def test_integers_stand_for_the_weights(weight: str, granularity: str, tmp_path: Path) -> None:
    made = _made(tmp_path, Recipe.from_dict({"scheme": "dynamic", "weight": weight, "granularity": granularity}))
    tensors = graphs.initializers_of(made.graph)
    before = graphs.all_graphs(_looping_model().graph)
    floats = {t.name: numpy_helper.to_array(t) for graph in before for t in graph.initializer}
    for name, expected in (("outer", floats["outer"]), ("own", floats["own"].T)):
        # A transposed one is called otherwise.
        found = {
            key.rpartition("_inner_")[2]: t for key, t in tensors.items() if key.startswith(name) and "_inner_" in key
        }
        integers, scale = (numpy_helper.to_array(found[end]) for end in ("quantized", "scale"))
        zero = found.get("zero_point")
        middle = 0.0 if zero is None else numpy_helper.to_array(zero).astype(np.float64)
        assert integers.dtype == weight
        assert scale.shape == ((6,) if granularity == "per_channel" else ())
        # Where the zero point is rounded, the end of the range may be half a step further.
        assert np.abs((integers - middle) * scale - expected).max() <= scale.max() * 1.01


def test_a_weight_that_bodies_share_is_kept_once_and_the_float_one_goes(tmp_path: Path) -> None:
    made = _made(tmp_path, DYNAMIC)
    everywhere = [t.name for graph in graphs.all_graphs(made.graph) for t in graph.initializer]
    assert everywhere.count("outer_inner_quantized") == 1
    assert not {"outer", "own"} & set(everywhere)


def test_what_a_recipe_leaves_in_float_stays(tmp_path: Path) -> None:
    inside = _inside(_made(tmp_path, DYNAMIC.with_changes(exclude_nodes=("first",), exclude_op_types=("Gemm",))))
    assert inside.count("MatMulInteger") == 1
    # ONNX Runtime's tool makes a MatMul and an Add of each Gemm.
    assert inside.count("MatMul") + inside.count("Gemm") == 3


def test_a_static_recipe_names_what_it_leaves_and_who_would_not(tmp_path: Path) -> None:
    prepared = prepare_model(write(_looping_model(), tmp_path / "m.onnx"), tmp_path / "p.onnx")
    notices = OrtBackend().quantize(prepared.path, samples(tmp_path / "c.npz", x=(2, 6)), Recipe(), tmp_path / "q.onnx")
    told = next(notice for notice in notices if "inside Loop 'loop'" in notice)
    assert "'first'" in told
    assert "dynamic" in told
