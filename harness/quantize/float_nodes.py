"""Which nodes a static recipe must leave in float, and why: what ONNX Runtime's rewriters would crash on, hang on, or
quantize into garbage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from harness.quantize.continued import finished_nodes
from harness.quantize.graph import (
    DEFAULT_DOMAINS,
    all_graphs,
    attributes_of,
    captured_names,
    initializers_of,
    subgraphs,
)
from harness.quantize.passes.masks import mask_tensors, touches
from harness.quantize.statistics import ActivationStatistics
from harness.recipes.facts import WEIGHTED_OPERATORS
from harness.recipes.recipe import Recipe

MASK = "mask values (infinite or huge) in its operands"
UNSEEN = "tensors that calibration saw no values of"
COMPUTED_BIAS = "a computed bias"
NOT_REMOVABLE = "an activation that its input's range cannot stand for"
NOT_FINITE = "weights that are not finite"
NAMESAKE = "an operator of another domain than the one that is quantized"
DILATED_POOL = "dilations, which its quantized form does not know"
FINISHED = "what was quantized before"
UNEVEN = "scales of very different size in a batch normalization"
_UNEVEN_RATIO = 16.0
"""Of largest to smallest scale: more, and one 8-bit step for all takes over 6 % of the smallest."""
_ACTIVATIONS = ("Relu", "Clip")
_PASSING_ON = frozenset(
    {"Flatten", "Gather", "MaxPool", "Pad", "Reshape", "Resize", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators whose quantized result has the scale of their input: QOperator has no other form of them."""
OTHER_DOMAINS: Mapping[str, str] = {"Attention": "com.microsoft", "EmbedLayerNormalization": "com.microsoft"}
"""Operators that ONNX Runtime's rewriters mean of another domain than ONNX's."""
_SHOWN = 3


def nodes_left_in_float(
    model: ModelProto, recipe: Recipe, statistics: Mapping[str, ActivationStatistics], op_types: Sequence[str]
) -> dict[str, str]:
    """Name -> reason of the nodes of the main graph, among those of ``op_types``, that cannot be quantized.

    ``model`` has types for all float tensors; ``statistics`` are those of its activations.
    """
    ranges = {name: (stats.lowest, stats.highest) for name, stats in statistics.items()}
    masks = mask_tensors(model, ranges, [name for name, stats in statistics.items() if stats.non_finite])
    constants = initializers_of(model.graph)
    floats = _float_tensors(model)
    bad = with_weights_not_finite(model)
    rules: list[tuple[str, Callable[[NodeProto], bool]]] = [
        (NOT_FINITE, lambda node: node.name in bad),
        (MASK, lambda node: touches(node, masks)),
        (UNSEEN, lambda node: any(_unseen(name, floats, constants, statistics) for name in _operands(node))),
        (DILATED_POOL, _dilated_pool),
        (UNEVEN, lambda node: _uneven(node, constants)),
        (NOT_REMOVABLE, _removal_rule(model, recipe, constants)),
    ]
    if recipe.format == "QOperator":
        rules += [
            (COMPUTED_BIAS, lambda node: _computed(node, ("Conv", "Gemm"), 2, constants)),
        ]
    wanted = set(op_types)
    others = namesakes(model)
    rules.insert(0, (NAMESAKE, lambda node: node.name in others))
    finished = finished_nodes(model)
    rules.insert(0, (FINISHED, lambda node: node.name in finished))
    left: dict[str, str] = {}
    for node in model.graph.node:
        if node.op_type in wanted:
            reason = next((reason for reason, rule in rules if rule(node)), "")
            if reason:
                left[node.name] = reason
    return left


def namesakes(model: ModelProto) -> frozenset[str]:
    """Names of nodes called as an operator that rewriters know, which look at no domain, but of another one: ONNX's
    Attention (opset 23) is not Microsoft's, and a Conv of somebody's own is no Conv."""
    return frozenset(
        node.name
        for node in model.graph.node
        if ("" if node.domain in DEFAULT_DOMAINS else node.domain) != OTHER_DOMAINS.get(node.op_type, "")
    )


def with_weights_not_finite(model: ModelProto) -> frozenset[str]:
    """Names of layers of the main graph with a weight or bias that is not finite: it would take the scale with it."""
    bad = {tensor.name for tensor in model.graph.initializer if _not_finite(tensor)}
    layers = (node for node in model.graph.node if node.op_type in (*WEIGHTED_OPERATORS, "Gather"))
    return frozenset(node.name for node in layers if bad.intersection(node.input))


def float_notices(model: ModelProto, left: Mapping[str, str]) -> tuple[str, ...]:
    """For people: what was left in float and why, also what is inside control flow."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, reason in left.items():
        if reason not in (NOT_REMOVABLE, FINISHED):  # Costs nothing worth a line.
            by_reason[reason].append(name)
    notices = [f"left in float for {reason}: {_listed(names)}" for reason, names in by_reason.items()]
    for node in model.graph.node:
        inside = [other for graph in subgraphs(node) for nested in all_graphs(graph) for other in nested.node]
        layers = [other.name for other in inside if other.op_type in WEIGHTED_OPERATORS]
        if inside:
            way = f", among them {_listed(layers)}; dynamic and weight-only recipes reach MatMul and Gemm there"
            notices.append(
                f"left in float: {len(inside)} operators inside {node.op_type} {node.name!r}" + (way if layers else "")
            )
    return tuple(notices)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(repr(name) for name in names[:_SHOWN]) + more


def _float_tensors(model: ModelProto) -> set[str]:
    values = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    kinds = (TensorProto.FLOAT, TensorProto.FLOAT16)
    return {value.name for value in values if value.type.tensor_type.elem_type in kinds}


def _not_finite(tensor: TensorProto) -> bool:
    if tensor.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16):
        return False
    return not bool(np.isfinite(numpy_helper.to_array(tensor)).all())


def _unseen(
    name: str, floats: set[str], constants: Mapping[str, TensorProto], statistics: Mapping[str, ActivationStatistics]
) -> bool:
    if name in constants:
        return 0 in constants[name].dims and constants[name].data_type == TensorProto.FLOAT
    return name in floats and name not in statistics


def _dilated_pool(node: NodeProto) -> bool:
    """AveragePool has dilations from opset 19 on; ONNX Runtime's QLinearAveragePool does not load with them."""
    return node.op_type == "AveragePool" and "dilations" in attributes_of(node)


def _uneven(node: NodeProto, constants: Mapping[str, TensorProto]) -> bool:
    if node.op_type != "BatchNormalization" or node.input[1] not in constants:
        return False
    sizes = np.abs(numpy_helper.to_array(constants[node.input[1]]).astype(np.float32))
    return bool(sizes.size and sizes.max() > _UNEVEN_RATIO * sizes.min())


def _operands(node: NodeProto) -> tuple[str, ...]:
    """Tensors that are quantized with the node. A Resize has only one: its empty region of interest says nothing."""
    return (*(node.input[:1] if node.op_type == "Resize" else node.input), *node.output)


def _computed(node: NodeProto, op_types: Sequence[str], index: int, constants: Mapping[str, TensorProto]) -> bool:
    if node.op_type not in op_types or len(node.input) <= index or not node.input[index]:
        return False
    return node.input[index] not in constants


def _removal_rule(
    model: ModelProto, recipe: Recipe, constants: Mapping[str, TensorProto]
) -> Callable[[NodeProto], bool]:
    """Rewriters take Relu and Clip out and let the saturation of their input's quantization stand for them.

    That is right only if the input's range becomes the output's, which they do where nothing else reads the input and
    what makes it has a scale of its own, and if that range ends where the activation clips: ranges always contain zero.
    """
    readers: dict[str, int] = defaultdict(int)
    passed_on: set[str] = set()
    for node in model.graph.node:
        for name in node.input:
            readers[name] += 1
        if node.op_type in _PASSING_ON:
            passed_on.update(node.output)
    others = {value.name for value in model.graph.output} | captured_names(model.graph)

    def rule(node: NodeProto) -> bool:
        if node.op_type not in _ACTIVATIONS or recipe.activation_symmetric:
            return False
        tensor = node.input[0]
        if recipe.format == "QOperator" and (readers[tensor] > 1 or tensor in others or tensor in passed_on):
            return True
        return node.op_type == "Clip" and not _clips_around_zero(node, constants)

    return rule


def _clips_around_zero(node: NodeProto, constants: Mapping[str, TensorProto]) -> bool:
    for index, outside in ((1, np.greater), (2, np.less)):
        if len(node.input) > index and node.input[index]:
            bound = constants.get(node.input[index])
            if bound is None or bool(np.any(outside(numpy_helper.to_array(bound), 0.0))):
                return False
    return True
