"""Dynamic quantization of layers inside control flow, which ONNX Runtime's rewriters leave alone.

MatMul and plain Gemm with a constant matrix become DynamicQuantizeLinear and MatMulInteger, the form that
``onnxruntime.quantization`` gives those outside. Nothing needs to be calibrated in there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from harness.quantize.graph import (
    all_graphs,
    drop_unread_initializers,
    free_name,
    initializers_of,
    is_plain_product,
    is_transposed,
    keep_nodes,
    subgraphs,
    tensor_names,
)
from harness.recipes.recipe import Recipe

MIN_OPSET = 11
"""First opset with DynamicQuantizeLinear."""


@dataclass(frozen=True)
class _Weight:
    """Names of a quantized matrix [K, N]; ``zero`` is empty where the zero point is 0."""

    integers: str
    scale: str
    zero: str


def quantize_inner_layers(model: ModelProto, recipe: Recipe, excluded: Collection[str]) -> int:
    """Changes the bodies of If, Loop and Scan in place; returns how many layers were quantized.

    Integers go to the main graph, once for each weight: bodies see what is outside.
    """
    if not any(True for node in model.graph.node for _ in subgraphs(node)):
        return 0
    types = set(recipe.op_types or ("MatMul", "Gemm")) & {"MatMul", "Gemm"}
    work = _Work(model, recipe, tensor_names(model))
    layers = 0
    for node in model.graph.node:
        for graph in subgraphs(node):
            layers += work.quantize(graph, initializers_of(model.graph), types, excluded)
    if layers:
        for graph in all_graphs(model.graph):
            drop_unread_initializers(model, graph)
    return layers


class _Work:
    def __init__(self, model: ModelProto, recipe: Recipe, taken: set[str]) -> None:
        self._model = model
        self._recipe = recipe
        self._taken = taken
        self._made: dict[tuple[str, bool], _Weight] = {}

    def quantize(
        self, graph: GraphProto, outside: Mapping[str, TensorProto], types: set[str], excluded: Collection[str]
    ) -> int:
        """Of the graph and those inside it; ``outside`` are the constants it sees."""
        hidden = {value.name for value in graph.input} | {name for node in graph.node for name in node.output}
        visible = {name: t for name, t in outside.items() if name not in hidden} | initializers_of(graph)
        layers, nodes = 0, []
        for node in graph.node:
            for inner in subgraphs(node):
                layers += self.quantize(inner, visible, types, excluded)
            weight = visible.get(node.input[1]) if is_plain_product(node) and node.op_type in types else None
            fits = weight is not None and weight.data_type == TensorProto.FLOAT and len(weight.dims) == 2
            if weight is None or not fits or 0 in weight.dims or node.name in excluded:
                nodes.append(node)
                continue
            values = numpy_helper.to_array(weight)
            if not np.isfinite(values).all():
                nodes.append(node)
                continue
            nodes += self._layer(node, self._weight(node, weight.name, values))
            layers += 1
        keep_nodes(graph, nodes)
        return layers

    def _weight(self, node: NodeProto, name: str, values: npt.NDArray[np.float32]) -> _Weight:
        key = (name, is_transposed(node))
        if key not in self._made:
            self._made[key] = self._quantized(name, values.T if key[1] else values)
        return self._made[key]

    def _quantized(self, name: str, matrix: npt.NDArray[np.float32]) -> _Weight:
        recipe = self._recipe
        low, high = matrix.min(initial=0.0), matrix.max(initial=0.0)
        if recipe.granularity == "per_channel":
            low, high = matrix.min(axis=0, initial=0.0), matrix.max(axis=0, initial=0.0)
        signed = recipe.weight == "int8"
        smallest, largest = (-127, 127) if signed else (0, 255)
        if recipe.reduce_range:
            smallest, largest = (-64, 64) if signed else (0, 127)
        if recipe.weight_symmetric:
            high = np.maximum(high, -low)
            low = -high
        tiny = np.finfo(np.float32).tiny
        scale = np.maximum((high - low) / (largest - smallest), tiny).astype(np.float32)
        zero = np.round(smallest - low / scale)
        kind = np.int8 if signed else np.uint8
        integers = np.clip(np.round(matrix / scale) + zero, smallest, largest).astype(kind)
        return _Weight(
            self._add(f"{name}_inner_quantized", np.ascontiguousarray(integers)),
            self._add(f"{name}_inner_scale", np.asarray(scale)),
            self._add(f"{name}_inner_zero_point", np.asarray(zero, kind)) if np.any(zero) else "",
        )

    def _add(self, wanted: str, values: npt.NDArray[np.generic]) -> str:
        name = free_name(wanted, self._taken)
        self._model.graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    def _layer(self, node: NodeProto, weight: _Weight) -> list[NodeProto]:
        """Nodes are named as ``quantize_dynamic`` names those it makes."""
        output = node.output[0]
        bias = node.input[2] if len(node.input) > 2 else ""
        read, step, middle, product, wide, scale = (
            free_name(f"{output}_{end}", self._taken)
            for end in ("input_quantized", "input_scale", "input_zero_point", "integers", "cast", "scale")
        )
        made = free_name(f"{output}_product", self._taken) if bias else output
        operands = [read, weight.integers, middle, *([weight.zero] if weight.zero else [])]
        name = node.name
        nodes = [
            helper.make_node("DynamicQuantizeLinear", [node.input[0]], [read, step, middle], f"{name}_quantize_input"),
            helper.make_node("MatMulInteger", operands, [product], f"{name}_quant"),
            helper.make_node("Cast", [product], [wide], f"{name}_cast", to=TensorProto.FLOAT),
            helper.make_node("Mul", [step, weight.scale], [scale], f"{name}_quant_scales_mul"),
            helper.make_node("Mul", [wide, scale], [made], f"{name}_quant_output_scale_mul"),
        ]
        if bias:
            nodes.append(helper.make_node("Add", [made, bias], [output], f"{name}_bias_add"))
        return nodes
