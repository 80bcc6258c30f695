"""What stays in float, and what must not for the same look."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graph_builder import GraphBuilder
from onnx import ModelProto, TensorProto

from harness.quantize.float_nodes import float_notices, nodes_left_in_float
from harness.quantize.statistics import ActivationStatistics
from harness.recipes.recipe import Recipe

QDQ = Recipe(activation="uint8")
QOPERATOR = QDQ.with_changes(format="QOperator")


def left(
    model: ModelProto, recipe: Recipe = QDQ, *, unseen: tuple[str, ...] = (), **ranges: tuple[float, float]
) -> dict[str, str]:
    """Operator type -> reason, with ranges of ±1 where none is given."""
    model = onnx.shape_inference.infer_shapes(model)
    names = [n for node in model.graph.node for n in node.output] + [v.name for v in model.graph.input]
    seen = {n: ranges.get(n, (-1.0, 1.0)) for n in names if n not in unseen}
    statistics = {n: ActivationStatistics(low, high, 8, 0, None) for n, (low, high) in seen.items()}
    types = sorted({node.op_type for node in model.graph.node})
    found = nodes_left_in_float(model, recipe, statistics, types)
    by_name = {node.name: node.op_type for node in model.graph.node}
    return {by_name[name]: reason for name, reason in found.items()}


def test_bounds_and_regions_are_no_masks_and_no_empty_tensors() -> None:
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    c = g.node("Clip", [x, g.constant("low", np.float32(0)), g.constant("high", np.float32(3.4e38))], "c")
    roi = g.constant("roi", np.zeros(0, np.float32))
    g.node("Resize", [c, roi, g.constant("scales", [1, 1, 2, 2], np.float32)], "y")
    g.output("y")
    assert left(g.model()) == {}


def test_a_mask_is_followed_to_softmax_even_if_no_sample_used_it() -> None:
    g = GraphBuilder()
    x, keep = g.input("x", 1, 4), g.input("keep", 1, 4)
    m = g.node("Mul", [keep, g.constant("low", np.float32(-1e9))], "m")
    s = g.node("Add", [x, m], "s")
    r = g.node("Reshape", [s, g.constant("shape", [4], np.int64)], "r")
    p = g.node("Softmax", [r], "p")
    g.node("Sigmoid", [p], "y")
    g.output("y")
    found = left(g.model(), m=(0.0, 0.0), keep=(0.0, 0.0))
    assert set(found) == {"Mul", "Add", "Reshape", "Softmax"}
    assert all("mask" in reason for reason in found.values())


def test_large_activations_are_no_masks() -> None:
    g = GraphBuilder()
    x = g.input("x", 1, 16)
    g.node("Add", [x, g.weight("w", 16, scale=3e4)], "y")
    g.output("y")
    assert left(g.model(), x=(-6e4, 6e4), y=(-9e4, 9e4)) == {}


def test_activations_that_saturation_cannot_replace() -> None:
    g = GraphBuilder()
    x = g.input("x", 1, 4)
    r = g.node("Relu", [x], "r")
    s = g.node("Add", [x, r], "s")
    g.node("Clip", [s, g.constant("low", np.float32(0.5))], "y")
    g.output("y")
    assert set(left(g.model())) == {"Clip"}
    assert set(left(g.model(), QOPERATOR)) == {"Clip", "Relu"}
    assert left(g.model(), QDQ.with_changes(activation_symmetric=True)) == {}


@pytest.mark.parametrize(("recipe", "expected"), [(QDQ, set()), (QOPERATOR, {"Conv"})])
def test_computed_bias(recipe: Recipe, expected: set[str]) -> None:
    g = GraphBuilder()
    x, b = g.input("x", 1, 3, 6, 6), g.input("b", 4)
    g.node("Conv", [x, g.weight("w", 4, 3, 3, 3), b], "y")
    g.output("y")
    assert set(left(g.model(), recipe)) == expected


def test_unseen_tensors_and_control_flow_are_told() -> None:
    g = GraphBuilder()
    x, c = g.input("x", 2, 2), g.input("c", type=TensorProto.BOOL)
    h = g.node("MatMul", [x, g.weight("w", 2, 2)], "h")
    b = GraphBuilder()
    b.node("Neg", [h], "n")
    g.node("If", [c], "y", then_branch=b.subgraph("b", ["n"]), else_branch=b.subgraph("b", ["n"]))
    g.output("y")
    model = g.model()
    assert set(left(model, unseen=("h",))) == {"MatMul"}
    notices = float_notices(model, {"MatMul_0": "tensors that calibration saw no values of"})
    assert any("MatMul_0" in notice for notice in notices)
    assert any("2 operators inside If" in notice for notice in notices)
