"""Why nodes of the artifact run on the CPU although an accelerator was asked for."""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence, Set

from .onnx_nodes import Graph, Node
from .placement import CPU

_CONVERSIONS = frozenset(("QuantizeLinear", "DequantizeLinear"))
UNEXPLAINED = "no accelerator took it, and the runtime does not say why"


def fallback_reasons(
    graph: Graph, providers: Sequence[str], on_cpu: Sequence[str], refusals: Mapping[str, str]
) -> Dict[str, str]:
    """Node -> reason, for the nodes ``on_cpu``; empty where nothing but the CPU was asked for.

    ``refusals``: the runtime's own words, where it has some; they come first. The rest is read off the graph: a
    conversion belongs to the operator it converts for.
    """
    asked = [provider for provider in providers if provider != CPU]
    if not asked:
        return {}
    fallen = set(on_cpu)
    makers = {output: node for node in graph.nodes for output in node.outputs}
    takers: Dict[str, List[Node]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            takers.setdefault(name, []).append(node)
    ends, starts = set(graph.outputs), set(graph.inputs)
    out: Dict[str, str] = {}
    for node in graph.nodes:
        if node.name not in fallen:
            continue
        if node.name in refusals:
            out[node.name] = "{}: {}".format(asked[0], refusals[node.name])
        elif node.op_type in _CONVERSIONS:
            out[node.name] = _conversion(node, fallen, makers, takers, starts, ends)
        else:
            out[node.name] = UNEXPLAINED
    return out


def _conversion(
    node: Node,
    fallen: Set[str],
    makers: Mapping[str, Node],
    takers: Mapping[str, Sequence[Node]],
    starts: Set[str],
    ends: Set[str],
) -> str:
    if node.op_type == "QuantizeLinear" and node.inputs and node.inputs[0] in starts:
        return "converts the model's input {!r} before the accelerator takes over".format(node.inputs[0])
    if node.op_type == "DequantizeLinear" and node.outputs and node.outputs[0] in ends:
        return "converts the model's output {!r} after the accelerator is done".format(node.outputs[0])
    near = [makers[name] for name in node.inputs[:1] if name in makers]
    near += [taker for name in node.outputs for taker in takers.get(name, ())]
    beside = sorted({each.name for each in near if each.name in fallen and each.op_type not in _CONVERSIONS})
    return "converts for {}, which runs on the CPU".format(", ".join(beside)) if beside else UNEXPLAINED
