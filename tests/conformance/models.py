"""Small models that each show one behaviour of a runtime."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET, IR = 17, 8
EXAMPLE = Path(__file__).parents[2] / "examples" / "fashion_mnist" / "model.onnx"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def save(path: Path, nodes, inputs, outputs, initializers=()) -> Path:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
    onnx.save(model, path)
    return path


def value(name: str, shape, kind: int = TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def affine(path: Path, batch: int | str = "n", slope: float = 3.0) -> Path:
    """``y = slope * x + 1`` for float32 [batch, 4]."""
    tensors = [
        numpy_helper.from_array(np.float32(slope), "slope"),
        numpy_helper.from_array(np.ones(4, np.float32), "one"),
    ]
    nodes = [
        helper.make_node("Mul", ["x", "slope"], ["scaled"], name="mul"),
        helper.make_node("Add", ["scaled", "one"], ["y"], name="add"),
    ]
    return save(path, nodes, [value("x", [batch, 4])], [value("y", [batch, 4])], tensors)


def two_inputs(path: Path) -> Path:
    """``total = a + b`` (int64 [n, 2]) and ``count``, the number of elements of ``a``: an output without batch axis."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["total"], name="add"),
        helper.make_node("Size", ["a"], ["count"], name="size"),
    ]
    kind = TensorProto.INT64
    inputs = [value("a", ["n", 2], kind), value("b", ["n", 2], kind)]
    return save(path, nodes, inputs, [value("total", ["n", 2], kind), value("count", [], kind)])


def positives(path: Path) -> Path:
    """Indices of the positive elements of x [1, 4]: an output whose shape depends on the values."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("NonZero", ["r"], ["where"], name="nonzero"),
    ]
    return save(path, nodes, [value("x", [1, 4])], [value("where", [2, "k"], TensorProto.INT64)])


def crashing(path: Path) -> Path:
    """Passes the checker, loads, and segfaults in ``InferenceSession.run`` of ONNX Runtime up to 1.32 at least."""
    weight = numpy_helper.from_array(np.ones((4, 1, 1, 1), np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Split", ["c"], ["s1", ""], name="split", axis=1),
    ]
    return save(path, nodes, [value("x", [1, 1, 4, 4])], [value("s1", [1, 2, 4, 4])], [weight])


def endless(path: Path) -> Path:
    """Counts to 2^62: a model that loads at once and never ends."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["still_going"]),
            helper.make_node("Add", ["sum", "x"], ["next_sum"]),
        ],
        "body",
        [
            value("i", [], TensorProto.INT64),
            value("going", [], TensorProto.BOOL),
            value("sum", [1, 4]),
        ],
        [value("still_going", [], TensorProto.BOOL), value("next_sum", [1, 4])],
    )
    tensors = [
        numpy_helper.from_array(np.int64(2**62), "trips"),
        numpy_helper.from_array(np.bool_(True), "yes"),
    ]
    nodes = [helper.make_node("Loop", ["trips", "yes", "x"], ["y"], name="loop", body=body)]
    return save(path, nodes, [value("x", [1, 4])], [value("y", [1, 4])], tensors)


def hungry(path: Path) -> Path:
    """Makes an array as large as its input says."""
    zero = numpy_helper.from_array(np.zeros(1, np.float32))
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["big"], name="make", value=zero),
        helper.make_node("ReduceSum", ["big"], ["y"], name="sum", keepdims=0),
    ]
    return save(path, nodes, [value("shape", [1], TensorProto.INT64)], [value("y", [])])


def unknown_operator(path: Path) -> Path:
    node = helper.make_node("NoSuchOperator", ["x"], ["y"], name="odd")
    return save(path, [node], [value("x", [1, 4])], [value("y", [1, 4])])


def unimplemented_type(path: Path) -> Path:
    """A known operator with a type no CPU kernel has: Conv of doubles."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    kind = TensorProto.DOUBLE
    inputs = [value("x", [1, 1, 4, 4], kind), value("w", [1, 1, 1, 1], kind)]
    return save(path, [node], inputs, [value("y", [1, 1, 4, 4], kind)])
