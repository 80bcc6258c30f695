"""Walking and normalising ONNX graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

DEFAULT_DOMAINS = ("", "ai.onnx")
QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_QUANTIZED_OPERATORS = frozenset(
    {
        "MatMulInteger", "ConvInteger", "DynamicQuantizeLinear", "MatMulNBits", "MatMulBnb4",
        "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "DynamicQuantizeLSTM", "GatherBlockQuantized",
        "QAttention", "QGemm", "QEmbedLayerNormalization", "QOrderedMatMul", "QMoE",
    }
)  # fmt: skip


def messages(message: Message) -> Iterator[Message]:
    """The message and all messages inside it."""
    yield message
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for item in (value,) if isinstance(value, Message) else value:
                yield from messages(item)


def all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Every node of the main graph, of subgraphs, and of local functions."""
    for graph in all_graphs(model.graph):
        yield from graph.node
    for function in model.functions:
        for node in function.node:
            yield node
            for graph in _subgraphs(node):
                for inner in all_graphs(graph):
                    yield from inner.node


def all_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and the graphs inside its nodes, outer first."""
    yield graph
    for node in graph.node:
        for inner in _subgraphs(node):
            yield from all_graphs(inner)


def _subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def opset_of(model: ModelProto) -> int:
    """Version of the default operator set, 0 if the model imports none."""
    return max((o.version for o in model.opset_import if o.domain in DEFAULT_DOMAINS), default=0)


def is_quantized_operator(node: NodeProto) -> bool:
    """Whether the node computes on quantized values by itself (QLinear*, *Integer, MatMulNBits and the like)."""
    return node.op_type.startswith("QLinear") or node.op_type in _QUANTIZED_OPERATORS


def quantization_found(model: ModelProto) -> Counter[str]:
    """Operator types that show that a model is already quantized, with counts; empty for a float model."""
    return Counter(
        node.op_type
        for node in all_nodes(model)
        if is_quantized_operator(node) or node.op_type in (QUANTIZE, DEQUANTIZE)
    )


def count_quantized_operators(model: ModelProto) -> int:
    """Operators that compute on quantized values: integer operators, and float ones fed by DequantizeLinear."""
    count = 0
    for graph in all_graphs(model.graph):
        dequantized = {name for node in graph.node if node.op_type == DEQUANTIZE for name in node.output}
        for node in graph.node:
            if node.op_type in (QUANTIZE, DEQUANTIZE, "DynamicQuantizeLinear"):
                continue
            fed = any(name in dequantized for name in node.input)
            count += is_quantized_operator(node) or fed
    return count


def has_float16(model: ModelProto) -> bool:
    """Whether anything is computed in float16: a tensor of that type, or a Cast to it."""
    for graph in all_graphs(model.graph):
        if any(tensor.data_type == TensorProto.FLOAT16 for tensor in graph.initializer):
            return True
        for node in graph.node:
            if node.op_type == "Cast" and any(a.name == "to" and a.i == TensorProto.FLOAT16 for a in node.attribute):
                return True
    return False


def name_nodes(model: ModelProto) -> None:
    """Gives every node of the model a name that no other has; keeps names that are unique already."""
    taken = Counter(node.name for node in all_nodes(model))
    used: set[str] = set()
    for node in all_nodes(model):
        name = node.name
        if not name or name in used:
            base = node.name or node.op_type
            number = 0
            while not name or name in used or name in taken:
                name = f"{base}_{number}"
                number += 1
            node.name = name
        used.add(name)


def constants_to_initializers(graph: GraphProto) -> None:
    """Replaces ``Constant`` nodes that hold a tensor by initializers, so that weights are seen as weights."""
    outputs = {value.name for value in graph.output}
    kept = []
    for node in graph.node:
        value = next((a.t for a in node.attribute if a.name == "value" and a.HasField("t")), None)
        if node.op_type != "Constant" or value is None or node.output[0] in outputs:
            kept.append(node)
            continue
        tensor = TensorProto()
        tensor.CopyFrom(value)
        tensor.name = node.output[0]
        graph.initializer.append(tensor)
    if len(kept) < len(graph.node):
        copies = [_copy(node) for node in kept]
        del graph.node[:]
        graph.node.extend(copies)


def flatten_gemm_biases(graph: GraphProto) -> None:
    """Gives each constant Gemm bias the shape [N]: ONNX Runtime's rewriters fail on [], [1] and [1, N] per channel."""
    constants = initializers_of(graph)
    present = set(constants)
    for node in graph.node:
        if node.op_type != "Gemm" or len(node.input) < 3 or node.input[1] not in constants:
            continue
        bias = constants.get(node.input[2])
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        width = int(constants[node.input[1]].dims[0 if transposed else 1])
        if bias is None or list(bias.dims) == [width]:
            continue
        values = numpy_helper.to_array(bias)
        if values.size not in (1, width) or (values.ndim == 2 and values.shape[0] != 1):
            continue  # One row per row of the result: not a bias.
        name = f"{bias.name}_{width}"
        if name not in present:
            graph.initializer.append(numpy_helper.from_array(np.resize(values.ravel(), width), name))
            present.add(name)
        node.input[2] = name


def sort_nodes(graph: GraphProto) -> None:
    """Puts nodes after those whose outputs they read, also from inside their subgraphs; keeps the order otherwise.

    Raises ValueError if they read each other in a circle.
    """
    producers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    needs = [{producers[name] for name in _reads(node) if name in producers} for node in graph.node]
    order: list[int] = []
    done: set[int] = set()
    # Depth first without recursion: a graph may be deeper than Python's stack.
    for first in range(len(graph.node)):
        stack, open_nodes = [first], set()
        while stack:
            index = stack[-1]
            waiting = sorted(needs[index] - done) if index not in done else []
            if not waiting:
                stack.pop()
                open_nodes.discard(index)
                if index not in done:
                    done.add(index)
                    order.append(index)
            elif index in open_nodes and open_nodes & set(waiting):
                raise ValueError(f"node {graph.node[index].name!r} reads its own result")
            else:
                open_nodes.add(index)
                stack.append(waiting[0])
    if order != list(range(len(order))):
        copies = [_copy(graph.node[index]) for index in order]
        del graph.node[:]
        graph.node.extend(copies)


def _reads(node: NodeProto) -> Iterator[str]:
    yield from node.input
    for graph in _subgraphs(node):
        for inner in all_graphs(graph):
            yield from (name for other in inner.node for name in other.input)
            yield from (value.name for value in inner.output)


def drop_unused_opsets(model: ModelProto) -> None:
    """Removes operator sets that no node uses, except the default one; merges nothing."""
    used = {node.domain for node in all_nodes(model)} | {f.domain for f in model.functions}
    kept = [o for o in model.opset_import if o.domain in DEFAULT_DOMAINS or o.domain in used]
    copies = [onnx.helper.make_opsetid(o.domain, o.version) for o in sorted(kept, key=lambda o: str(o.domain))]
    del model.opset_import[:]
    model.opset_import.extend(copies)


def clear_labels(model: ModelProto) -> None:
    """Clears producer fields, metadata and doc strings: what does not belong to what a model computes."""
    for name in ("producer_name", "producer_version", "domain", "model_version"):
        model.ClearField(name)
    for message in messages(model):
        for name in ("doc_string", "metadata_props"):
            if name in message.DESCRIPTOR.fields_by_name:
                message.ClearField(name)


def initializers_of(graph: GraphProto) -> Mapping[str, TensorProto]:
    return {tensor.name: tensor for tensor in graph.initializer}


def _copy(node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy
