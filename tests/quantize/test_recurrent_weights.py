"""Weights of recurrent operators in blocks, read back by ONNX's reference implementation."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from harness.quantize.weight_only import quantize_weight_only
from harness.recipes.recipe import Recipe

RANDOM = np.random.default_rng(2)
WEIGHTS = {
    "w": RANDOM.standard_normal((2, 12, 40)).astype(np.float32),
    "r": RANDOM.standard_normal((2, 12, 4)).astype(np.float32),
}


def _model() -> ModelProto:
    node = helper.make_node("GRU", ["x", "w", "r"], ["y"], "gru", hidden_size=4, direction="bidirectional")
    again = helper.make_node("GRU", ["x", "w", "r"], ["z"], "again", hidden_size=4, direction="bidirectional")
    shape = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 1, 40])
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yz"]
    tensors = [numpy_helper.from_array(values, name) for name, values in WEIGHTS.items()]
    graph = helper.make_graph([node, again], "g", [shape], outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("weight", ["int8", "uint8", "int4", "uint4"])
def test_what_is_read_is_within_a_step_of_the_weights(weight: str) -> None:
    recipe = Recipe.from_dict({"scheme": "weight_only", "weight": weight, "block_size": 16})
    made = quantize_weight_only(_model(), recipe, ())
    reading = next(node for node in made.graph.node if node.name == "gru")
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    assert not {"w", "r"} & tensors.keys()
    for name, source in zip(("w", "r"), reading.input[1:3], strict=True):
        node = next(node for node in made.graph.node if source in node.output)
        part = helper.make_graph(
            [node],
            "part",
            [],
            [helper.make_tensor_value_info(source, TensorProto.FLOAT, None)],
            [tensor for tensor in made.graph.initializer if tensor.name in node.input],
        )
        model = helper.make_model(part, opset_imports=made.opset_import, ir_version=10)
        (read,) = ReferenceEvaluator(model).run(None, {})
        steps = np.repeat(np.abs(tensors[node.input[1]]), 16, axis=2)[:, :, : WEIGHTS[name].shape[2]]
        assert read.shape == WEIGHTS[name].shape
        # Where the range is symmetric, the end opposite to its extreme may be clipped by one step.
        assert np.all(np.abs(read - WEIGHTS[name]) <= steps * (0.501 if weight.startswith("u") else 1.001))


def test_operators_that_share_weights_go_on_sharing_them() -> None:
    made = quantize_weight_only(_model(), Recipe(scheme="weight_only", weight="int8"), ())
    assert len(made.graph.initializer) == 6
    assert [node.op_type for node in made.graph.node].count("DequantizeLinear") == 4


def test_what_a_recipe_excludes_keeps_its_weights() -> None:
    made = quantize_weight_only(_model(), Recipe(scheme="weight_only", weight="int8"), ("again",))
    kept = next(node for node in made.graph.node if node.name == "again")
    assert list(kept.input[1:3]) == ["w", "r"]
    other = next(node for node in made.graph.node if node.name == "gru")
    assert not {"w", "r"} & set(other.input)
