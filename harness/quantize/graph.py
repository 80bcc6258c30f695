"""Walking and normalising ONNX graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

DEFAULT_DOMAINS = ("", "ai.onnx")
MIN_OPSET = 13
"""First opset whose QuantizeLinear and DequantizeLinear have an axis (per-channel weights)."""
QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
CONVERSIONS = (QUANTIZE, DEQUANTIZE, "DynamicQuantizeLinear")
"""Operators that go from float to quantized values and back, and compute nothing else."""
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
            for graph in subgraphs(node):
                for inner in all_graphs(graph):
                    yield from inner.node


def all_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and the graphs inside its nodes, outer first."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from all_graphs(inner)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def captured_names(graph: GraphProto) -> set[str]:
    """Names read inside the graph's nodes' subgraphs: of tensors of the graph, or of their own."""
    names: set[str] = set()
    for node in graph.node:
        for inner in subgraphs(node):
            for nested in all_graphs(inner):
                names.update(name for reader in nested.node for name in reader.input)
                names.update(value.name for value in nested.output)
    return names


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
    return quantized_operators(model).total()


def quantized_operators(model: ModelProto) -> Counter[str]:
    """Their types, with counts; of all graphs, but not of functions."""
    found: Counter[str] = Counter()
    for graph in all_graphs(model.graph):
        dequantized = {name for node in graph.node if node.op_type == DEQUANTIZE for name in node.output}
        for node in graph.node:
            if node.op_type in CONVERSIONS:
                continue
            if is_quantized_operator(node) or any(name in dequantized for name in node.input):
                found[node.op_type] += 1
    return found


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
    for graph in subgraphs(node):
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


def initializers_of(graph: GraphProto) -> dict[str, TensorProto]:
    return {tensor.name: tensor for tensor in graph.initializer}


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """Values of a node's attributes that are numbers, strings or tensors, by name."""
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if not a.HasField("g")}


def set_attribute(node: NodeProto, name: str, value: Any) -> None:
    drop_attribute(node, name)
    node.attribute.append(onnx.helper.make_attribute(name, value))


def drop_attribute(node: NodeProto, name: str) -> None:
    kept = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)


def is_plain_product(node: NodeProto) -> bool:
    """Whether the node is a MatMul, or a Gemm that is one but for its bias and a transposed second operand."""
    if node.domain not in DEFAULT_DOMAINS or node.op_type not in ("MatMul", "Gemm"):
        return False
    attributes = attributes_of(node)
    return all(
        bool(attributes.get(name, plain) == plain) for name, plain in (("alpha", 1.0), ("beta", 1.0), ("transA", 0))
    )


def is_transposed(node: NodeProto) -> bool:
    """Whether a Gemm reads its second operand as [N, K]."""
    return any(attribute.name == "transB" and attribute.i for attribute in node.attribute)


def drop_unread_initializers(model: ModelProto, graph: GraphProto) -> None:
    """Removes initializers of ``graph`` that no node of ``model`` reads and that are no output."""
    used = {name for inner in all_graphs(model.graph) for node in inner.node for name in node.input}
    used |= {value.name for inner in all_graphs(model.graph) for value in inner.output}
    kept = [TensorProto.FromString(t.SerializeToString()) for t in graph.initializer if t.name in used]
    if len(kept) < len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(kept)


def tensor_names(model: ModelProto) -> set[str]:
    """Every name a tensor has, in any graph of the model."""
    names: set[str] = set()
    for graph in all_graphs(model.graph):
        names.update(value.name for value in (*graph.input, *graph.output))
        names.update(tensor.name for tensor in graph.initializer)
        for node in graph.node:
            names.update((*node.input, *node.output))
    return names - {""}


def free_name(wanted: str, taken: set[str]) -> str:
    """``wanted``, with a number if need be; taken from then on."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}{number}"
    taken.add(name)
    return name


def rename_tensors(graph: GraphProto, names: Mapping[str, str], *, interface: bool) -> None:
    """Renames tensors of ``graph`` wherever they are read or written, also from subgraphs; ``interface=False`` leaves
    the graph's own inputs and outputs (and so disconnects them)."""
    if not names:
        return
    for inner in all_graphs(graph):
        for node in inner.node:
            for field in (node.input, node.output):
                for index, name in enumerate(field):
                    if name in names:
                        field[index] = names[name]
        if inner is not graph or interface:
            for value in (*inner.input, *inner.output):
                value.name = names.get(value.name, value.name)
        if interface:
            for item in (*inner.initializer, *inner.value_info):
                item.name = names.get(item.name, item.name)


def keep_nodes(graph: GraphProto, nodes: Sequence[NodeProto]) -> None:
    """Makes ``nodes`` (some of the graph's own among them) the graph's nodes."""
    copies = [_copy(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _copy(node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy
