"""Quantizer groups: operators of a static recipe that change their precision together.

An operator is tied to what cannot be told apart from it: the Relu or Clip that is fused into it, operators that only
move values and so take over their input's scale, operators that read the same quantized weights, and, where the recipe
aligns scales, what feeds an aligned operator. An activation that several operators read ties nothing: it stays
quantized as long as one of them is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from onnx import ModelProto, NodeProto, TensorProto

from harness.quantize.graph import captured_names, initializers_of
from harness.quantize.static import quantizable_types
from harness.quantize.static_recipe import ReadyStatic
from harness.recipes.facts import WEIGHTED_OPERATORS
from harness.recipes.mixed import QuantizerGroup

_FUSED = ("Clip", "Relu")
_MOVING = (
    "AveragePool", "DepthToSpace", "Expand", "Flatten", "Gather", "MaxPool", "Pad", "Reshape", "Resize", "Slice",
    "SpaceToDepth", "Split", "Squeeze", "Transpose", "Unsqueeze",
)  # fmt: skip
"""What ONNX Runtime's rewriters give the scale of the input (``QDQDirect8BitOp``, ``QDQMaxPool``, ``QDQSplit`` ...)."""
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


def quantizer_groups(ready: ReadyStatic) -> tuple[QuantizerGroup, ...]:
    """Groups of the nodes that ``ready``'s recipe quantizes, in the model's order. Each such node is in one group."""
    model = ready.subject.model
    left = {*ready.excluded, *ready.left_in_float()}
    types = set(quantizable_types(ready.recipe))
    nodes = [node for node in model.graph.node if node.op_type in types and node.name not in left]
    ties = _Ties(node.name for node in nodes)
    writers = {output: node for node in nodes for output in node.output if output}
    _tie_followers(model, nodes, writers, ties)
    _tie_shared_weights(model, nodes, ties)
    for node in nodes:
        if node.op_type in ready.recipe.align_scales:
            for name in node.input:
                if name in writers:
                    ties.tie(node.name, writers[name].name)
    members: dict[str, list[NodeProto]] = {}
    for node in nodes:
        members.setdefault(ties.head(node.name), []).append(node)
    return tuple(_group(group, ready) for group in members.values())


class _Ties:
    """Disjoint sets of names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._above = {name: name for name in names}

    def head(self, name: str) -> str:
        while self._above[name] != name:
            self._above[name] = self._above[self._above[name]]
            name = self._above[name]
        return name

    def tie(self, one: str, other: str) -> None:
        self._above[self.head(one)] = self.head(other)


def _tie_followers(model: ModelProto, nodes: Iterable[NodeProto], writers: dict[str, NodeProto], ties: _Ties) -> None:
    reads = Counter(name for node in model.graph.node for name in node.input)
    seen = {value.name for value in model.graph.output} | captured_names(model.graph)
    for node in nodes:
        source = node.input[0]
        if source not in writers:
            continue
        fused = node.op_type in _FUSED and reads[source] == 1 and source not in seen
        if fused or node.op_type in _MOVING:
            ties.tie(node.name, writers[source].name)


def _tie_shared_weights(model: ModelProto, nodes: Iterable[NodeProto], ties: _Ties) -> None:
    """A number on its own ties nothing: it is the same under any scale made for it."""
    weights = {
        name: tensor
        for name, tensor in initializers_of(model.graph).items()
        if tensor.data_type in _FLOATS and list(tensor.dims) not in ([], [1])
    }
    first: dict[str, str] = {}
    for node in nodes:
        for name in node.input:
            if name in weights:
                ties.tie(node.name, first.setdefault(name, node.name))


def _group(nodes: list[NodeProto], ready: ReadyStatic) -> QuantizerGroup:
    weighted = [node.name for node in nodes if node.op_type in WEIGHTED_OPERATORS]
    touched = dict.fromkeys(name for node in nodes for name in (*node.input, *node.output) if name in ready.ranges)
    return QuantizerGroup(
        name=(weighted or [nodes[0].name])[0],
        nodes=tuple(node.name for node in nodes),
        op_types=tuple(node.op_type for node in nodes),
        activations=tuple(touched),
    )
