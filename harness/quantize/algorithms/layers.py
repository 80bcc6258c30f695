"""Operators with constant weights, seen alike: Conv, Gemm and MatMul as matrices of outputs by inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from harness.quantize.graph import all_graphs, initializers_of

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Layer:
    """A node whose weights belong to it alone."""

    node: NodeProto
    weights: FloatArray
    """As in the model."""
    transposed: bool
    """Whether outputs are on the last axis (Gemm without ``transB``, MatMul) and not on axis 0."""
    groups: int = 1

    @property
    def name(self) -> str:
        """Of the weights."""
        return str(self.node.input[1])

    @property
    def input(self) -> str:
        return str(self.node.input[0])

    @property
    def output(self) -> str:
        return str(self.node.output[0])

    @property
    def bias(self) -> str:
        """Empty if there is none."""
        return str(self.node.input[2]) if len(self.node.input) > 2 else ""

    @property
    def output_axis(self) -> int:
        """Of the weights."""
        return self.weights.ndim - 1 if self.transposed else 0

    @property
    def outputs(self) -> int:
        return int(self.weights.shape[self.output_axis])

    @property
    def inputs(self) -> int:
        """Input channels, of all groups."""
        return self.groups * int(self.weights.shape[0 if self.transposed else 1])

    def matrix(self, values: Array | None = None) -> Array:
        """``values`` of the weights' shape (the weights themselves) as [outputs, inputs of a group × kernel]."""
        array = self.weights if values is None else values
        return np.ascontiguousarray(array.T if self.transposed else array.reshape(len(array), -1))

    def shaped(self, matrix: Array) -> Array:
        """The reverse of :meth:`matrix`."""
        return np.ascontiguousarray(matrix.T if self.transposed else matrix.reshape(self.weights.shape))

    def input_magnitudes(self) -> FloatArray:
        """Largest absolute weight that each input channel meets: [inputs]."""
        if self.transposed:
            return np.asarray(np.abs(self.weights).max(axis=1))
        split = np.abs(self.weights).reshape(self.groups, -1, self.weights.shape[1], *self.weights.shape[2:])
        return np.asarray(split.max(axis=(1, *range(3, split.ndim))).ravel())

    def output_magnitudes(self) -> FloatArray:
        """Largest absolute weight of each output channel: [outputs]."""
        return np.asarray(np.abs(self.matrix()).max(axis=1))

    def scaled_inputs(self, factors: Array) -> FloatArray:
        """The weights with those of input channel i multiplied by ``factors[i]``."""
        if self.transposed:
            return np.asarray(self.weights * factors[:, None], dtype=np.float32)
        per_group = factors.reshape(self.groups, -1)
        rows = np.repeat(per_group, len(self.weights) // self.groups, axis=0)
        return np.asarray(self.weights * rows.reshape(*rows.shape, *[1] * (self.weights.ndim - 2)), dtype=np.float32)

    def scaled_outputs(self, factors: Array) -> FloatArray:
        """The weights with those of output channel i multiplied by ``factors[i]``."""
        shape = [1] * self.weights.ndim
        shape[self.output_axis] = -1
        return np.asarray(self.weights * factors.reshape(shape), dtype=np.float32)


def linear_layers(model: ModelProto) -> list[Layer]:
    """Layers of the main graph in its order, whose float32 weights no other node reads and no caller overrides."""
    constants = initializers_of(model.graph)
    fed = {value.name for value in (*model.graph.input, *model.graph.output)}
    uses = Counter(name for graph in all_graphs(model.graph) for node in graph.node for name in node.input)
    found = []
    for node in model.graph.node:
        if node.op_type not in ("Conv", "Gemm", "MatMul") or node.domain not in ("", "ai.onnx") or len(node.input) < 2:
            continue
        name = node.input[1]
        tensor = constants.get(name)
        if tensor is None or tensor.data_type != TensorProto.FLOAT or uses[name] != 1 or name in fed:
            continue
        layer = _layer(node, numpy_helper.to_array(tensor))
        if layer is not None:
            found.append(layer)
    return found


def _layer(node: NodeProto, weights: FloatArray) -> Layer | None:
    options = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if weights.size == 0:
        return None
    if node.op_type == "Conv":
        return Layer(node, weights, transposed=False, groups=int(options.get("group", 1))) if weights.ndim > 2 else None
    if weights.ndim != 2:
        return None
    if node.op_type == "MatMul":
        return Layer(node, weights, transposed=True)
    plain = options.get("alpha", 1.0) == 1.0 and options.get("beta", 1.0) == 1.0 and not options.get("transA", 0)
    return Layer(node, weights, transposed=not options.get("transB", 0)) if plain else None


def constant(graph: GraphProto, name: str) -> FloatArray | None:
    """The values of a float32 initializer."""
    tensor = next((t for t in graph.initializer if t.name == name), None)
    if tensor is None or tensor.data_type != TensorProto.FLOAT:
        return None
    return np.asarray(numpy_helper.to_array(tensor))


def set_constant(graph: GraphProto, name: str, values: Array) -> None:
    """Replaces an initializer's values, or adds the initializer."""
    made = numpy_helper.from_array(np.ascontiguousarray(values, dtype=np.float32), name)
    for tensor in graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(made)
            return
    graph.initializer.append(made)


def owned_biases(model: ModelProto, layers: list[Layer]) -> dict[str, FloatArray]:
    """Bias name -> values [outputs], for the layers whose bias is a float32 vector that nothing else reads."""
    constants = initializers_of(model.graph)
    fed = {value.name for value in (*model.graph.input, *model.graph.output)}
    uses = Counter(name for graph in all_graphs(model.graph) for node in graph.node for name in node.input)
    biases = {}
    for layer in layers:
        tensor = constants.get(layer.bias)
        if tensor is None or tensor.data_type != TensorProto.FLOAT or uses[layer.bias] != 1 or layer.bias in fed:
            continue
        if list(tensor.dims) == [layer.outputs]:
            biases[layer.bias] = np.asarray(numpy_helper.to_array(tensor))
    return biases


def add_missing_biases(model: ModelProto, layers: list[Layer]) -> None:
    """Gives Conv and Gemm layers without a bias one of zeros, so that there is something to correct."""
    taken = {name for node in model.graph.node for name in (*node.input, *node.output)}
    for layer in layers:
        if layer.node.op_type == "MatMul" or layer.bias:
            continue
        name = f"{layer.name}_zero_bias"
        while name in taken:
            name += "_"
        taken.add(name)
        set_constant(model.graph, name, np.zeros(layer.outputs, np.float32))
        del layer.node.input[2:]
        layer.node.input.append(name)


def consumers(model: ModelProto) -> Mapping[str, list[NodeProto]]:
    """Tensor -> nodes that read it, those inside subgraphs included; a graph output counts as a node of its own."""
    readers: dict[str, list[NodeProto]] = {}
    for graph in all_graphs(model.graph):
        for node in graph.node:
            for name in node.input:
                readers.setdefault(name, []).append(node)
        for value in graph.output:
            readers.setdefault(value.name, []).append(NodeProto(op_type="", name=f"output {value.name}"))
    return readers
