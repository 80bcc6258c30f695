"""Operators, parameters, multiply-accumulates and shapes of a model. Pure: over the model in memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto, TensorProto

from device_agents.emulated.cost_model.graph import Graph, effort
from device_agents.emulated.cost_model.tensors import Tensor, UnknownShapes
from harness.quantize.graph import DEFAULT_DOMAINS, all_graphs, all_nodes, initializers_of, subgraphs
from harness.quantize.shapes import FreeDim, free_dims, model_inputs, tensor_outputs, tensor_specs

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


@dataclass(frozen=True)
class OperatorCount:
    op_type: str
    domain: str
    """Empty for ONNX's own operators."""
    opset: int
    """Version of the domain that the model imports."""
    nodes: int
    parameters: int
    """Elements of floating-point initializers that these nodes read; one that several types read counts for each."""
    macs: int | None
    """Multiply-accumulates of one inference; ``None`` while dimensions are free, or shapes cannot be found."""


@dataclass(frozen=True)
class Structure:
    operators: tuple[OperatorCount, ...]
    """Most multiply-accumulates first, then most nodes."""
    node_macs: Mapping[str, int] | None
    """By node of the main graph, those that have some."""
    parameters: int
    weight_bytes: int
    """Of all initializers as stored."""
    macs: int | None
    activation_bytes: int | None
    """Of the largest intermediate tensor, in its own type."""
    opsets: Mapping[str, int]
    inputs: tuple[tuple[str, str, tuple[int | str, ...]], ...]
    """(name, numpy dtype, shape)."""
    outputs: tuple[tuple[str, str, tuple[int | str, ...]], ...]
    shapes: Mapping[str, tuple[int, ...]]
    """Activation -> shape; empty while dimensions are free."""
    free: tuple[FreeDim, ...]
    """Dimensions that the model as given leaves open."""
    nested_nodes: int
    """Inside If, Loop and Scan: their multiply-accumulates are not counted."""


def structure_of(model: ModelProto, given: ModelProto) -> Structure:
    """``model``: prepared (sizes fixed), or ``given`` itself where it could not be prepared."""
    graph = None if free_dims(model) else _graph(model)
    macs = None if graph is None else {op.name: effort(graph, op).macs for op in graph.operations}
    shapes = {} if graph is None else _shapes(graph)
    opsets = {("" if o.domain in DEFAULT_DOMAINS else str(o.domain)): int(o.version) for o in given.opset_import}
    sizes = [0 if graph is None else graph.tensor(name).size_bytes for name in shapes]
    return Structure(
        operators=_operators(model, opsets, graph, macs),
        node_macs=None if macs is None else {name: count for name, count in macs.items() if count},
        parameters=sum(math.prod(t.dims) for g in all_graphs(model.graph) for t in g.initializer if _is_float(t)),
        weight_bytes=sum(_bytes(tensor) for g in all_graphs(model.graph) for tensor in g.initializer),
        macs=None if macs is None else sum(macs.values()),
        activation_bytes=None if graph is None else max(sizes, default=0),
        opsets=opsets,
        inputs=tuple((s.name, s.dtype, s.shape) for s in tensor_specs(model_inputs(model))),
        outputs=tuple((s.name, s.dtype, s.shape) for s in tensor_specs(tensor_outputs(model))),
        shapes=shapes,
        free=free_dims(given),
        nested_nodes=sum(len(g.node) for node in all_nodes(model) for g in subgraphs(node)),
    )


def input_shapes(model: ModelProto) -> dict[str, tuple[int, ...]]:
    """Of inputs that must be fed; all dimensions must be fixed."""
    return {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim) for value in model_inputs(model)
    }


def _graph(model: ModelProto) -> Graph | None:
    try:
        return Graph(model, input_shapes(model))
    except UnknownShapes:
        return None


def _shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    names = [*graph.inputs, *(name for op in graph.operations for name in op.outputs if name)]
    return {name: graph.tensor(name).shape for name in names if name not in graph.constants}


def _operators(
    model: ModelProto, opsets: Mapping[str, int], graph: Graph | None, macs: Mapping[str, int] | None
) -> tuple[OperatorCount, ...]:
    nodes: Counter[tuple[str, str]] = Counter()
    parameters: Counter[tuple[str, str]] = Counter()
    efforts: Counter[tuple[str, str]] = Counter()
    constants = initializers_of(model.graph)
    for node in all_nodes(model):
        key = (node.op_type, "" if node.domain in DEFAULT_DOMAINS else node.domain)
        nodes[key] += 1
        read = (constants[name] for name in node.input if name in constants)
        parameters[key] += sum(math.prod(tensor.dims) for tensor in read if _is_float(tensor))
    if graph is not None and macs is not None:
        for operation, node in zip(graph.operations, model.graph.node, strict=True):
            efforts[node.op_type, "" if node.domain in DEFAULT_DOMAINS else node.domain] += macs[operation.name]
    counts = [
        OperatorCount(
            op_type,
            domain,
            opsets.get(domain, 0),
            count,
            parameters[op_type, domain],
            None if macs is None else efforts[op_type, domain],
        )
        for (op_type, domain), count in nodes.items()
    ]
    return tuple(sorted(counts, key=lambda row: (-(row.macs or 0), -row.nodes, row.op_type)))


def _is_float(tensor: TensorProto) -> bool:
    return tensor.data_type in _FLOATS


def _bytes(tensor: TensorProto) -> int:
    return Tensor(tensor.name, tensor.data_type, tuple(tensor.dims), constant=True).size_bytes


def to_json(structure: Structure) -> dict[str, Any]:
    return {
        "operators": [
            {
                "op_type": row.op_type,
                "domain": row.domain,
                "opset": row.opset,
                "nodes": row.nodes,
                "parameters": row.parameters,
                "macs": row.macs,
            }
            for row in structure.operators
        ],
        "node_macs": None if structure.node_macs is None else dict(structure.node_macs),
        "parameters": structure.parameters,
        "weight_bytes": structure.weight_bytes,
        "macs": structure.macs,
        "largest_activation_bytes": structure.activation_bytes,
        "opsets": dict(structure.opsets),
        "inputs": [{"name": n, "dtype": t, "shape": list(s)} for n, t, s in structure.inputs],
        "outputs": [{"name": n, "dtype": t, "shape": list(s)} for n, t, s in structure.outputs],
        "free_dimensions": [{"name": d.name, "input": d.input, "axis": d.axis} for d in structure.free],
        "nested_nodes": structure.nested_nodes,
    }
