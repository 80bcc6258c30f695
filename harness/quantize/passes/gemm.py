"""Gemm in the one form every rewriter gets right: alpha and beta 1, a constant bias of shape [N] or none.

ONNX Runtime's QDQ rewriter loses ``beta``, and both rewriters fail on biases of other shapes per channel.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from harness.quantize.graph import (
    DEFAULT_DOMAINS,
    attributes_of,
    free_name,
    initializers_of,
    keep_nodes,
    set_attribute,
    tensor_names,
)


def normalise_gemms(model: ModelProto) -> None:
    """Folds ``alpha`` and ``beta`` into constants, flattens constant biases, moves others behind in an Add.

    Initializers must not be shared between roles, see :mod:`harness.quantize.passes.unshare`.
    """
    graph = model.graph
    taken = tensor_names(model)
    kept: list[NodeProto] = []
    for node in graph.node:
        kept.append(node)
        if node.op_type != "Gemm" or node.domain not in DEFAULT_DOMAINS:
            continue
        constants = initializers_of(graph)
        _fold_alpha(node, constants)
        kept.extend(_normalise_bias(graph, node, constants, taken))
    keep_nodes(graph, kept)


def _fold_alpha(node: NodeProto, constants: dict[str, TensorProto]) -> None:
    alpha = float(attributes_of(node).get("alpha", 1.0))
    weight = constants.get(node.input[1])
    if alpha == 1.0 or weight is None or weight.data_type != TensorProto.FLOAT:
        return
    _replace(weight, numpy_helper.to_array(weight) * np.float32(alpha))
    set_attribute(node, "alpha", 1.0)


def _normalise_bias(
    graph: GraphProto, node: NodeProto, constants: dict[str, TensorProto], taken: set[str]
) -> list[NodeProto]:
    """Changes ``node`` in place; returns the node to put behind it, if any."""
    if len(node.input) < 3 or not node.input[2]:
        return []
    beta = float(attributes_of(node).get("beta", 1.0))
    if beta == 0.0:
        del node.input[2:]
        set_attribute(node, "beta", 1.0)
        return []
    bias = constants.get(node.input[2])
    if bias is None or bias.data_type != TensorProto.FLOAT:
        return []
    values = numpy_helper.to_array(bias) * np.float32(beta)
    set_attribute(node, "beta", 1.0)
    width = _width(node, constants)
    if width is not None and (values.size == 1 or values.shape in ((width,), (1, width))):
        _replace(bias, np.resize(values.ravel(), width))
        return []
    _replace(bias, values)
    product = free_name(f"{node.output[0]}_product", taken)
    add = helper.make_node("Add", [product, bias.name], [node.output[0]], f"{node.name}_bias")
    node.output[0] = product
    del node.input[2:]
    return [add]


def _width(node: NodeProto, constants: dict[str, TensorProto]) -> int | None:
    weight = constants.get(node.input[1])
    if weight is None or len(weight.dims) != 2:
        return None
    return int(weight.dims[0 if attributes_of(node).get("transB", 0) else 1])


def _replace(tensor: TensorProto, values: npt.NDArray[np.float32]) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values, dtype=np.float32), tensor.name))
