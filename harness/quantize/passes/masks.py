"""Tensors that hold masks: minus infinity or a huge constant where attention must not look.

One such value takes the whole range of an 8-bit tensor, and all others become zero. Masks are found from constants,
followed through the graph as far as they reach (calibration samples without padding do not show them), and from
calibrated ranges.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from harness.quantize.graph import all_graphs, attributes_of, captured_names
from harness.recipes.facts import WEIGHTED_OPERATORS

HUGE = 1e4
"""Magnitude of the smallest mask constants in use (BERT's −10 000)."""
IMPOSSIBLE = 1e9
"""No activation that is not a mask reaches it."""
_CARRIES = frozenset(
    {
        "Add", "Sub", "Where", "Concat", "Reshape", "Transpose", "Slice", "Unsqueeze", "Squeeze", "Flatten", "Expand",
        "Tile", "Split", "Identity", "Gather", "GatherElements", "GatherND", "Pad", "Trilu", "ConstantOfShape",
        "ScatterND", "ScatterElements", "Cast", "Dropout",
    }
)  # fmt: skip
"""Operators whose result holds the mask if an operand does, whatever the samples show."""
_BOUNDS = {"Clip": (1, 2), "Resize": (1, 2, 3)}
"""Inputs that say how, and are no part of the result."""

_ENOUGH = 4096
"""Values looked at to tell whether they are all the same."""

Ranges = Mapping[str, tuple[float, float]]


def mask_tensors(model: ModelProto, ranges: Ranges, non_finite: Iterable[str]) -> frozenset[str]:
    """Float tensors of the main graph that hold mask values and must not be quantized.

    ``ranges`` holds what calibration saw (lowest, highest) of finite values; ``non_finite`` names the tensors in which
    it saw others.
    """
    weights = _only_weights(model)
    found = {t.name for t in model.graph.initializer if t.name not in weights and _is_huge_constant(t)}
    found |= {name for name in non_finite if name in ranges}
    found |= {name for name, (low, high) in ranges.items() if max(-low, high) >= IMPOSSIBLE}
    for node in model.graph.node:
        if _reads(node, found) or _makes_mask(node):
            found.update(name for name in node.output if name and _holds(node, name, ranges))
    return frozenset(found)


def _only_weights(model: ModelProto) -> set[str]:
    """Constants that nothing reads but layers, as their weights and biases: one huge value among them is an outlier."""
    read: dict[str, bool] = {}
    for node in model.graph.node:
        for name in node.input:
            read[name] = read.get(name, True) and node.op_type in WEIGHTED_OPERATORS
    seen = {value.name for value in model.graph.output} | captured_names(model.graph)
    return {name for name, weight in read.items() if weight} - seen


def _is_huge_constant(tensor: TensorProto) -> bool:
    if tensor.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16):
        return False
    values = numpy_helper.to_array(tensor).astype(np.float32)
    if not values.size:
        return False
    magnitudes = np.abs(values)
    # Large values of many sizes are weights, badly scaled; a mask has one.
    huge = magnitudes[magnitudes >= HUGE][:_ENOUGH]
    return bool(np.isnan(values).any() or (huge.size and np.unique(huge).size == 1))


def touches(node: NodeProto, tensors: Collection[str]) -> bool:
    """Whether quantizing the node would quantize one of the tensors."""
    return _reads(node, tensors) or any(name in tensors for name in node.output)


def _reads(node: NodeProto, found: Collection[str]) -> bool:
    ignored = _BOUNDS.get(node.op_type, ())
    return any(name in found for index, name in enumerate(node.input) if name and index not in ignored)


def _makes_mask(node: NodeProto) -> bool:
    """A ConstantOfShape of a huge value, or control flow that holds a huge constant."""
    value = attributes_of(node).get("value")
    if isinstance(value, TensorProto) and _is_huge_constant(value):
        return True
    inner = (g for a in node.attribute if a.HasField("g") for g in all_graphs(a.g))
    return any(_is_huge_constant(t) for graph in inner for t in graph.initializer)


def _holds(node: NodeProto, name: str, ranges: Ranges) -> bool:
    if node.op_type in _CARRIES:
        return True
    if name not in ranges:
        # Not a tensor that would be quantized; what comes behind it may be.
        return node.op_type in ("Mul", "Div", "Neg", "Min", "Max", "If", "Loop", "Scan")
    low, high = ranges[name]
    # All zero: a mask that no sample used.
    return max(-low, high) >= HUGE or low == high == 0.0
