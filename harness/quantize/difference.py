"""Where two models differ, in words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from harness.quantize import graph as graphs
from harness.quantize.model_file import load_model


def first_difference(before: Path, after: Path) -> str:
    """The first difference that matters: nodes, then tensors; empty where only labels or order differ.

    Raises ModelError where a file cannot be read.
    """
    first, second = load_model(before), load_model(after)
    nodes = [[(node.op_type, node.name) for node in graphs.all_nodes(model)] for model in (first, second)]
    for one, other in zip(*nodes, strict=False):
        if one != other:
            return f"node {one[1]!r} ({one[0]}) became {other[1]!r} ({other[0]})"
    if len(nodes[0]) != len(nodes[1]):
        return f"{len(nodes[0])} nodes became {len(nodes[1])}"
    return _tensors(_initializers(first), _initializers(second))


def _initializers(model: ModelProto) -> dict[str, TensorProto]:
    return {tensor.name: tensor for graph in graphs.all_graphs(model.graph) for tensor in graph.initializer}


def _tensors(before: dict[str, TensorProto], after: dict[str, TensorProto]) -> str:
    if before.keys() != after.keys():
        name = sorted(before.keys() ^ after.keys())[0]
        return f"tensor {name!r} is in only one of them"
    unlike = []
    for name, tensor in before.items():
        was, now = numpy_helper.to_array(tensor), numpy_helper.to_array(after[name])
        if was.dtype != now.dtype or was.shape != now.shape or was.tobytes() != now.tobytes():
            unlike.append((name, was, now))
    if not unlike:
        return ""
    name, was, now = unlike[0]
    if was.dtype != now.dtype or was.shape != now.shape:
        detail = f"{was.dtype} {list(was.shape)} became {now.dtype} {list(now.shape)}"
    else:
        wide = [array.astype(np.float64) for array in (was, now)]
        detail = (
            f"{np.count_nonzero(was != now)} of {was.size} values, by {np.max(np.abs(wide[0] - wide[1])):.3g} at most"
        )
    return f"{len(unlike)} of {len(before)} tensors differ, first {name!r}: {detail}"
