"""Small networks in the shapes that Espressif's published models have, as ONNX with seeded random weights.

Run by ESP-PPQ's interpreter (Python 3.11, onnx 1.17-1.19): only onnx and numpy here, nothing of boardtune. Weights
are drawn so that signals keep their size through the layers; with dead or saturated activations a comparison of
integers would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Net:
    """Nodes, weights and shapes of one network while it is being written down."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.count = 0

    def op(self, kind: str, inputs: list[str], outputs: int = 1, **attributes: object) -> str:
        self.count += 1
        names = [f"{kind.lower()}{self.count}" + (f"_{i}" if outputs > 1 else "") for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=f"/{kind}{self.count}", **attributes))
        return names[0]

    def last(self) -> list[str]:
        return list(self.nodes[-1].output)

    def const(self, value: np.ndarray | list[int] | list[float] | float) -> str:
        self.count += 1
        name = f"const{self.count}"
        array = np.asarray(value)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def normal(self, *shape: int, fan: int) -> str:
        return self.const((self.random.standard_normal(shape) * np.sqrt(2.0 / fan)).astype(np.float32))

    def conv(
        self,
        x: str,
        cin: int,
        cout: int,
        kernel: int | tuple[int, ...] = 3,
        stride: int = 1,
        group: int = 1,
        pad: int | None = None,
        dims: int = 2,
        bias: bool = True,
        strides: list[int] | None = None,
        dilation: int = 1,
    ) -> str:
        k = (kernel,) * dims if isinstance(kernel, int) else kernel
        weight = self.normal(cout, cin // group, *k, fan=cin // group * int(np.prod(k)))
        inputs = [x, weight]
        if bias:
            inputs.append(self.const((self.random.standard_normal(cout) * 0.2).astype(np.float32)))
        around = [(side - 1) * dilation // 2 if pad is None else pad for side in k]
        return self.op(
            "Conv",
            inputs,
            kernel_shape=list(k),
            strides=strides or [stride] * dims,
            group=group,
            pads=around * 2,
            dilations=[dilation] * dims,
        )

    def linear(self, x: str, cin: int, cout: int) -> str:
        weight = self.normal(cout, cin, fan=cin)
        bias = self.const((self.random.standard_normal(cout) * 0.2).astype(np.float32))
        return self.op("Gemm", [x, weight, bias], transB=1)

    def relu(self, x: str) -> str:
        return self.op("Relu", [x])

    def relu6(self, x: str) -> str:
        return self.op("Clip", [x, self.const(np.float32(0)), self.const(np.float32(6))])

    def swish(self, x: str) -> str:
        return self.op("Mul", [x, self.op("Sigmoid", [x])])

    def reshape(self, x: str, *shape: int) -> str:
        return self.op("Reshape", [x, self.const(np.asarray(shape, np.int64))])

    def model(self, input_shape: list[int], outputs: list[str]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, input_shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def plain_cnn() -> onnx.ModelProto:
    """Filters that fill their lanes of 16 and ones that do not, both poolings, two fully connected layers."""
    net = Net(1)
    x = net.relu(net.conv("input", 3, 16, stride=2))
    x = net.relu(net.conv(x, 16, 20))
    x = net.op("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    x = net.relu(net.conv(x, 20, 40, kernel=5))
    x = net.op("AveragePool", [x], kernel_shape=[3, 3], strides=[2, 2])
    x = net.relu(net.conv(x, 40, 33, kernel=1))
    x = net.op("Flatten", [x])
    x = net.relu(net.linear(x, 33 * 9, 40))
    return net.model([1, 3, 32, 32], [net.linear(x, 40, 10)])


def mobilenet_v2() -> onnx.ModelProto:
    net = Net(2)
    x = net.relu6(net.conv("input", 3, 16, stride=2))
    width = 16
    for out, stride, repeat in ((16, 1, 2), (24, 2, 2), (40, 2, 3)):
        for index in range(repeat):
            step = stride if index == 0 else 1
            y = net.relu6(net.conv(x, width, width * 4, kernel=1))
            y = net.relu6(net.conv(y, width * 4, width * 4, group=width * 4, stride=step))
            y = net.conv(y, width * 4, out, kernel=1)
            x = net.op("Add", [x, y]) if step == 1 and width == out else y
            width = out
    x = net.relu6(net.conv(x, width, 96, kernel=1))
    x = net.op("Flatten", [net.op("GlobalAveragePool", [x])])
    return net.model([1, 3, 32, 32], [net.linear(x, 96, 10)])


def _c2f(net: Net, x: str, cin: int, cout: int) -> str:
    half = cout // 2
    x = net.swish(net.conv(x, cin, cout, kernel=1))
    net.op("Split", [x, net.const(np.asarray([half, half], np.int64))], outputs=2, axis=1)
    a, b = net.last()
    c = net.swish(net.conv(net.swish(net.conv(b, half, half)), half, half))
    d = net.op("Add", [b, c])
    return net.swish(net.conv(net.op("Concat", [a, b, d], axis=1), 3 * half, cout, kernel=1))


def yolo() -> onnx.ModelProto:
    """Backbone, SPPF, one step up and a decoupled head with distribution focal loss decoding."""
    net = Net(3)
    x = net.swish(net.conv("input", 3, 16, stride=2))
    p3 = _c2f(net, net.swish(net.conv(x, 16, 32, stride=2)), 32, 32)
    x = _c2f(net, net.swish(net.conv(p3, 32, 48, stride=2)), 48, 48)
    x = net.swish(net.conv(x, 48, 24, kernel=1))
    pools = [x]
    for _ in range(3):
        pools.append(net.op("MaxPool", [pools[-1]], kernel_shape=[5, 5], strides=[1, 1], pads=[2, 2, 2, 2]))
    p4 = net.swish(net.conv(net.op("Concat", pools, axis=1), 96, 48, kernel=1))
    up = net.op(
        "Resize",
        [p4, "", net.const(np.asarray([1, 1, 2, 2], np.float32))],
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    p3 = _c2f(net, net.op("Concat", [up, p3], axis=1), 80, 32)
    flat = []
    for feature, width, cells in ((p3, 32, 64), (p4, 48, 16)):
        box = net.conv(net.swish(net.conv(feature, width, 32)), 32, 32, kernel=1)
        classes = net.conv(net.swish(net.conv(feature, width, 20, group=1)), 20, 5, kernel=1)
        flat.append(net.reshape(net.op("Concat", [box, classes], axis=1), 1, 37, cells))
    joined = net.op("Concat", flat, axis=2)
    net.op("Split", [joined, net.const(np.asarray([32, 5], np.int64))], outputs=2, axis=1)
    boxes, scores = net.last()
    x = net.op("Transpose", [net.reshape(boxes, 1, 4, 8, 80)], perm=[0, 2, 1, 3])
    x = net.op("Softmax", [x], axis=1)
    x = net.op("Conv", [x, net.const(np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1))], kernel_shape=[1, 1])
    x = net.reshape(x, 1, 4, 80)
    net.op("Split", [x, net.const(np.asarray([2, 2], np.int64))], outputs=2, axis=1)
    near, far = net.last()
    anchors = net.const(net.random.uniform(0, 8, (1, 2, 80)).astype(np.float32))
    x1 = net.op("Sub", [anchors, near])
    x2 = net.op("Add", [far, anchors])
    out = net.op("Concat", [x1, x2, net.op("Sigmoid", [scores])], axis=1)
    return net.model([1, 3, 32, 32], [out])


def transformer() -> onnx.ModelProto:
    """Patches, two blocks of attention without normalization, mean over the tokens."""
    net = Net(4)
    width, heads, tokens = 32, 4, 16
    x = net.conv("input", 3, width, kernel=8, stride=8, pad=0)
    x = net.op("Transpose", [net.reshape(x, 1, width, tokens)], perm=[0, 2, 1])
    x = net.op("Add", [x, net.normal(1, tokens, width, fan=20)])
    for _ in range(2):
        projected = []
        for role in range(3):
            y = net.op("MatMul", [x, net.normal(width, width, fan=width * (4 if role < 2 else 2))])
            y = net.op("Transpose", [net.reshape(y, 1, tokens, heads, width // heads)], perm=[0, 2, 1, 3])
            projected.append(y)
        query, key, value = projected
        score = net.op("MatMul", [query, net.op("Transpose", [key], perm=[0, 1, 3, 2])])
        score = net.op("Mul", [score, net.const(np.float32(1 / np.sqrt(width // heads)))])
        y = net.op("MatMul", [net.op("Softmax", [score], axis=-1), value])
        y = net.reshape(net.op("Transpose", [y], perm=[0, 2, 1, 3]), 1, tokens, width)
        x = net.op("Add", [x, net.op("MatMul", [y, net.normal(width, width, fan=width * 2)])])
        y = net.op("MatMul", [x, net.normal(width, 52, fan=width)])
        y = net.relu(y)
        x = net.op("Add", [x, net.op("MatMul", [y, net.normal(52, width, fan=52 * 2)])])
    x = net.op("ReduceMean", [x, net.const(np.asarray([1], np.int64))], keepdims=0)
    return net.model([1, 3, 32, 32], [net.linear(x, width, 10)])


def audio() -> onnx.ModelProto:
    """One-dimensional convolutions, separable, as keyword spotting has them."""
    net = Net(5)
    x = net.relu(net.conv("input", 20, 32, kernel=5, stride=2, dims=1))
    for width, out in ((32, 40), (40, 48)):
        x = net.relu(net.conv(x, width, width, kernel=5, group=width, dims=1))
        x = net.relu(net.conv(x, width, out, kernel=1, dims=1))
        x = net.op("MaxPool", [x], kernel_shape=[2], strides=[2])
    x = net.relu(net.conv(x, 48, 20, kernel=3, dims=1, dilation=2))
    x = net.op("Flatten", [net.op("GlobalAveragePool", [x])])
    return net.model([1, 20, 64], [net.linear(x, 20, 12)])


def mobilenet_v3() -> onnx.ModelProto:
    net = Net(6)
    x = net.op("HardSwish", [net.conv("input", 3, 16, stride=2)])
    width = 16
    for expand, out, stride in ((32, 16, 1), (48, 24, 2), (72, 24, 1)):
        y = net.op("HardSwish", [net.conv(x, width, expand, kernel=1)])
        y = net.op("HardSwish", [net.conv(y, expand, expand, kernel=5, group=expand, stride=stride)])
        squeezed = net.relu(net.conv(net.op("GlobalAveragePool", [y]), expand, 8, kernel=1))
        gate = net.op("HardSigmoid", [net.conv(squeezed, 8, expand, kernel=1)], alpha=1 / 6, beta=0.5)
        y = net.conv(net.op("Mul", [y, gate]), expand, out, kernel=1)
        x = net.op("Add", [x, y]) if width == out and stride == 1 else y
        width = out
    x = net.op("HardSwish", [net.conv(x, width, 64, kernel=1)])
    x = net.op("Flatten", [net.op("GlobalAveragePool", [x])])
    x = net.op("HardSwish", [net.linear(x, 64, 40)])
    return net.model([1, 3, 32, 32], [net.linear(x, 40, 10)])


def ocr() -> onnx.ModelProto:
    """A text line recognizer: anisotropic strides, a feature pyramid with linear resizing, a sequence head."""
    net = Net(7)
    x = net.op("LeakyRelu", [net.conv("input", 3, 16, stride=2)], alpha=0.1)
    x = net.op(
        "PRelu",
        [net.conv(x, 16, 24, strides=[2, 1]), net.const(net.random.uniform(0.05, 0.4, (24, 1, 1)).astype(np.float32))],
    )
    skip = net.conv(x, 24, 32, kernel=1)
    x = net.op("Pad", [x, net.const(np.asarray([0, 0, 1, 1, 0, 0, 1, 1], np.int64))])
    x = net.relu(net.conv(x, 24, 32, kernel=3, stride=2, pad=0))
    x = net.op("AveragePool", [x], kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1], count_include_pad=1)
    x = net.op(
        "Resize",
        [x, "", net.const(np.asarray([1, 1, 2, 2], np.float32))],
        mode="linear",
        coordinate_transformation_mode="half_pixel",
    )
    x = net.op("Add", [x, skip])
    x = net.op(
        "Slice",
        [
            x,
            net.const(np.asarray([0, 0], np.int64)),
            net.const(np.asarray([4, 30], np.int64)),
            net.const(np.asarray([2, 3], np.int64)),
            net.const(np.asarray([1, 2], np.int64)),
        ],
    )
    x = net.relu(net.conv(x, 32, 40, kernel=(4, 1), pad=0))
    x = net.op("Squeeze", [x, net.const(np.asarray([2], np.int64))])
    x = net.op("Transpose", [x], perm=[0, 2, 1])
    x = net.op("MatMul", [x, net.normal(40, 24, fan=40)])
    x = net.op("Add", [x, net.const((net.random.standard_normal(24) * 0.3).astype(np.float32))])
    plain = net.op("Gather", [x, net.const(np.asarray([0, 2, 5, 7], np.int64))], axis=1)
    plain = net.op("Unsqueeze", [plain, net.const(np.asarray([1], np.int64))])
    return net.model([1, 3, 16, 64], [net.op("Softmax", [x], axis=2), plain])


def assorted() -> onnx.ModelProto:
    """What is left: grouped convolution, transposed convolution, Sub, Mul of two activations, Sigmoid, Tanh."""
    net = Net(8)
    x = net.op("Elu", [net.conv("input", 3, 32, stride=2)], alpha=1.0)
    left = net.op("Sigmoid", [net.conv(x, 32, 32, kernel=3)])
    right = net.op("Tanh", [net.conv(x, 32, 32, kernel=1, bias=False)])
    x = net.op("Mul", [left, right])
    y = net.op("Sub", [x, net.conv(x, 32, 32, kernel=1)])
    weight = net.normal(32, 20, 2, 2, fan=32)
    up = net.op("ConvTranspose", [y, weight, net.const(np.zeros(20, np.float32))], kernel_shape=[2, 2], strides=[2, 2])
    spread = net.op("Clip", [up, net.const(np.float32(-1)), net.const(np.float32(1.5))])
    mean = net.op("ReduceMean", [spread, net.const(np.asarray([2, 3], np.int64))], keepdims=1)
    centred = net.op("Sub", [spread, mean])
    total = net.op("Flatten", [net.op("GlobalAveragePool", [net.op("Mul", [centred, centred])])])
    return net.model([1, 3, 32, 32], [up, net.linear(total, 20, 10)])


def tiny_images() -> onnx.ModelProto:
    """For files of some kilobytes: filters with and without whole blocks, depthwise, residual, pools, a
    classifier."""
    net = Net(21)
    x = net.relu(net.conv("input", 3, 18, stride=2))
    y = net.conv(net.relu6(net.conv(x, 18, 18, group=18)), 18, 18, kernel=1)
    x = net.op("Add", [x, y])
    x = net.op("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = net.op("HardSwish", [net.conv(x, 18, 16, kernel=1)])
    x = net.op("AveragePool", [x], kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1], count_include_pad=1)
    gate = net.op("HardSigmoid", [net.op("GlobalAveragePool", [x])], alpha=1 / 6, beta=0.5)
    x = net.op("Flatten", [net.op("GlobalAveragePool", [net.op("Mul", [x, gate])])])
    return net.model([1, 3, 8, 8], [net.linear(x, 16, 10)])


def tiny_detector() -> onnx.ModelProto:
    net = Net(22)
    x = net.swish(net.conv("input", 3, 16, stride=2))
    net.op("Split", [x, net.const(np.asarray([8, 8], np.int64))], outputs=2, axis=1)
    a, b = net.last()
    x = net.op("Concat", [a, net.op("Tanh", [net.conv(b, 8, 8)]), b], axis=1)
    small = net.op("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    up = net.op(
        "Resize",
        [small, "", net.const(np.asarray([1, 1, 2, 2], np.float32))],
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    soft = net.op(
        "Resize",
        [small, "", net.const(np.asarray([1, 1, 2, 2], np.float32))],
        mode="linear",
        coordinate_transformation_mode="half_pixel",
    )
    x = net.op("Sub", [net.op("Concat", [up, x], axis=1), net.op("Concat", [soft, soft], axis=1)])
    weight = net.normal(48, 6, 2, 2, fan=48)
    x = net.op("ConvTranspose", [x, weight, net.const(np.zeros(6, np.float32))], kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("PRelu", [x, net.const(net.random.uniform(0.05, 0.4, (6, 1, 1)).astype(np.float32))])
    return net.model([1, 3, 8, 8], [net.op("Sigmoid", [net.reshape(x, 1, 6, 64)])])


def tiny_sequence() -> onnx.ModelProto:
    net = Net(23)
    x = net.relu(net.conv("input", 6, 18, kernel=3, dims=1, stride=2))
    x = net.op("LeakyRelu", [net.conv(x, 18, 18, kernel=3, group=18, dims=1)], alpha=0.1)
    x = net.op("Transpose", [x], perm=[0, 2, 1])
    query = net.op("MatMul", [x, net.normal(18, 18, fan=36)])
    key = net.op("MatMul", [x, net.normal(18, 18, fan=36)])
    score = net.op("MatMul", [query, net.op("Transpose", [key], perm=[0, 2, 1])])
    x = net.op("Add", [x, net.op("MatMul", [net.op("Softmax", [score], axis=-1), x])])
    x = net.op(
        "Slice",
        [
            x,
            net.const(np.asarray([1], np.int64)),
            net.const(np.asarray([8], np.int64)),
            net.const(np.asarray([1], np.int64)),
            net.const(np.asarray([2], np.int64)),
        ],
    )
    mean = net.op("ReduceMean", [x, net.const(np.asarray([1], np.int64))], keepdims=1)
    some = net.op("Gather", [x, net.const(np.asarray([2, 0], np.int64))], axis=1)
    some = net.op(
        "Squeeze",
        [net.op("Unsqueeze", [some, net.const(np.asarray([1], np.int64))]), net.const(np.asarray([1], np.int64))],
    )
    x = net.op("Concat", [mean, some], axis=1)
    return net.model([1, 6, 16], [net.op("Softmax", [net.linear(net.op("Flatten", [x]), 54, 5)], axis=-1)])


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    builder.__name__: builder
    for builder in (plain_cnn, mobilenet_v2, yolo, transformer, audio, mobilenet_v3, ocr, assorted)
}
TINY: dict[str, Callable[[], onnx.ModelProto]] = {
    builder.__name__: builder for builder in (tiny_images, tiny_detector, tiny_sequence)
}
