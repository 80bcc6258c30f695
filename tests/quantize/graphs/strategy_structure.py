"""Operators that hold graphs, weights of their own shape or other types, for :mod:`strategy`; and what exporters and
people do to a whole model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import onnx
from graph_builder import Array, GraphBuilder
from onnx import ModelProto, TensorProto, helper, numpy_helper

Tensor = tuple[str, tuple[int, ...]]


class Chooser(Protocol):
    def integer(self, low: int, high: int) -> int: ...

    def pick(self, items: Sequence[Any]) -> Any: ...

    def chance(self, percent: int) -> bool: ...


class Maker(Protocol):
    """What :class:`strategy._Generator` offers to operators."""

    c: Chooser
    g: GraphBuilder
    float32: bool
    count: int
    weighted: int

    def _name(self) -> str: ...

    def _constant(self, shape: tuple[int, ...], values: Array | None = None, *, fan: int = 0) -> str: ...

    def _integers(self, values: Sequence[int]) -> str: ...

    def _made(self, name: str, shape: Sequence[int]) -> None: ...


def _info(name: str, shape: Sequence[int] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


# Control flow.


def loop(m: Maker, x: Tensor) -> None:
    """A state multiplied by a weight from outside, then by one of the body's own."""
    name, shape = x
    if not m.float32 or len(shape) < 2 or not all(shape):
        return
    width, number = shape[-1], m.count
    outer = m._constant((width, width), fan=width)
    b = GraphBuilder(m.g.opset, seed=m.c.integer(0, 99))
    h = b.node("MatMul", ["state", outer], "h")
    # Some name inner tensors as other bodies do, some as nobody does.
    prefix = m.c.pick(("", f"l{number}_"))
    t = b.node("Tanh", [h], f"{prefix}t")
    b.node("MatMul", [t, b.weight(f"{prefix}inner", width, width)], "next")
    b.node("Identity", ["go"], "again")
    b.node("Relu", ["next"], "seen")
    inputs = [_info("i", [], TensorProto.INT64), _info("go", [], TensorProto.BOOL), _info("state", shape)]
    scanned = m.c.chance(50)
    outputs = [_info("again", [], TensorProto.BOOL), _info("next", shape), *([_info("seen", shape)] if scanned else [])]
    body = helper.make_graph(b.nodes, "body", inputs, outputs, list(b.constants.values()))
    trips = m.c.integer(1, 3)
    count = m.g.constant(f"trips{number}", np.int64(trips))
    made = [m._name(), *([m._name()] if scanned else [])]
    m.g.node("Loop", [count, "", name], made, body=body)
    m.weighted += 1
    m._made(made[0], shape)
    if scanned and len(shape) < 4:
        m._made(made[1], [trips, *shape])


def scan(m: Maker, x: Tensor) -> None:
    name, shape = x
    if not m.float32 or len(shape) < 2 or len(shape) > 3 or not all(shape):
        return
    rest = shape[1:]
    outer = m._constant((rest[-1], rest[-1]), fan=rest[-1])
    b = GraphBuilder(m.g.opset)
    b.node("Add", ["state", "item"], "sum")
    b.node("MatMul", ["sum", outer], "next")
    b.node("Identity", ["next"], "out")
    inputs, outputs = [[_info(n, rest) for n in pair] for pair in (("state", "item"), ("next", "out"))]
    body = helper.make_graph(b.nodes, "scan", inputs, outputs)
    start = m._constant(rest, np.zeros(rest, np.float32))
    made = [m._name(), m._name()]
    m.g.node("Scan", [start, name], made, body=body, num_scan_inputs=1)
    m.weighted += 1
    m._made(made[0], rest)
    m._made(made[1], shape)


def branch_with_layers(m: Maker, x: Tensor) -> None:
    """Branches with weights and names of their own, alike in both, one with a branch inside."""
    name, shape = x
    if not m.float32 or not shape or not all(shape):
        return
    width, number = shape[-1], m.count

    def deep(seed: int, inside: onnx.GraphProto | None, end: str = "") -> onnx.GraphProto:
        b = GraphBuilder(m.g.opset, seed=seed)
        h = b.node("MatMul", [name, b.weight(f"bw{end}", width, 4)], f"bh{end}")
        if inside is None:
            b.node("Relu", [h], f"bo{end}")
        else:
            inner = {"then_branch": inside, "else_branch": deep(seed + 2, None, "_in")}
            b.node("Add", [h, b.node("If", [f"yes{number}"], "bi", **inner)], f"bo{end}")
        return b.subgraph("b", [f"bo{end}"])

    total = m.g.node("ReduceMean", [name], m._name(), keepdims=0)
    m.g.node("Greater", [total, m.g.constant(f"level{number}", np.float32(-100))], f"yes{number}")
    inner = deep(7, None, "_in") if m.c.chance(40) else None
    y = m.g.node("If", [f"yes{number}"], m._name(), then_branch=deep(1, inner), else_branch=deep(2, None))
    m._made(y, [*shape[:-1], 4])


# Recurrent.


def recurrent(m: Maker, x: Tensor) -> None:
    name, shape = x
    if len(shape) != 3 or not all(shape) or not m.float32:
        return
    steps, batch, width = shape
    kind, gates = m.c.pick((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    directions, hidden = m.c.integer(1, 2), m.c.integer(2, 5)
    inputs = [
        name,
        m._constant((directions, gates * hidden, width), fan=width),
        m._constant((directions, gates * hidden, hidden), fan=hidden),
    ]
    way = m.c.integer(0, 3)
    start = (directions, batch, hidden)
    if way == 1:
        inputs.append(m._constant((directions, 2 * gates * hidden)))
    elif way == 2:
        inputs += ["", "", m._constant(start)]
    elif way == 3:
        lengths = m.g.constant(f"len{m.count}", np.full(batch, max(1, steps - 1)), np.int32)
        inputs += [m._constant((directions, 2 * gates * hidden)), lengths, m._constant(start)]
    outputs = [m._name(), *m.c.pick(((), ("",), (m._name(),)))]
    options: dict[str, Any] = {"hidden_size": hidden}
    if directions == 2:
        options["direction"] = "bidirectional"
    elif m.c.chance(30):
        options["direction"] = "reverse"
    if kind == "GRU" and m.c.chance(60):
        options["linear_before_reset"] = 1
    m.g.node(kind, inputs, outputs, **options)
    m.weighted += 1
    turned = m.g.node("Transpose", [outputs[0]], m._name(), perm=[0, 2, 1, 3])
    flat = m.g.node("Reshape", [turned, m._integers([steps, batch, directions * hidden])], m._name())
    m._made(flat, [steps, batch, directions * hidden])
    if len(outputs) > 1 and outputs[1]:
        m._made(outputs[1], start)


# Attention.


def heads(m: Maker, x: Tensor) -> None:
    """Attention in two heads as transformers are exported, with a mask by one of the usual ways."""
    name, shape = x
    if len(shape) != 3 or shape[-1] % 2 or not all(shape):
        return
    rows, width = shape[1], shape[2]
    parts = []
    for which in "qkv":
        h = m.g.node("MatMul", [name, m._constant((width, width), fan=width)], m._name())
        h = m.g.node("Add", [h, m._constant((width,))] if m.c.chance(70) else [m._constant((width,)), h], m._name())
        h = m.g.node("Reshape", [h, m._integers([0, 0, 2, width // 2])], m._name())
        parts.append(m.g.node("Transpose", [h], m._name(), perm=[0, 2, 3, 1] if which == "k" else [0, 2, 1, 3]))
    score = m.g.node("MatMul", parts[:2], m._name())
    score = m.g.node("Div", [score, m._constant((), np.float32(np.sqrt(width / 2)))], m._name())
    upper = np.triu(np.ones((rows, rows), np.bool_), 1)
    value = np.float32(m.c.pick((-np.inf, np.finfo(np.float32).min, -1e9, -1e4)) if m.float32 else -1e4)
    way = m.c.integer(0, 2)
    if way == 1:
        score = m.g.node("Add", [score, m._constant((rows, rows), np.where(upper, value, np.float32(0)))], m._name())
    elif way == 2:
        mask = m.g.constant(f"hidden{m.count}", upper)
        score = m.g.node("Where", [mask, m._constant((), value), score], m._name())
    weights = m.g.node("Softmax", [score], m._name(), axis=-1)
    mixed = m.g.node("MatMul", [weights, parts[2]], m._name())
    mixed = m.g.node("Transpose", [mixed], m._name(), perm=[0, 2, 1, 3])
    mixed = m.g.node("Reshape", [mixed, m._integers([0, 0, width])], m._name())
    m._made(m.g.node("MatMul", [mixed, m._constant((width, width), fan=width)], m._name()), shape)
    m.weighted += 1


def attention_operator(m: Maker, x: Tensor) -> None:
    name, shape = x
    if m.g.opset < 23 or len(shape) != 3 or shape[-1] % 2 or not all(shape) or not m.float32:
        return
    width = shape[-1]
    parts = [m.g.node("MatMul", [name, m._constant((width, width), fan=width)], m._name()) for _ in "qkv"]
    m._made(m.g.node("Attention", parts, m._name(), q_num_heads=2, kv_num_heads=2), shape)


def einsum(m: Maker, x: Tensor) -> None:
    name, shape = x
    if len(shape) != 3 or not all(shape) or m.g.opset < 12:
        return
    weight = m._constant((shape[-1], 4), fan=shape[-1])
    y = m.g.node("Einsum", [name, weight], m._name(), equation="bij,jk->bik")
    m._made(m.g.node("Einsum", [y, y], m._name(), equation="bik,bjk->bij"), [*shape[:2], shape[1]])


# Other types, other domains.


def island(m: Maker, x: Tensor) -> None:
    """A layer in another floating-point type."""
    name, shape = x
    if not shape or not all(shape) or m.g.opset < 9:
        return
    kind, dtype = m.c.pick(((TensorProto.DOUBLE, np.float64), (TensorProto.FLOAT16, np.float16)))
    if kind == m.g.float_type:
        return
    values = (m.g.random.standard_normal((shape[-1], 4)) / np.sqrt(shape[-1])).astype(dtype)
    weight = m.g.constant(f"other{m.count}", values, dtype)
    h = m.g.node("Cast", [name], m._name(), to=kind)
    h = m.g.node("MatMul", [h, weight], m._name())
    m._made(m.g.node("Cast", [h], m._name(), to=m.g.float_type), [*shape[:-1], 4])
    m.weighted += 1


def microsoft(m: Maker, x: Tensor) -> None:
    name, shape = x
    if not m.float32 or len(shape) < 2 or not all(shape):
        return
    width = shape[-1]
    kind = m.c.pick(("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "FusedMatMul", "SkipLayerNormalization"))
    inputs, options, made = [name], {}, list(shape)
    if kind == "BiasGelu":
        inputs.append(m._constant((width,)))
    elif kind == "FusedMatMul":
        inputs.append(m._constant((5, width), fan=width))
        options = {"transB": 1, "alpha": 0.5}
        made[-1] = 5
        m.weighted += 1
    elif kind == "SkipLayerNormalization":
        if len(shape) != 3 or width < 2:
            return
        inputs += [name, m._constant((width,), np.ones(width, np.float32)), m._constant((width,))]
    m._made(m.g.node(kind, inputs, m._name(), domain="com.microsoft", **options), made)


# Selection.


def select(m: Maker, x: Tensor) -> None:
    """TopK, with its indices read again."""
    name, shape = x
    if not shape or not all(shape) or m.g.opset < 11:
        return
    axis = m.c.integer(0, len(shape) - 1)
    keep = m.c.integer(1, shape[axis])
    values, indices = m._name(), f"index{m.count}"
    m.g.node("TopK", [name, m._integers([keep])], [values, indices], axis=axis)
    made = [keep if i == axis else s for i, s in enumerate(shape)]
    m._made(values, made)
    if m.c.chance(40):
        m._made(m.g.node("GatherElements", [name, indices], m._name(), axis=axis), made)


def scatter(m: Maker, x: Tensor) -> None:
    name, shape = x
    if not shape or not all(shape) or m.g.opset < 13:
        return
    update = m._constant((1, *shape[1:]))
    place = m.g.constant(f"place{m.count}", np.array([[shape[0] - 1]], np.int64))
    m._made(m.g.node("ScatterND", [name, place, update], m._name()), shape)


def pad_axes(m: Maker, x: Tensor) -> None:
    name, shape = x
    if m.g.opset < 18 or not shape or not all(shape):
        return
    axis = m.c.integer(0, len(shape) - 1)
    inputs = [name, m._integers([1, 0]), "", m._integers([axis - (len(shape) if m.c.chance(50) else 0)])]
    made = [s + (i == axis) for i, s in enumerate(shape)]
    m._made(m.g.node("Pad", inputs, m._name(), mode=m.c.pick(("constant", "edge"))), made)


STRUCTURE: tuple[Callable[[Any, Tensor], None], ...] = (
    loop, scan, branch_with_layers, recurrent, recurrent, heads, heads, attention_operator, einsum, island, microsoft,
    select, scatter, pad_axes,
)  # fmt: skip
OLD_STRUCTURE: tuple[Callable[[Any, Tensor], None], ...] = (recurrent, island)


# The whole model.


def mangled(model: ModelProto, c: Chooser) -> ModelProto:
    """The model as an unusual exporter would have written it; what it computes stays the same."""
    for what in (_strange_names, _unnamed, _out_of_order, _repeated, _listed, _both_domains, _sparse, _twice):
        if c.chance(8):
            what(model, c)
    return model


_ODD = ("层/{}:0 é", "/model/block.{}/out_0", "{}" * 400, " {} ", "../{}", "{}_quantized", "{}_scale", "%s{}")


def _strange_names(model: ModelProto, c: Chooser) -> None:
    """One way of writing all names of the main graph's computed tensors and constants."""
    if any(attribute.HasField("g") for node in model.graph.node for attribute in node.attribute):
        return
    form = c.pick(_ODD)
    inputs = {value.name for value in model.graph.input}

    def named(name: str) -> str:
        return name if not name or name in inputs else form.replace("{}", name)

    for node in model.graph.node:
        node.name = named(node.name)
        for field in (node.input, node.output):
            for index, name in enumerate(field):
                field[index] = named(name)
    for item in (*model.graph.initializer, *model.graph.output, *model.graph.value_info):
        item.name = named(item.name)


def _unnamed(model: ModelProto, c: Chooser) -> None:
    for node in model.graph.node:
        node.name = ""


def _out_of_order(model: ModelProto, c: Chooser) -> None:
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))


def _repeated(model: ModelProto, c: Chooser) -> None:
    if model.graph.initializer:
        model.graph.initializer.append(model.graph.initializer[0])


def _listed(model: ModelProto, c: Chooser) -> None:
    """Initializers as inputs with a default value."""
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and c.chance(50):
            model.graph.input.append(_info(tensor.name, list(tensor.dims)))


def _both_domains(model: ModelProto, c: Chooser) -> None:
    version = next(o.version for o in model.opset_import if not o.domain)
    model.opset_import.append(helper.make_opsetid("ai.onnx", version))


def _sparse(model: ModelProto, c: Chooser) -> None:
    listed = {value.name for value in (*model.graph.input, *model.graph.output)}
    matrices = [t for t in model.graph.initializer if len(t.dims) == 2 and t.data_type == TensorProto.FLOAT]
    for tensor in [t for t in matrices if t.name not in listed and t.ByteSize()][:1]:
        values = numpy_helper.to_array(tensor).copy()
        places = np.flatnonzero(values)
        kept = numpy_helper.from_array(values.ravel()[places], tensor.name)
        indices = numpy_helper.from_array(places.astype(np.int64), f"{tensor.name}_places")
        if sum(t.name == tensor.name for t in model.graph.initializer) == 1 and places.size:
            model.graph.sparse_initializer.append(helper.make_sparse_tensor(kept, indices, list(tensor.dims)))
            model.graph.initializer.remove(tensor)


def _twice(model: ModelProto, c: Chooser) -> None:
    model.graph.output.append(model.graph.output[0])
