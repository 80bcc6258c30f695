"""Constants seen as constants: whatever form a node or an exporter gave them, they become initializers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, helper, numpy_helper

from harness.quantize.graph import DEFAULT_DOMAINS, all_graphs, free_name, keep_nodes, tensor_names

_NUMBERS: Mapping[str, type[np.generic]] = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def constants_to_initializers(graph: GraphProto) -> None:
    """Replaces ``Constant`` nodes that hold numbers by initializers, so that weights are seen as weights."""
    outputs = {value.name for value in graph.output}
    kept = []
    for node in graph.node:
        tensor = None
        if node.op_type == "Constant" and node.domain in DEFAULT_DOMAINS and node.output[0] not in outputs:
            tensor = next((t for a in node.attribute if (t := _tensor_of(a, node.output[0])) is not None), None)
        if tensor is None:
            kept.append(node)
        else:
            graph.initializer.append(tensor)
    keep_nodes(graph, kept)


def _tensor_of(attribute: AttributeProto, name: str) -> TensorProto | None:
    if attribute.name == "value" and attribute.HasField("t"):
        tensor = TensorProto()
        tensor.CopyFrom(attribute.t)
        tensor.name = name
        return tensor
    if attribute.name in _NUMBERS:
        value = helper.get_attribute_value(attribute)
        return numpy_helper.from_array(np.asarray(value, dtype=_NUMBERS[attribute.name]), name)
    return None


def sparse_to_dense(model: ModelProto) -> None:
    """Writes sparse initializers and sparse ``Constant`` nodes out: quantizers see no weights in them."""
    for graph in all_graphs(model.graph):
        graph.initializer.extend(_dense(sparse, sparse.values.name) for sparse in graph.sparse_initializer)
        del graph.sparse_initializer[:]
        for node in graph.node:
            if node.op_type == "Constant" and node.domain in DEFAULT_DOMAINS:
                for attribute in node.attribute:
                    if attribute.name == "sparse_value":
                        dense = _dense(attribute.sparse_tensor, "")
                        attribute.CopyFrom(helper.make_attribute("value", dense))


def _dense(sparse: SparseTensorProto, name: str) -> TensorProto:
    """Indices are places in the flattened tensor [NNZ], or coordinates [NNZ, rank]."""
    values = numpy_helper.to_array(sparse.values)
    places = numpy_helper.to_array(sparse.indices)
    array = np.zeros(tuple(sparse.dims), dtype=values.dtype)
    if places.ndim == 2:
        array[tuple(places.T)] = values
    else:
        array.reshape(-1)[places] = values
    return numpy_helper.from_array(array, name)


def fill_blanks(model: ModelProto) -> None:
    """Takes empty names out of nodes: an optional input or output at the end is dropped, an output that is not
    optional gets a name. Rewriters take blanks for tensors, and ONNX Runtime crashes on a Split with one."""
    taken = tensor_names(model)
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    for graph in all_graphs(model.graph):
        for node in graph.node:
            while node.input and not node.input[-1]:
                node.input.pop()
            if "" not in node.output:
                continue
            required = _required_outputs(node, opsets)
            for index, name in enumerate(node.output):
                if not name and required(index):
                    node.output[index] = free_name(f"{node.output[0] or node.name}_unused", taken)
            while len(node.output) > 1 and not node.output[-1]:
                node.output.pop()


def _required_outputs(node: NodeProto, opsets: Mapping[str, int]) -> Callable[[int], bool]:
    domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
    try:
        outputs = onnx.defs.get_schema(node.op_type, opsets.get(domain, 1), domain).outputs
    except onnx.defs.SchemaError:
        return lambda index: False
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    # The last parameter of a variadic list stands for all that follow.
    return lambda index: bool(outputs) and outputs[min(index, len(outputs) - 1)].option != optional
