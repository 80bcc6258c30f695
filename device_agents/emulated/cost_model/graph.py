"""A model as operations over tensors, and how much work each operation is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx.helper
from onnx import ModelProto, NodeProto

from .tensors import Tensor, infer_tensors

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
"""Operators that move no data: ONNX Runtime plans their output into the input's buffer."""

CONVOLUTIONS = frozenset({"Conv", "FusedConv", "QLinearConv", "ConvInteger", "NhwcFusedConv"})
_MATRIX_PRODUCTS = frozenset(
    {"MatMul", "FusedMatMul", "QLinearMatMul", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"}
)
_GEMMS = frozenset({"Gemm", "QGemm", "FusedGemm"})
_POOLS = frozenset({"MaxPool", "AveragePool", "LpPool", "QLinearAveragePool"})
MATRIX_OPERATORS = CONVOLUTIONS | _MATRIX_PRODUCTS | _GEMMS | {"ConvTranspose", "MatMulNBits", "LSTM", "GRU", "RNN"}


@dataclass(frozen=True)
class Operation:
    """One node of the artifact."""

    index: int
    """Position in the graph, which is a topological order."""
    name: str
    """The node's name, or ``OpType_index`` where it has none (as ONNX Runtime shows it)."""
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict, compare=False)


class Graph:
    """Operations in topological order with producers and consumers by tensor name."""

    def __init__(self, model: ModelProto, input_shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.tensors: dict[str, Tensor] = infer_tensors(model, input_shapes)
        self.outputs = frozenset(output.name for output in model.graph.output)
        self.inputs = tuple(value.name for value in model.graph.input if not self.tensors[value.name].constant)
        self.operations = tuple(_operation(index, node) for index, node in enumerate(model.graph.node))
        self.producers = {name: op for op in self.operations for name in op.outputs if name}
        self.consumers: dict[str, list[Operation]] = {}
        for operation in self.operations:
            for name in dict.fromkeys(operation.inputs):
                if name:
                    self.consumers.setdefault(name, []).append(operation)
        self.constants = {name for name, tensor in self.tensors.items() if tensor.constant}
        self.folded_constants = tuple(op for op in self.operations if self._is_constant(op))

    def _is_constant(self, operation: Operation) -> bool:
        # DequantizeLinear of a weight is not folded by ONNX Runtime: it belongs to the operator it feeds.
        if operation.op_type in ("DequantizeLinear", "RandomNormal", "RandomUniform"):
            return False
        if any(name and name not in self.constants for name in operation.inputs):
            return False
        self.constants.update(name for name in operation.outputs if name)
        return True

    def tensor(self, name: str) -> Tensor:
        return self.tensors[name]

    def activations(self, operation: Operation) -> tuple[Tensor, ...]:
        """Inputs that are computed during the inference."""
        return tuple(self.tensors[name] for name in operation.inputs if name and name not in self.constants)

    def weights(self, operation: Operation) -> tuple[Tensor, ...]:
        return tuple(self.tensors[name] for name in operation.inputs if name in self.constants and name in self.tensors)

    def weight_bytes(self) -> int:
        """Bytes of all initializers as stored."""
        return sum(tensor.size_bytes for tensor in self.tensors.values() if tensor.constant)


def _operation(index: int, node: NodeProto) -> Operation:
    attributes = {
        attribute.name: onnx.helper.get_attribute_value(attribute)
        for attribute in node.attribute
        if attribute.type not in (onnx.AttributeProto.TENSOR, onnx.AttributeProto.GRAPH)
    }
    name = node.name or f"{node.op_type}_{index}"
    return Operation(index, name, node.op_type, tuple(node.input), tuple(node.output), attributes)


@dataclass(frozen=True)
class Effort:
    """What an operation asks of a unit."""

    kind: str
    """Operator type, or ``DepthwiseConv``/``GroupedConv``: the key of ``efficiency``."""
    macs: int = 0
    channels: int = 0
    """Output channels of one group, the narrow side of the matrix product; 0 where it is none."""
    elements: int = 0
    """Element-wise steps, for operations without MACs."""


def effort(graph: Graph, operation: Operation) -> Effort:
    """Multiply-accumulates and element steps of one inference."""
    op_type = operation.op_type
    outputs = [graph.tensor(name) for name in operation.outputs if name]
    out = outputs[0].elements if outputs else 0
    if op_type in CONVOLUTIONS:
        return _convolution(graph, operation, out)
    if op_type == "ConvTranspose":
        weight = graph.tensor(operation.inputs[1])
        source = graph.tensor(operation.inputs[0]).elements
        return Effort(op_type, source * math.prod(weight.shape[1:]), _size(weight, 1))
    if op_type in _MATRIX_PRODUCTS:
        left = graph.tensor(operation.inputs[0])
        return Effort(op_type, out * _size(left, -1), _size(outputs[0], -1))
    if op_type in _GEMMS:
        left = graph.tensor(operation.inputs[0])
        depth = _size(left, 0 if operation.attributes.get("transA") else -1)
        return Effort(op_type, out * depth, _size(outputs[0], -1))
    if op_type == "MatMulNBits":
        return Effort(op_type, out * int(operation.attributes["K"]), _size(outputs[0], -1))
    if op_type in ("LSTM", "GRU", "RNN"):
        steps = math.prod(graph.tensor(operation.inputs[0]).shape[:2])  # sequence and batch
        matrices = sum(graph.tensor(name).elements for name in operation.inputs[1:3])
        return Effort(op_type, steps * matrices, _size(graph.tensor(operation.inputs[2]), -1))
    if op_type in VIEWS:
        return Effort(op_type)
    window = math.prod(operation.attributes.get("kernel_shape", ())) if op_type in _POOLS else 1
    largest = max([tensor.elements for tensor in graph.activations(operation)], default=0)
    return Effort(op_type, elements=out * window if window > 1 else max(out, largest))


def _size(tensor: Tensor, axis: int) -> int:
    """1 where the tensor has no such axis: what a loop gives may be of any shape, and is taken for a scalar."""
    rank = len(tensor.shape)
    return tensor.shape[axis] if -rank <= axis < rank else 1


def _convolution(graph: Graph, operation: Operation, out: int) -> Effort:
    weight = graph.tensor(operation.inputs[3 if operation.op_type == "QLinearConv" else 1])
    channels, group_channels, window = _size(weight, 0), _size(weight, 1), weight.shape[2:]
    groups = int(operation.attributes.get("group", 1))
    kind = operation.op_type
    if groups > 1:
        kind = "DepthwiseConv" if group_channels == 1 else "GroupedConv"
    # Depthwise kernels are not matrix products: no tiles to fill.
    columns = 0 if kind == "DepthwiseConv" else channels // groups
    return Effort(kind, out * group_channels * math.prod(window), columns)
