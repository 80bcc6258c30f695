"""Models in float16, bfloat16 or float64, computed in float32.

QuantizeLinear takes no float64 at any operator set and float16 only from 19 on, ONNX Runtime's quantized operators and
its fusions on the CPU take float32 only, and on the CPU it has no convolution for float64 or bfloat16 at all. Inputs
and outputs keep their types, but for bfloat16, which cannot be fed from Python: they become float32.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from harness.quantize.graph import all_graphs, all_nodes, messages, rename_tensors

OTHER_FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_KEPT = (TensorProto.FLOAT16, TensorProto.DOUBLE)
"""Types of inputs and outputs that stay."""
_TYPE_ATTRIBUTES = ("to", "dtype", "stash_type", "output_dtype", "softmax_precision")
"""Attributes that hold an element type: of Cast, of generators, of normalizations."""


def other_floats(model: ModelProto) -> tuple[str, ...]:
    """Names of the floating-point types other than float32 that the model computes in, the most used first."""
    found: Counter[int] = Counter()
    for message in messages(model):
        if isinstance(message, TensorProto) and message.data_type in OTHER_FLOATS:
            found[message.data_type] += 1
        elif isinstance(message, ValueInfoProto) and message.type.tensor_type.elem_type in OTHER_FLOATS:
            found[message.type.tensor_type.elem_type] += 1
    for node in all_nodes(model):
        for attribute in node.attribute:
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i in OTHER_FLOATS:
                found[attribute.i] += 1
    return tuple(TensorProto.DataType.Name(kind).lower() for kind, _ in found.most_common())


def widen(model: ModelProto) -> ModelProto:
    """A copy that computes in float32 what the model computes in another floating-point type.

    Values outside float32's range (of float64) become infinite; the caller compares outputs.
    """
    made = ModelProto()
    made.CopyFrom(model)
    _keep_interface(made.graph)
    for message in messages(made.graph):
        if isinstance(message, AttributeProto) and message.name in _TYPE_ATTRIBUTES and message.i in OTHER_FLOATS:
            message.i = TensorProto.FLOAT
        elif isinstance(message, TensorProto) and message.data_type in OTHER_FLOATS:
            array = numpy_helper.to_array(message)
            with np.errstate(over="ignore"):
                message.CopyFrom(numpy_helper.from_array(array.astype(np.float32), message.name))
    for graph in all_graphs(made.graph):
        del graph.value_info[:]
        for value in (*graph.input, *graph.output):
            kind = value.type.tensor_type.elem_type
            if kind in OTHER_FLOATS and (graph is not made.graph or kind not in _KEPT):
                value.type.tensor_type.elem_type = TensorProto.FLOAT
    _add_casts(made.graph)
    return made


def _keep_interface(graph: GraphProto) -> None:
    """Renames what the inside calls inputs and outputs, so that casts can stand between."""
    constants = {t.name for t in graph.initializer}
    names = {}
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in _KEPT and value.name not in constants:
            names[value.name] = f"{value.name}_as_float32"
    rename_tensors(graph, names, interface=False)


def _add_casts(graph: GraphProto) -> None:
    constants = {t.name for t in graph.initializer}
    first, last = [], []
    for value in graph.input:
        if value.type.tensor_type.elem_type in _KEPT and value.name not in constants:
            first.append(_cast(value.name, f"{value.name}_as_float32", TensorProto.FLOAT))
    inputs = {value.name for value in graph.input}
    # An output may be listed twice.
    for value in {value.name: value for value in graph.output}.values():
        if value.type.tensor_type.elem_type in _KEPT and value.name not in inputs:
            source = f"{value.name}_as_float32"
            if value.name in constants:
                # An initializer that is an output: it gives way to the cast of itself.
                tensor = next(t for t in graph.initializer if t.name == value.name)
                tensor.name = source
                rename_tensors(graph, {value.name: source}, interface=False)
            last.append(_cast(source, value.name, value.type.tensor_type.elem_type))
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    del graph.node[:]
    graph.node.extend([*first, *nodes, *last])


def _cast(source: str, target: str, kind: int) -> NodeProto:
    return helper.make_node("Cast", [source], [target], f"{target}_Cast", to=kind)
