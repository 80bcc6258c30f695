"""Layers that a recipe leaves in float stay so when the model is run.

From 1.21 on, ONNX Runtime's graph optimisation (``WeightBiasQuantization``) gives every Conv, ConvTranspose and Gemm
that reads a dequantized activation weights of 8 bits, with one scale for all channels, whatever the model says. It
leaves alone those whose input has a scale per channel: a layer to be left in float gets its input dequantized with the
same scale, written once for each channel. So does a layer with quantized weights whose bias stayed in float because it
is too large for a 32-bit integer of its scale: ONNX Runtime would make one of it, and clip it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from harness.quantize.graph import DEQUANTIZE, attributes_of, free_name, initializers_of, tensor_names

_AXIS = 1


def keep_layers_in_float(model: ModelProto) -> int:
    """Changes ``model`` in place; returns how many layers it was about. Values stay the same."""
    graph = model.graph
    constants = initializers_of(graph)
    writers = {name: node for node in graph.node for name in node.output}
    taken = tensor_names(model)
    made: dict[tuple[str, int], str] = {}
    layers = 0
    shapes = {name: list(tensor.dims) for name, tensor in constants.items()}
    dequantized = {name: shapes[n.input[0]] for name, n in writers.items() if _dequantizes(n, constants)}
    for node in list(graph.node):
        channels = _input_channels(node, {**shapes, **dequantized} if _float_bias(node, constants) else shapes)
        source = writers.get(node.input[0]) if channels else None
        if source is None or source.op_type != DEQUANTIZE or len(source.input) < 3:
            continue
        scale, zero = (constants.get(name) for name in source.input[1:3])
        if scale is None or zero is None or list(scale.dims) not in ([], [1]):
            continue
        layers += 1
        key = (source.output[0], channels)
        if key not in made:
            made[key] = free_name(f"{source.output[0]}_PerChannel", taken)
            inputs = [source.input[0]]
            for tensor in (scale, zero):
                wide = np.repeat(numpy_helper.to_array(tensor).reshape(1), channels)
                inputs.append(free_name(f"{tensor.name}_PerChannel", taken))
                graph.initializer.append(numpy_helper.from_array(wide, inputs[-1]))
            name = free_name(f"{source.name}_PerChannel", taken)
            graph.node.append(helper.make_node(DEQUANTIZE, inputs, [made[key]], name, domain=source.domain, axis=_AXIS))
        node.input[0] = made[key]
    return layers


def _dequantizes(node: NodeProto, constants: Mapping[str, TensorProto]) -> bool:
    return bool(node.op_type == DEQUANTIZE and node.input[0] in constants)


def _float_bias(node: NodeProto, constants: Mapping[str, TensorProto]) -> bool:
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or len(node.input) < 3:
        return False
    return bool(node.input[2] in constants and constants[node.input[2]].data_type == TensorProto.FLOAT)


def _input_channels(node: NodeProto, shapes: dict[str, list[int]]) -> int:
    """Of a layer with constant float weights; 0 for all else."""
    shape = shapes.get(node.input[1], []) if len(node.input) > 1 else []
    options = attributes_of(node)
    if node.op_type == "Conv" and len(shape) > 2:
        return shape[1] * int(options.get("group", 1))
    if node.op_type == "ConvTranspose" and len(shape) > 2:
        return shape[0]
    if node.op_type == "Gemm" and len(shape) == 2 and not options.get("transA", 0):
        return shape[1] if options.get("transB", 0) else shape[0]
    return 0
