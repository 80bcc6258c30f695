"""Dequantized tensors that are moved (reshaped, transposed, …) and then read in float.

ONNX Runtime quantizes and dequantizes what is moved once more, with the same scale, to move integers. Where it also
turns signed integers into unsigned ones (x86 processors without VNNI), it forgets the type that QuantizeLinear states
from opset 21 on, and the model does not load. Where control flow reads what is moved, it dies. Written by ourselves
beforehand, the pair states no type, and nothing is left to be moved.
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto, helper

from harness.quantize.graph import (
    DEQUANTIZE,
    QUANTIZE,
    captured_names,
    free_name,
    initializers_of,
    keep_nodes,
    tensor_names,
)

_MOVED = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""What ONNX Runtime 1.32 takes conversions through (``qdq_propagation.cc``)."""


def requantize_moved(model: ModelProto, *, only_captured: bool = False) -> None:
    """Puts conversions with the input's scale behind operators that move a dequantized tensor, in place; if
    ``only_captured``, in models only whose control flow reads what is outside. Values stay the same: they are on the
    scale's grid already.
    """
    graph = model.graph
    constants = initializers_of(graph)
    writers = {name: node for node in graph.node for name in node.output}
    captured = captured_names(graph)
    if only_captured and not captured:
        return
    outside = {value.name for value in graph.output} | captured
    taken = tensor_names(model)
    kept: list[NodeProto] = []
    for node in graph.node:
        kept.append(node)
        source = writers.get(node.input[0]) if node.op_type in _MOVED else None
        if source is None or source.op_type != DEQUANTIZE or source.input[0] in constants or len(source.input) < 3:
            continue
        name = node.output[0]
        scale = constants.get(source.input[1])
        readers = [reader for reader in graph.node if name in reader.input]
        if scale is None or scale.dims or (name not in outside and all(r.op_type == QUANTIZE for r in readers)):
            continue
        moved, integers = (free_name(f"{name}_{end}", taken) for end in ("Moved", "Integers"))
        node.output[0] = moved
        for op_type, read, made in ((QUANTIZE, moved, integers), (DEQUANTIZE, integers, name)):
            made_name = free_name(f"{node.name}_{op_type}", taken)
            kept.append(helper.make_node(op_type, [read, *source.input[1:3]], [made], made_name, domain=source.domain))
        writers[name] = kept[-1]
    keep_nodes(graph, kept)
