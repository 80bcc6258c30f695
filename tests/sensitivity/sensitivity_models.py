"""Small float models whose groups differ in how much quantization costs them, and what is around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
N = 12


def made(
    nodes: Sequence[NodeProto],
    constants: Mapping[str, Array],
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int]],
) -> ModelProto:
    def values(shapes: Mapping[str, Sequence[int]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in shapes.items()]

    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(list(nodes), "g", values(inputs), values(outputs), tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def normal(seed: int, *shape: int, scale: float = 0.3) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def conv(name: str, read: str, **attributes: Any) -> NodeProto:
    return helper.make_node("Conv", [read, f"{name}.w", f"{name}.b"], [f"{name}.out"], name, **attributes)


def residual_net() -> ModelProto:
    """Two branches that a Concat joins, a residual Add, pooling, and a classifier.

    A weight of ``depthwise`` is a hundred times the others, in a channel that is always zero: with one scale for all
    weights, the others are lost, while no activation shows it.
    """
    stem, stem_bias, depthwise = normal(1, 8, 3, 3, 3), normal(2, 8), normal(3, 8, 1, 3, 3)
    stem[0], stem_bias[0] = 0.0, 0.0
    depthwise[0, 0, 1, 1] = 100.0
    constants: dict[str, Array] = {
        "stem.w": stem, "stem.b": stem_bias,
        "depthwise.w": depthwise, "depthwise.b": normal(4, 8),
        "mix.w": normal(5, 8, 8, 1, 1), "mix.b": normal(6, 8),
        "left.w": normal(7, 4, 8, 1, 1), "left.b": normal(8, 4),
        "right.w": normal(9, 4, 8, 3, 3, scale=0.1), "right.b": normal(10, 4),
        "head.w": normal(11, 8, 5), "head.b": normal(12, 5),
    }  # fmt: skip
    nodes = [
        conv("stem", "x", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["stem.out"], ["stem.act"], "stem.relu"),
        conv("depthwise", "stem.act", pads=[1, 1, 1, 1], group=8),
        conv("mix", "depthwise.out"),
        helper.make_node("Add", ["mix.out", "stem.act"], ["sum"], "add"),
        conv("left", "sum"),
        conv("right", "sum", pads=[1, 1, 1, 1]),
        helper.make_node("Concat", ["left.out", "right.out"], ["both"], "concat", axis=1),
        helper.make_node("MaxPool", ["both"], ["pooled"], "maxpool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["pooled"], ["mean"], "mean"),
        helper.make_node("Flatten", ["mean"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "head.w", "head.b"], ["y"], "head"),
    ]
    return made(nodes, constants, {"x": [1, 3, 8, 8]}, {"y": [1, 5]})


def two_outputs_net() -> ModelProto:
    """MatMuls, two of them with one weight, and two outputs, one of which the second half does not touch."""
    constants = {"a": normal(1, 16, 16), "bias": normal(2, 16), "b": normal(3, 16, 6)}
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["m1"], "first"),
        helper.make_node("Add", ["m1", "bias"], ["s"], "add"),
        helper.make_node("Relu", ["s"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "a"], ["again"], "second"),
        helper.make_node("Sigmoid", ["again"], ["y1"], "sigmoid"),
        helper.make_node("MatMul", ["r", "b"], ["y2"], "third"),
    ]
    return made(nodes, constants, {"x": [1, 7, 16]}, {"y1": [1, 7, 16], "y2": [1, 7, 6]})


def save(model: ModelProto, path: Path) -> Path:
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def save_samples(path: Path, model: ModelProto, n: int = N, seed: int = 0) -> Path:
    """Normal samples for each of the model's inputs."""
    generator = np.random.default_rng(seed)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim][1:] for v in model.graph.input}
    np.savez(path, **{k: generator.standard_normal((n, *s)).astype(np.float32) for k, s in shapes.items()})
    return path
