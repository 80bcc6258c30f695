"""A MobileNetV2-class float model with seeded weights, made from nothing: shapes and cost as the published network's,
batch norm folded (Sandler et al., "MobileNetV2", CVPR 2018, table 2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

_BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, repeats, first stride."""


class _Builder:
    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.constant("zero", np.float32(0.0))
        self.constant("six", np.float32(6.0))

    def constant(self, name: str, value: npt.NDArray[np.float32] | np.float32) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype=np.float32), name))
        return name

    def conv(self, x: str, inside: int, outside: int, kernel: int, stride: int, group: int, clip: bool) -> str:
        name = f"conv{len(self.nodes)}"
        fan_in = inside // group * kernel * kernel
        # Channels of differing magnitude, as folding batch norm leaves them.
        spread = self.random.lognormal(0.0, 0.6, (outside, 1, 1, 1)) * np.sqrt(2.0 / fan_in)
        weight = self.random.standard_normal((outside, inside // group, kernel, kernel)) * spread
        w = self.constant(f"{name}.weight", weight.astype(np.float32))
        b = self.constant(f"{name}.bias", (self.random.standard_normal(outside) * 0.2).astype(np.float32))
        attributes = {"strides": [stride] * 2, "pads": [kernel // 2] * 4, "group": group}
        self.nodes.append(helper.make_node("Conv", [x, w, b], [f"{name}.out"], name, **attributes))
        if not clip:
            return f"{name}.out"
        self.nodes.append(helper.make_node("Clip", [f"{name}.out", "zero", "six"], [f"{name}.act"], f"{name}.clip"))
        return f"{name}.act"


def depthwise_model(size: int, classes: int = 1000, seed: int = 0) -> ModelProto:
    """Input ``x`` [1, 3, size, size], output ``y`` [1, classes]."""
    build = _Builder(seed)
    x, channels = build.conv("x", 3, 32, 3, 2, 1, True), 32
    for expansion, outside, repeats, first_stride in _BLOCKS:
        for repeat in range(repeats):
            stride, start, wide = first_stride if repeat == 0 else 1, x, channels * expansion
            if expansion > 1:
                x = build.conv(x, channels, wide, 1, 1, 1, True)
            x = build.conv(x, wide, wide, 3, stride, wide, True)
            x = build.conv(x, wide, outside, 1, 1, 1, False)
            if stride == 1 and channels == outside:
                build.nodes.append(helper.make_node("Add", [start, x], [f"{x}.sum"], f"{x}.add"))
                x = f"{x}.sum"
            channels = outside
    x = build.conv(x, channels, 1280, 1, 1, 1, True)
    build.constant("head.weight", (build.random.standard_normal((1280, classes)) * 0.03).astype(np.float32))
    build.constant("head.bias", np.zeros(classes, np.float32))
    build.nodes += [
        helper.make_node("GlobalAveragePool", [x], ["pooled"], "pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "head.weight", "head.bias"], ["y"], "head"),
    ]
    graph = helper.make_graph(
        build.nodes,
        "depthwise",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, classes])],
        build.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model
