"""Which tensors of two models hold the same values, whatever they are called: those computed by the same operators
from the same constants and model inputs."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from harness.quantize.graph import DEQUANTIZE, all_graphs, initializers_of, subgraphs

_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


def value_keys(model: ModelProto) -> dict[str, bytes]:
    """Tensor of the main graph -> key of its values. Equal keys mean equal values for equal model inputs.

    Nodes must be in order. A model input is known by its name, a constant by its content; operators that draw random
    numbers are equal to nothing. How often a dequantized constant is read is part of its key: ONNX Runtime chooses
    another kernel, which rounds otherwise, where it is read once.
    """
    readers = Counter(name for node in model.graph.node for name in reads(node))
    constants = {tensor.name for tensor in model.graph.initializer}
    keys = {value.name: _digest(b"input", value.name.encode()) for value in model.graph.input}
    for tensor in model.graph.initializer:
        keys[tensor.name] = _constant_key(tensor)
    for number, node in enumerate(model.graph.node):
        parts = [node.op_type.encode(), node.domain.encode(), *_attribute_parts(node)]
        parts += [keys.get(name, b"") for name in reads(node)]
        if node.op_type in _RANDOM:
            parts.append(f"{id(model)}:{number}".encode())
        if node.op_type == DEQUANTIZE and node.input[0] in constants:
            parts.append(f"{readers[node.input[0]]}:{readers[node.output[0]]}".encode())
        whole = _digest(b"node", *parts)
        for index, name in enumerate(node.output):
            if name:
                keys[name] = _digest(whole, str(index).encode())
    return keys


def reads(node: NodeProto) -> list[str]:
    """Tensors of the node's graph that it reads, also from inside its subgraphs; omitted inputs are ``""``."""
    return [*node.input, *sorted(_captured(node))]


def _captured(node: NodeProto) -> set[str]:
    names: set[str] = set()
    for graph in subgraphs(node):
        for inner in all_graphs(graph):
            names.update(name for other in inner.node for name in other.input if name)
            names.update(value.name for value in inner.output)
    return names - {name for graph in subgraphs(node) for name in _defined(graph)}


def _defined(graph: GraphProto) -> Iterable[str]:
    for inner in all_graphs(graph):
        yield from (value.name for value in inner.input)
        yield from initializers_of(inner)
        yield from (name for node in inner.node for name in node.output)


def _attribute_parts(node: NodeProto) -> list[bytes]:
    return sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)


def _constant_key(tensor: TensorProto) -> bytes:
    content = tensor.raw_data if tensor.HasField("raw_data") else _content(tensor)
    return _digest(b"constant", f"{tensor.data_type}:{list(tensor.dims)}".encode(), content)


def _content(tensor: TensorProto) -> bytes:
    if tensor.data_type == TensorProto.STRING:
        return bytes(tensor.SerializeToString(deterministic=True))
    return bytes(numpy_helper.to_array(tensor).tobytes())


def _digest(*parts: bytes) -> bytes:
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.digest()


def inverse(keys: Mapping[str, bytes]) -> dict[bytes, str]:
    """Key -> the first tensor that has it."""
    found: dict[bytes, str] = {}
    for name, key in keys.items():
        found.setdefault(key, name)
    return found
