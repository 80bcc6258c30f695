"""Which operators and tensor types a model uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx

from device_agents.emulated.espdl.model import DTYPES
from device_agents.emulated.espdl.reader import read_model


@dataclass(frozen=True)
class Inventory:
    operators: frozenset[str]
    """ONNX operator types, those of subgraphs included."""
    data_types: frozenset[str]
    """Names of the element types of initializers, inputs and outputs, as ONNX spells them in lower case."""


def inventory(path: Path) -> Inventory:
    """Reads the graph only; weights in external files stay there."""
    if path.suffix == ".espdl":
        return _of_espdl(path)
    model = onnx.load(str(path), load_external_data=False)
    operators: set[str] = set()
    types: set[int] = set()
    for graph in _graphs(model.graph):
        operators.update(node.op_type for node in graph.node)
        types.update(tensor.data_type for tensor in graph.initializer)
        types.update(value.type.tensor_type.elem_type for value in (*graph.input, *graph.output))
    names = {_name(kind) for kind in types if kind != onnx.TensorProto.UNDEFINED}
    return Inventory(frozenset(operators), frozenset(names))


def _of_espdl(path: Path) -> Inventory:
    model = read_model(path)
    kinds = {value.dtype for value in model.values.values()}
    tensors = {tensor.dtype.name for tensor in model.constants.values()}
    names = {DTYPES[kind].name for kind in kinds if kind in DTYPES} | tensors
    return Inventory(frozenset(node.op for node in model.nodes), frozenset(names))


def _name(kind: int) -> str:
    name: str = onnx.TensorProto.DataType.Name(kind).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)
            for inner in attribute.graphs:
                yield from _graphs(inner)
