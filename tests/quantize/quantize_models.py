"""Small float models for tests: seeded weights, opset and names chosen to show what a test looks at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]


def model_of(
    nodes: Sequence[NodeProto],
    constants: dict[str, Array],
    inputs: dict[str, Sequence[int | str]],
    outputs: dict[str, Sequence[int | str]],
    *,
    opset: int = 17,
    ir_version: int = 8,
    output_type: int = TensorProto.FLOAT,
    input_type: int = TensorProto.FLOAT,
) -> ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, input_type, list(shape)) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, output_type, list(shape)) for name, shape in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], producer_name="tests")
    model.ir_version = ir_version
    return model


def weights(seed: int, *shape: int, scale: float = 0.3) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def conv_net(*, opset: int = 17, batch: int | str = 1) -> ModelProto:
    """Conv → Relu → depthwise Conv → Relu → GlobalAveragePool → Flatten → Gemm → Softmax.

    The depthwise channels differ in magnitude by orders, so that per-tensor weights lose most of them.
    """
    depthwise = weights(3, 8, 1, 3, 3) * np.logspace(-2, 0, 8, dtype=np.float32)[:, None, None, None]
    constants = {
        "w1": weights(1, 8, 3, 3, 3),
        "b1": weights(2, 8),
        "w2": depthwise,
        "b2": weights(4, 8),
        "w3": weights(5, 8, 5) * np.logspace(0, 1, 8, dtype=np.float32)[:, None],
        "b3": weights(6, 5),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "conv2", pads=[1, 1, 1, 1], group=8),
        helper.make_node("Relu", ["c2"], ["r2"], "relu2"),
        helper.make_node("GlobalAveragePool", ["r2"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["g"], "gemm"),
        helper.make_node("Softmax", ["g"], ["y"], "softmax", axis=1),
    ]
    return model_of(nodes, constants, {"x": [batch, 3, 12, 12]}, {"y": [batch, 5]}, opset=opset)


def matmul_net(*, opset: int = 17, width: int = 64) -> ModelProto:
    """MatMul → Add → Relu → MatMul, with constant right-hand matrices."""
    constants = {"a": weights(1, width, 48), "bias": weights(2, 48), "b": weights(3, 48, 10)}
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["m1"], "matmul1"),
        helper.make_node("Add", ["m1", "bias"], ["s"], "add"),
        helper.make_node("Relu", ["s"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "b"], ["y"], "matmul2"),
    ]
    return model_of(nodes, constants, {"x": [1, 7, width]}, {"y": [1, 7, 10]}, opset=opset)


def write(model: ModelProto, path: Path) -> Path:
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return path


def samples(path: Path, seed: int = 0, n: int = 24, **shapes: Sequence[int]) -> Path:
    """An ``.npz`` of normal samples; shapes without the sample axis."""
    generator = np.random.default_rng(seed)
    np.savez(path, **{k: generator.standard_normal((n, *s)).astype(np.float32) for k, s in shapes.items()})
    return path
