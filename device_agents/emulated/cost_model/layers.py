"""Builds models of given layer shapes, without weights: enough for the cost model, not to be executed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx import ModelProto, NodeProto, TensorProto, helper

OPSET = 17


@dataclass(frozen=True)
class Value:
    """A tensor being built: its name and shape, NCHW or [batch, features]."""

    name: str
    shape: tuple[int, ...]

    @property
    def channels(self) -> int:
        return self.shape[1]


class Layers:
    """Collects nodes. With ``integer`` every operator is between DequantizeLinear and QuantizeLinear (int8, weights per
    output channel), as a static QDQ quantizer leaves them."""

    def __init__(self, *, integer: bool = False) -> None:
        self._integer = integer
        self._nodes: list[NodeProto] = []
        self._weights: list[TensorProto] = []
        self._inputs: list[Value] = []
        self._kinds: dict[str, int] = {}
        self._stored: dict[str, str] = {}
        self._scaled: set[int] = set()

    def input(self, *shape: int) -> Value:
        value = Value(f"input_{len(self._inputs)}", shape)
        self._inputs.append(value)
        return value

    def conv(
        self, x: Value, channels: int, kernel: int | tuple[int, int] = 1, stride: int = 1, groups: int = 1,
        pads: tuple[int, int] | None = None, activation: str | None = None,
    ) -> Value:  # fmt: skip
        """``pads``: rows and columns on each side, half the kernel where absent. ``activation``: Relu, Clip, SiLU."""
        size = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        rows, columns = pads if pads is not None else (size[0] // 2, size[1] // 2)
        height = (x.shape[2] + 2 * rows - size[0]) // stride + 1
        width = (x.shape[3] + 2 * columns - size[1]) // stride + 1
        weight = self._weight(channels, x.channels // groups, *size)
        bias = self._bias(channels)
        folded = None if activation == "SiLU" else activation
        out = self._op(
            "Conv", [x, weight, bias], (x.shape[0], channels, height, width), folded,
            kernel_shape=list(size), strides=[stride, stride], group=groups, pads=[rows, columns, rows, columns],
        )  # fmt: skip
        return self.binary("Mul", out, self.unary("Sigmoid", out)) if activation == "SiLU" else out

    def unary(self, op_type: str, x: Value) -> Value:
        return self._op(op_type, [x], x.shape)

    def softmax(self, x: Value, axis: int) -> Value:
        return self._op("Softmax", [x], x.shape, axis=axis)

    def binary(self, op_type: str, a: Value, b: Value, activation: str | None = None) -> Value:
        return self._op(op_type, [a, b], a.shape, activation)

    def concat(self, values: Sequence[Value], axis: int = 1) -> Value:
        shape = list(values[0].shape)
        shape[axis] = sum(value.shape[axis] for value in values)
        return self._op("Concat", list(values), tuple(shape), axis=axis)

    def pool(self, op_type: str, x: Value, kernel: int, stride: int, pad: int = 0) -> Value:
        height = (x.shape[2] + 2 * pad - kernel) // stride + 1
        width = (x.shape[3] + 2 * pad - kernel) // stride + 1
        return self._op(
            op_type,
            [x],
            (*x.shape[:2], height, width),
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[pad] * 4,
        )

    def global_pool(self, x: Value) -> Value:
        pooled = self._op("GlobalAveragePool", [x], (*x.shape[:2], 1, 1))
        return self._op("Flatten", [pooled], x.shape[:2], axis=1)

    def dense(self, x: Value, features: int) -> Value:
        weight = self._weight(features, x.shape[1])
        return self._op("Gemm", [x, weight, self._bias(features)], (x.shape[0], features), transB=1)

    def matmul(self, a: Value, b: Value) -> Value:
        return self._op("MatMul", [a, b], (*a.shape[:-1], b.shape[-1]))

    def reshape(self, x: Value, *shape: int) -> Value:
        target = f"shape_{len(self._weights)}"
        self._weights.append(helper.make_tensor(target, TensorProto.INT64, [len(shape)], shape))
        return self._op("Reshape", [x, Value(target, (len(shape),))], shape, constants=(1,))

    def transpose(self, x: Value, *axes: int) -> Value:
        return self._op("Transpose", [x], tuple(x.shape[axis] for axis in axes), perm=list(axes))

    def split(self, x: Value, sizes: Sequence[int], axis: int = 1) -> list[Value]:
        target = f"sizes_{len(self._weights)}"
        self._weights.append(helper.make_tensor(target, TensorProto.INT64, [len(sizes)], sizes))
        read = self._dequantized(x)
        parts = []
        for i, size in enumerate(sizes):
            shape = list(x.shape)
            shape[axis] = size
            parts.append(Value(f"value_{len(self._nodes)}_{i}", tuple(shape)))
        self._node("Split", [read, target], [part.name for part in parts], axis=axis)
        for part in parts:
            self._quantize(part)
        return parts

    def upsample(self, x: Value) -> Value:
        scales = f"scales_{len(self._weights)}"
        self._weights.append(helper.make_tensor(scales, TensorProto.FLOAT, [4], [1.0, 1.0, 2.0, 2.0]))
        shape = (*x.shape[:2], x.shape[2] * 2, x.shape[3] * 2)
        return self._op("Resize", [x, Value("", ()), Value(scales, (4,))], shape, constants=(1, 2), mode="nearest")

    def model(self, *outputs: Value) -> ModelProto:
        """Outputs are float: dequantized where the network is integer."""
        ends = [self._dequantized(value) for value in outputs]
        graph = helper.make_graph(
            self._nodes,
            "layers",
            [helper.make_tensor_value_info(v.name, TensorProto.FLOAT, v.shape) for v in self._inputs],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, v.shape)
                for name, v in zip(ends, outputs, strict=True)
            ],
            self._weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])

    def _weight(self, *shape: int) -> Value:
        name = f"weight_{len(self._weights)}"
        kind = TensorProto.INT8 if self._integer else TensorProto.FLOAT
        self._kinds[name] = kind
        self._weights.append(TensorProto(name=name, data_type=kind, dims=shape))
        return Value(name, shape)

    def _bias(self, channels: int) -> Value:
        name = f"bias_{len(self._weights)}"
        kind = TensorProto.INT32 if self._integer else TensorProto.FLOAT
        self._kinds[name] = kind
        self._weights.append(TensorProto(name=name, data_type=kind, dims=[channels]))
        return Value(name, (channels,))

    def _node(self, op_type: str, inputs: list[str], outputs: list[str], **attributes: object) -> None:
        name = f"{op_type}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op_type, inputs, outputs, name=name, **attributes))

    def _op(
        self, op_type: str, inputs: list[Value], shape: tuple[int, ...], activation: str | None = None,
        constants: tuple[int, ...] = (), **attributes: object,
    ) -> Value:  # fmt: skip
        read = [v.name if i in constants else self._dequantized(v) for i, v in enumerate(inputs)]
        out = Value(f"value_{len(self._nodes)}", shape)
        self._node(op_type, read, [out.name], **attributes)
        if activation is not None:
            before, out = out, Value(f"value_{len(self._nodes)}", shape)
            self._node(activation, [before.name], [out.name])
        self._quantize(out)
        return out

    def _quantize(self, value: Value) -> None:
        if self._integer:
            stored = f"{value.name}_quantized"
            self._node("QuantizeLinear", [value.name, *self._scale(TensorProto.INT8)], [stored])
            self._stored[value.name] = stored

    def _dequantized(self, value: Value) -> str:
        """Name to read ``value`` by: the value itself, or a new DequantizeLinear of it."""
        if not self._integer:
            return value.name
        if value.name not in self._stored and value.name not in self._kinds:
            self._quantize(value)
        read = f"value_{len(self._nodes)}_dequantized"
        kind = self._kinds.get(value.name, int(TensorProto.INT8))
        self._node("DequantizeLinear", [self._stored.get(value.name, value.name), *self._scale(kind)], [read])
        return read

    def _scale(self, kind: int) -> list[str]:
        scale, zero = f"scale_{kind}", f"zero_{kind}"
        if kind not in self._scaled:
            self._scaled.add(kind)
            self._weights.append(helper.make_tensor(scale, TensorProto.FLOAT, [], [0.02]))
            self._weights.append(helper.make_tensor(zero, kind, [], [0]))
        return [scale, zero]
