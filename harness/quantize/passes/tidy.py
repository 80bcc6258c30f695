"""What the standard asks for and ONNX Runtime does without: one name for the default domain, one entry per operator
set, one initializer per name, nodes in order. Tools that go by the standard stumble over the rest."""

from __future__ import annotations

from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

from harness.quantize.graph import DEFAULT_DOMAINS, all_graphs, all_nodes, sort_nodes, tensor_names


def tidy(model: ModelProto) -> None:
    """Brings the model into order, in place. Raises ValueError if its nodes read each other in a circle."""
    for node in all_nodes(model):
        if node.domain in DEFAULT_DOMAINS:
            node.domain = ""
    _merge_opsets(model)
    for graph in all_graphs(model.graph):
        _drop_repeated_initializers(graph)
        sort_nodes(graph)


def drop_stale_types(model: ModelProto) -> None:
    """Removes what is recorded of tensors that are no longer there: a rewriter may make up such a name for another."""
    names = tensor_names(model)
    for graph in all_graphs(model.graph):
        kept = [ValueInfoProto.FromString(v.SerializeToString()) for v in graph.value_info if v.name in names]
        if len(kept) < len(graph.value_info):
            del graph.value_info[:]
            graph.value_info.extend(kept)


def _merge_opsets(model: ModelProto) -> None:
    versions: dict[str, int] = {}
    for opset in model.opset_import:
        domain = "" if opset.domain in DEFAULT_DOMAINS else opset.domain
        versions[domain] = max(versions.get(domain, 0), opset.version)
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in versions.items())


def _drop_repeated_initializers(graph: GraphProto) -> None:
    """Keeps the last of a name, as ONNX Runtime does."""
    last = {tensor.name: index for index, tensor in enumerate(graph.initializer)}
    if len(last) == len(graph.initializer):
        return
    kept = [TensorProto.FromString(graph.initializer[index].SerializeToString()) for index in sorted(last.values())]
    del graph.initializer[:]
    graph.initializer.extend(kept)
