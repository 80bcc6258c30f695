"""Integer outputs that are quantities (pixels, counts), told from those that are labels (classes, indices).

A pixel that is off by one is nearly right, a class is not. The graph tells them apart: quantities are floating-point
numbers that were rounded at the end, labels come from ArgMax, TopK and the like.
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto, TensorProto

from harness.quantize.graph import attributes_of

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_WHOLE = (TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT16, TensorProto.INT16, TensorProto.INT32,
          TensorProto.UINT32, TensorProto.INT64, TensorProto.UINT64)  # fmt: skip
_MOVES = frozenset(
    {"Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose",
     "Unsqueeze"}
)  # fmt: skip
"""Operators that hand values on as they are."""
_DECIDES = frozenset({"ArgMax", "ArgMin", "Hardmax", "NonMaxSuppression", "NonZero", "OneHot", "TopK", "Unique"})


def quantities(model: ModelProto) -> frozenset[str]:
    """Names of integer outputs that are rounded floating-point numbers; types must be inferred."""
    makers = {name: node for node in model.graph.node for name in node.output if name}
    values = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    kinds = {value.name: value.type.tensor_type.elem_type for value in values}
    kinds.update((tensor.name, tensor.data_type) for tensor in model.graph.initializer)
    whole = [value.name for value in model.graph.output if kinds.get(value.name) in _WHOLE]
    return frozenset(name for name in whole if _is_rounded(name, makers, kinds))


def _is_rounded(name: str, makers: dict[str, NodeProto], kinds: dict[str, int]) -> bool:
    node = makers.get(name)
    while node is not None and node.op_type in _MOVES and name == node.output[0]:
        name = node.input[0]
        node = makers.get(name)
    if node is None or node.op_type != "Cast" or kinds.get(node.input[0]) not in _FLOATS:
        return False
    return attributes_of(node).get("to") in _WHOLE and not _decided(node.input[0], makers)


def _decided(name: str, makers: dict[str, NodeProto]) -> bool:
    """Whether a label was only written as a floating-point number in between."""
    while name in makers:
        node = makers[name]
        if node.op_type in _DECIDES:
            return True
        if node.op_type not in (*_MOVES, "Cast", "Add", "Mul", "Sub"):
            return False
        name = node.input[0]
    return False
