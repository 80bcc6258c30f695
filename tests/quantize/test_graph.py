from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from quantize_models import conv_net, matmul_net, model_of

from harness.quantize.graph import (
    all_nodes,
    count_quantized_operators,
    has_float16,
    name_nodes,
    quantization_found,
    sort_nodes,
)
from harness.quantize.passes.constants import constants_to_initializers


@given(st.randoms(use_true_random=False))
def test_sorting_restores_any_order(shuffler: random.Random) -> None:
    model = conv_net()
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in model.graph.node]
    shuffler.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    sort_nodes(model.graph)
    assert [n.op_type for n in model.graph.node] == [n.op_type for n in conv_net().graph.node]
    onnx.checker.check_model(model)


def test_sorting_sees_what_subgraphs_read_and_keeps_what_is_in_order() -> None:
    branch = helper.make_graph(
        [helper.make_node("Neg", ["late"], ["b"])], "b", [], [helper.make_tensor_value_info("b", 1, [2])]
    )
    choose = helper.make_node("If", ["c"], ["y"], "choose", then_branch=branch, else_branch=branch)
    late = helper.make_node("Relu", ["x"], ["late"], "late")
    model = model_of([choose, late], {"c": np.array(True)}, {"x": [2]}, {"y": [2]})
    sort_nodes(model.graph)
    assert [n.name for n in model.graph.node] == ["late", "choose"]
    onnx.checker.check_model(model)
    before = model.SerializeToString()
    sort_nodes(model.graph)
    assert model.SerializeToString() == before


def test_sorting_is_not_recursive_and_refuses_circles() -> None:
    nodes = [helper.make_node("Neg", [f"t{i + 1}"], [f"t{i}"]) for i in range(3000)]
    model = model_of(nodes, {}, {"t3000": [1]}, {"t0": [1]})
    sort_nodes(model.graph)
    assert model.graph.node[0].input[0] == "t3000"
    circle = [helper.make_node("Add", ["x", "b"], ["a"], "one"), helper.make_node("Neg", ["a"], ["b"], "two")]
    with pytest.raises(ValueError, match="own result"):
        sort_nodes(model_of(circle, {}, {"x": [1]}, {"a": [1]}).graph)


def test_names_are_unique_and_kept_where_they_were() -> None:
    model = conv_net()
    for node, name in zip(model.graph.node, ["a", "", "a", "", "Relu_0", "b", "b", "b_0"], strict=True):
        node.name = name
    name_nodes(model)
    names = [node.name for node in all_nodes(model)]
    assert len(set(names)) == len(names)
    assert (names[0], names[4], names[5], names[7]) == ("a", "Relu_0", "b", "b_0")


def test_counting() -> None:
    assert not quantization_found(conv_net())
    assert not has_float16(conv_net())
    assert count_quantized_operators(matmul_net()) == 0
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s"], ["d"]),
        helper.make_node("Relu", ["d"], ["r"]),
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Cast", ["r"], ["h"], to=TensorProto.FLOAT16),
    ]
    model = model_of(nodes, {"s": np.array(0.1, np.float32)}, {"x": [2]}, {"y": [2]})
    # A bare pair quantizes nothing; of the two Relus one reads dequantized values.
    assert count_quantized_operators(model) == 1
    assert quantization_found(model) == {"QuantizeLinear": 1, "DequantizeLinear": 1}
    assert has_float16(model)


def test_constant_nodes_become_initializers_unless_they_are_outputs() -> None:
    value = helper.make_tensor("v", 1, [2], [1.0, 2.0])
    nodes = [
        helper.make_node("Constant", [], ["w"], value=value),
        helper.make_node("Constant", [], ["o"], value=value),
        helper.make_node("Add", ["x", "w"], ["y"]),
    ]
    model = model_of(nodes, {}, {"x": [2]}, {"y": [2], "o": [2]})
    constants_to_initializers(model.graph)
    assert [n.output[0] for n in model.graph.node] == ["o", "y"]
    assert [t.name for t in model.graph.initializer] == ["w"]
    onnx.checker.check_model(model)
