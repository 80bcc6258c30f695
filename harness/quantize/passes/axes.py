"""Newer forms of operators in their older ones, which mean the same.

ONNX Runtime moves convolutions to channels-last by pushing transpositions through the graph, and forgets that a Pad or
Resize (both from opset 18 on) may say which axes it is about; its quantized AveragePool does not know ``dilations``
(from opset 19 on), even if they are 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, NodeProto, numpy_helper

from harness.quantize.graph import (
    DEFAULT_DOMAINS,
    attributes_of,
    drop_attribute,
    free_name,
    initializers_of,
    tensor_names,
)

Shapes = Mapping[str, list[int | None]]
Add = Callable[[str, npt.NDArray[np.generic]], str]
"""Adds a constant; returns its name."""


def name_every_axis(model: ModelProto) -> None:
    """Rewrites nodes of the main graph in place, where shapes are known as far as is needed."""
    shapes = _shapes(model.graph)
    taken = tensor_names(model)
    known = {name: numpy_helper.to_array(tensor) for name, tensor in initializers_of(model.graph).items()
             if len(tensor.dims) <= 1 and (not tensor.dims or tensor.dims[0] <= _LONGEST)}  # fmt: skip

    def add(wanted: str, value: npt.NDArray[np.generic]) -> str:
        name = free_name(wanted, taken)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    for node in model.graph.node:
        if node.domain not in DEFAULT_DOMAINS or not node.input:
            continue
        shape = shapes.get(node.input[0])
        if node.op_type == "Pad" and len(node.input) > 3 and shape is not None:
            _pad(node, known, len(shape), add)
        elif node.op_type == "Resize" and "axes" in attributes_of(node) and shape is not None:
            _resize(node, known, shape, add)
        elif node.op_type == "AveragePool" and set(attributes_of(node).get("dilations", (0,))) == {1}:
            drop_attribute(node, "dilations")


_LONGEST = 64
"""Elements of the constants that say how: two for each axis."""


def _shapes(graph: GraphProto) -> Shapes:
    found: dict[str, list[int | None]] = {}
    for value in (*graph.value_info, *graph.input, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            found[value.name] = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
    return found


def _pad(node: NodeProto, known: Mapping[str, npt.NDArray[np.generic]], rank: int, add: Add) -> None:
    pads, axes = known.get(node.input[1]), known.get(node.input[3])
    if pads is None or axes is None:
        return
    every = np.zeros(2 * rank, dtype=np.int64)
    for place, axis in enumerate(axes.ravel().tolist()):
        every[axis % rank] = pads[place]
        every[axis % rank + rank] = pads[place + axes.size]
    node.input[1] = add(f"{node.input[1]}_of_every_axis", every)
    del node.input[3:]
    if not node.input[2]:
        del node.input[2:]


def _resize(node: NodeProto, known: Mapping[str, npt.NDArray[np.generic]], shape: list[int | None], add: Add) -> None:
    attributes = attributes_of(node)
    index = 3 if len(node.input) > 3 and node.input[3] else 2
    given = known.get(node.input[index]) if len(node.input) > index else None
    if given is None or attributes.get("coordinate_transformation_mode") == b"tf_crop_and_resize":
        return
    axes = [axis % len(shape) for axis in attributes["axes"]]
    asked = dict(zip(axes, given.ravel().tolist(), strict=True))
    policy = attributes.get("keep_aspect_ratio_policy", b"stretch")
    if index == 2 or policy == b"stretch":
        every: list[float | None] = [asked.get(axis, size if index == 3 else 1.0) for axis, size in enumerate(shape)]
        if None in every:
            return
        node.input[index] = add(f"{node.input[index]}_of_every_axis", np.array(every, dtype=given.dtype))
    else:
        scales = _scales_by_policy(asked, shape, smallest=policy == b"not_larger")
        if scales is None:
            return
        node.input[2] = add(f"{node.input[3]}_as_scales", scales)
        del node.input[3:]
        drop_attribute(node, "keep_aspect_ratio_policy")
    drop_attribute(node, "axes")


def _scales_by_policy(
    asked: Mapping[int, int], shape: list[int | None], *, smallest: bool
) -> npt.NDArray[np.float32] | None:
    """One scale for all the axes asked for; ``None`` where sizes would be rounded otherwise than from scales."""
    sizes = {axis: shape[axis] for axis in asked}
    ratios = [asked[axis] / size for axis, size in sizes.items() if size]
    if len(ratios) < len(asked):
        return None
    scale = min(ratios) if smallest else max(ratios)
    if any(not float(scale * size).is_integer() for size in sizes.values() if size):
        return None
    return np.array([scale if axis in asked else 1.0 for axis in range(len(shape))], dtype=np.float32)
