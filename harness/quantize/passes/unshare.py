"""Initializers that several nodes read in ways that need different quantization get one copy per way.

Rewriters keep one quantized form per initializer: a bias shared by two layers is scaled for the first, a weight shared
by Conv and ConvTranspose has the first one's channel axis, a tensor that is bias here and operand there becomes an
int32 where a float is wanted. Nodes that read a weight alike go on sharing it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from harness.quantize.graph import (
    DEFAULT_DOMAINS,
    attributes_of,
    captured_names,
    free_name,
    initializers_of,
    tensor_names,
)

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
_NORMALIZATIONS = ("LayerNormalization", "InstanceNormalization", "BatchNormalization", "GroupNormalization")


def unshare_initializers(model: ModelProto) -> None:
    """Gives each way of reading a float initializer of the main graph its own copy, the first keeping the name.

    Subgraphs and outputs keep the original.
    """
    graph = model.graph
    constants = {name: t for name, t in initializers_of(graph).items() if t.data_type in _FLOATS}
    readers: dict[str, dict[Hashable, list[tuple[NodeProto, int]]]] = defaultdict(lambda: defaultdict(list))
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in constants:
                readers[name][_role(node, index)].append((node, index))
    outside = _read_outside(graph)
    taken = tensor_names(model)
    for name, roles in readers.items():
        uses = list(roles.values())
        for places in uses if name in outside else uses[1:]:
            copy = TensorProto()
            copy.CopyFrom(constants[name])
            copy.name = free_name(f"{name}_copy", taken)
            graph.initializer.append(copy)
            for node, index in places:
                node.input[index] = copy.name


def merge_equal_initializers(model: ModelProto) -> None:
    """Lets nodes of the main graph share initializers with the same content again; outputs keep theirs."""
    graph = model.graph
    outside = _read_outside(graph)
    first: dict[bytes, str] = {}
    replaced: dict[str, str] = {}
    kept = []
    # What is read from outside comes first: it can be shared, not replaced.
    for tensor in sorted(graph.initializer, key=lambda t: t.name not in outside):
        if not tensor.HasField("raw_data") or len(tensor.raw_data) < _WORTH_BYTES:
            kept.append(tensor)
            continue
        key = b"%d %s " % (tensor.data_type, str(list(tensor.dims)).encode()) + tensor.raw_data
        if key in first and tensor.name not in outside:
            replaced[tensor.name] = first[key]
        else:
            first.setdefault(key, tensor.name)
            kept.append(tensor)
    if not replaced:
        return
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in replaced:
                node.input[index] = replaced[name]
    names = {tensor.name for tensor in kept}
    copies = [TensorProto.FromString(t.SerializeToString()) for t in graph.initializer if t.name in names]
    del graph.initializer[:]
    graph.initializer.extend(copies)


_WORTH_BYTES = 64
"""Scales and zero points below this stay apart: device compilers fold each into its node."""


def _role(node: NodeProto, index: int) -> Hashable:
    """Equal for uses that one quantized form can serve."""
    if node.domain not in DEFAULT_DOMAINS:
        return "other"
    kind = node.op_type
    if kind in ("Conv", "ConvTranspose", "Gemm") and index == 2:
        return node.name, index  # A bias is scaled by its own layer's input and weight.
    if kind in _NORMALIZATIONS and index in (1, 2):
        return node.name, index
    if kind == "Pad" and index == 2:
        return node.name, index  # Rewritten in terms of the padded tensor's scale.
    if kind in ("Conv", "ConvTranspose") and index == 1:
        return "weight", kind, attributes_of(node).get("group", 1) if kind == "ConvTranspose" else 0
    if kind == "Gemm" and index == 1:
        attributes = attributes_of(node)
        return "weight", "Gemm", attributes.get("transB", 0), attributes.get("alpha", 1.0)
    if kind == "MatMul":
        return "weight", "MatMul", index
    if kind in ("LSTM", "GRU", "RNN"):
        return node.name, index
    return "operand"


def _read_outside(graph: GraphProto) -> set[str]:
    """Names that subgraphs or the model's own outputs read."""
    return {value.name for value in graph.output} | captured_names(graph)
