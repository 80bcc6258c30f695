"""Fused operators of Microsoft's domain, as ONNX Runtime's optimisers of transformers and of saved models make them,
taken apart again where quantizers know the parts: FusedConv, FusedGemm, FusedMatMul."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from harness.quantize.graph import attributes_of, free_name, keep_nodes, tensor_names

MICROSOFT = "com.microsoft"
_ACTIVATIONS = {
    "Relu": (), "Sigmoid": (), "Tanh": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": None,
}  # fmt: skip
"""Operator -> names of its attributes, in the order of ``activation_params``; Clip takes inputs."""


def unfuse(model: ModelProto) -> None:
    """Replaces fused operators of the main graph by their parts; what it does not know stays."""
    taken = tensor_names(model)
    ranks = _ranks(model.graph)
    kept: list[NodeProto] = []
    for node in model.graph.node:
        parts = None
        if node.domain == MICROSOFT and node.op_type in _PARTS:
            parts = _PARTS[node.op_type](model.graph, node, ranks, taken)
        kept.extend(parts if parts is not None else [node])
    keep_nodes(model.graph, kept)


def _ranks(graph: GraphProto) -> dict[str, int]:
    ranks = {t.name: len(t.dims) for t in graph.initializer}
    for value in (*graph.value_info, *graph.input, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            ranks[value.name] = len(value.type.tensor_type.shape.dim)
    return ranks


def _conv(graph: GraphProto, node: NodeProto, ranks: Mapping[str, int], taken: set[str]) -> list[NodeProto] | None:
    if len(node.input) > 3 and node.input[3]:
        return None  # A sum is fused as well.
    attributes = attributes_of(node)
    activation = attributes.pop("activation", b"").decode()
    parameters = list(attributes.pop("activation_params", []))
    return _with_activation(graph, node, "Conv", list(node.input[:3]), attributes, activation, parameters, taken)


def _gemm(graph: GraphProto, node: NodeProto, ranks: Mapping[str, int], taken: set[str]) -> list[NodeProto] | None:
    attributes = attributes_of(node)
    activation = attributes.pop("activation", b"").decode()
    names = [name for name in ("activation_alpha", "activation_beta", "activation_gamma") if name in attributes]
    parameters = [attributes.pop(name) for name in names]
    return _with_activation(graph, node, "Gemm", list(node.input), attributes, activation, parameters, taken)


def _with_activation(
    graph: GraphProto,
    node: NodeProto,
    op_type: str,
    inputs: list[str],
    attributes: dict[str, object],
    activation: str,
    parameters: list[float],
    taken: set[str],
) -> list[NodeProto] | None:
    if not activation:
        return [helper.make_node(op_type, inputs, list(node.output), node.name, **attributes)]
    if activation not in _ACTIVATIONS:
        return None
    before = free_name(f"{node.output[0]}_before_{activation}", taken)
    made = [helper.make_node(op_type, inputs, [before], node.name, **attributes)]
    names = _ACTIVATIONS[activation]
    operands = [before]
    options = dict(zip(names or (), parameters, strict=False))
    if names is None:
        for value, end in zip(parameters, ("lowest", "highest"), strict=False):
            operands.append(free_name(f"{node.output[0]}_{end}", taken))
            graph.initializer.append(numpy_helper.from_array(np.float32(value), operands[-1]))
    made.append(helper.make_node(activation, operands, list(node.output), f"{node.name}_{activation}", **options))
    return made


def _matmul(graph: GraphProto, node: NodeProto, ranks: Mapping[str, int], taken: set[str]) -> list[NodeProto] | None:
    attributes = attributes_of(node)
    if attributes.get("transBatchA", 0) or attributes.get("transBatchB", 0):
        return None
    made, operands = [], []
    for name, flag in zip(node.input, ("transA", "transB"), strict=True):
        rank = ranks.get(name)
        if not attributes.get(flag, 0):
            operands.append(name)
            continue
        if rank is None or rank < 2:
            return None
        turned = free_name(f"{name}_transposed", taken)
        order = [*range(rank - 2), rank - 1, rank - 2]
        made.append(helper.make_node("Transpose", [name], [turned], f"{node.name}_{flag}", perm=order))
        operands.append(turned)
    alpha = float(attributes.get("alpha", 1.0))
    product = node.output[0] if alpha == 1.0 else free_name(f"{node.output[0]}_unscaled", taken)
    made.append(helper.make_node("MatMul", operands, [product], node.name))
    if alpha != 1.0:
        factor = free_name(f"{node.output[0]}_alpha", taken)
        graph.initializer.append(helper.make_tensor(factor, TensorProto.FLOAT, [], [alpha]))
        made.append(helper.make_node("Mul", [product, factor], [node.output[0]], f"{node.name}_alpha"))
    return made


_Unfuse = Callable[[GraphProto, NodeProto, Mapping[str, int], set[str]], list[NodeProto] | None]
_PARTS: Mapping[str, _Unfuse] = {
    "FusedConv": _conv,
    "FusedGemm": _gemm,
    "FusedMatMul": _matmul,
    "TransposeMatMul": _matmul,
}
