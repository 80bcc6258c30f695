"""Models that are quantized in part: what is done stays as it is, and the float rest can be quantized.

The mark that a model was taken on in this way is a metadata property of its prepared form, which exports do not keep.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnxruntime.quantization.quant_utils import get_qmin_qmax_for_qType

from harness.quantize import graph as graphs
from harness.recipes.facts import WEIGHTED_OPERATORS

Range = tuple[float, float]
Grid = tuple[str, float, int]
"""Type of the integers, scale, zero point."""
_MARK = "boardtune.quantized_before"
_SAME_SCALE = 1e-6
"""Scales computed again from a range differ by roundings of float32."""


def mark(model: ModelProto) -> None:
    """Says that quantized nodes of ``model`` are meant to stay."""
    entry = model.metadata_props.add()
    entry.key, entry.value = _MARK, str(graphs.quantization_found(model).total())


def quantized_before(model: ModelProto) -> int:
    """How many quantized nodes a marked model came with; 0 for a float model."""
    return max((int(entry.value) for entry in model.metadata_props if entry.key == _MARK), default=0)


def finished_nodes(model: ModelProto) -> frozenset[str]:
    """Names of nodes of the main graph that are quantized already: conversions, operators on integers, layers with
    dequantized weights, and others that read nothing but dequantized tensors."""
    dequantized = {name for node in model.graph.node if node.op_type == graphs.DEQUANTIZE for name in node.output}
    if not dequantized and not graphs.quantization_found(model):
        return frozenset()
    return frozenset(node.name for node in model.graph.node if _finished(node, dequantized))


def _finished(node: NodeProto, dequantized: set[str]) -> bool:
    if node.op_type in graphs.CONVERSIONS or graphs.is_quantized_operator(node):
        return True
    if node.op_type in WEIGHTED_OPERATORS:
        return node.input[1] in dequantized
    return bool(node.input) and node.input[0] in dequantized


def boundary_ranges(model: ModelProto) -> dict[str, Range]:
    """Ranges of tensors whose grid is given: what existing conversions read and write. Quantized over the same range,
    a tensor is not rounded twice."""
    found: dict[str, Range] = {}
    constants = graphs.initializers_of(model.graph)
    for node in model.graph.node:
        grid = _grid(node, constants)
        if grid is not None:
            kind, scale, zero = grid
            lowest, highest = get_qmin_qmax_for_qType(TensorProto.DataType.Value(kind))
            tensor = node.input[0] if node.op_type == graphs.QUANTIZE else node.output[0]
            found[tensor] = (float(lowest - zero) * scale, float(highest - zero) * scale)
    return found


def write_scales_once(model: ModelProto) -> None:
    """Turns conversions that repeat one scale for every channel into plain ones, the inverse of
    :func:`harness.quantize.passes.stay_float.keep_layers_in_float`: layers behind them are about to be quantized."""
    constants = graphs.initializers_of(model.graph)
    taken = graphs.tensor_names(model)
    for node in model.graph.node:
        if _grid(node, constants) is None or not constants[node.input[1]].dims:
            continue
        for index in (1, 2):
            tensor = constants[node.input[index]]
            value = numpy_helper.to_array(tensor).ravel()[:1].reshape(())
            node.input[index] = graphs.free_name(f"{tensor.name}_once", taken)
            model.graph.initializer.append(numpy_helper.from_array(value, node.input[index]))
        graphs.drop_attribute(node, "axis")


def drop_repeated_conversions(model: ModelProto) -> None:
    """Takes out each QuantizeLinear that reads what a DequantizeLinear of the same grid made of the same integers."""
    graph = model.graph
    constants = graphs.initializers_of(graph)
    writers = {name: node for node in graph.node for name in node.output}
    replaced: dict[str, str] = {}
    for node in graph.node:
        source = writers.get(node.input[0]) if node.op_type == graphs.QUANTIZE else None
        if source is None or source.op_type != graphs.DEQUANTIZE:
            continue
        one, other = _grid(node, constants), _grid(source, constants)
        if one and other and one[0] == other[0] and one[2] == other[2] and np.isclose(one[1], other[1], _SAME_SCALE):
            replaced[node.output[0]] = source.input[0]
    for node in graph.node:
        for index, name in enumerate(node.input):
            while name in replaced:
                name = replaced[name]
            node.input[index] = name
    _drop_unread(model, set(replaced))


def _drop_unread(model: ModelProto, outputs: set[str]) -> None:
    graph = model.graph
    read = {value.name for value in graph.output} | graphs.captured_names(graph)
    kept = [node for node in graph.node if not outputs.intersection(node.output)]
    read |= {name for node in kept for name in node.input}
    graphs.keep_nodes(graph, [n for n in kept if n.op_type != graphs.DEQUANTIZE or read.intersection(n.output)])


def _grid(node: NodeProto, constants: Mapping[str, TensorProto]) -> Grid | None:
    """Of a conversion with one constant scale (or the same for every channel)."""
    if node.op_type not in (graphs.QUANTIZE, graphs.DEQUANTIZE) or len(node.input) < 3:
        return None
    if node.input[0] in constants:
        return None  # a weight
    scale, zero = (constants.get(name) for name in node.input[1:3])
    if scale is None or zero is None:
        return None
    scales, zeros = numpy_helper.to_array(scale).ravel(), numpy_helper.to_array(zero).ravel()
    if not scales.size or np.any(scales != scales[0]) or np.any(zeros != zeros[0]):
        return None
    return TensorProto.DataType.Name(zero.data_type), float(scales[0]), int(zeros[0])
