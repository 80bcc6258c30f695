"""What a quantized model is made of, as far as its time goes. Pure: over the graph."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import ModelProto, NodeProto

from device_agents.emulated.cost_model.graph import VIEWS, Graph, Operation
from device_agents.emulated.cost_model.tensors import UnknownShapes
from harness.audit.structure import input_shapes
from harness.diagnose.facts import ArtifactNode
from harness.quantize.graph import DEQUANTIZE, QUANTIZE, initializers_of, is_quantized_operator
from harness.quantize.shapes import free_dims

SWITCHES = frozenset({QUANTIZE, DEQUANTIZE, "DynamicQuantizeLinear", "Cast"})


def artifact_nodes(artifact: ModelProto) -> tuple[ArtifactNode, ...]:
    """Nodes of the main graph in order."""
    graph = _graph(artifact)
    constants = set(initializers_of(artifact.graph)) if graph is None else set(graph.constants)
    dequantized = {name for node in artifact.graph.node if node.op_type == DEQUANTIZE for name in node.output}
    requantized = {node.input[0] for node in artifact.graph.node if node.op_type == QUANTIZE}
    made = []
    kinds = [_kind(node, constants, dequantized, requantized) for node in artifact.graph.node]
    borders = _borders(artifact, kinds)
    for index, node in enumerate(artifact.graph.node):
        kind = kinds[index]
        if kind == "switch" and not borders.intersection((*node.input, *node.output)):
            kind = "folded"
        moved = _moved(graph, graph.operations[index]) if graph is not None and kind != "constant" else 0
        made.append(ArtifactNode(node.name or f"{node.op_type}_{index}", node.op_type, kind, moved))
    return tuple(made)


def _borders(artifact: ModelProto, kinds: Sequence[str]) -> set[str]:
    """Tensors that are float on one side for good: inputs and outputs of the model, and of what computes in float."""
    names = {value.name for value in (*artifact.graph.input, *artifact.graph.output)}
    for node, kind in zip(artifact.graph.node, kinds, strict=True):
        if kind == "float":
            names.update((*node.input, *node.output))
    return names


def _graph(artifact: ModelProto) -> Graph | None:
    if free_dims(artifact):
        return None
    try:
        return Graph(artifact, input_shapes(artifact))
    except UnknownShapes:
        return None


def _kind(node: NodeProto, constants: set[str], dequantized: set[str], requantized: set[str]) -> str:
    computed = [name for name in node.input if name and name not in constants]
    if not computed:
        return "constant"
    if node.op_type in SWITCHES:
        return "switch"
    if is_quantized_operator(node):
        return "quantized"
    if node.op_type in VIEWS or node.op_type in ("Shape", "Constant", "ConstantOfShape", "Range"):
        return "view"
    # Between DequantizeLinear and QuantizeLinear runtimes compute on integers.
    between = all(name in dequantized for name in computed) and any(name in requantized for name in node.output)
    return "quantized" if between else "float"


def _moved(graph: Graph, operation: Operation) -> int:
    read = sum(tensor.size_bytes for tensor in graph.activations(operation))
    return read + sum(graph.tensor(name).size_bytes for name in operation.outputs if name in graph.tensors)
