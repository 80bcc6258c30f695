"""Random small graphs, of the kind that exporters make and of the kind that nobody expects.

Choices come from a :class:`Chooser`, so that hypothesis can shrink them and a benchmark can count through seeds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from graph_builder import Array, GraphBuilder, calibration_of
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper
from strategy_structure import OLD_STRUCTURE, STRUCTURE, mangled

T = TypeVar("T")
Tensor = tuple[str, tuple[int, ...]]
"""Name and shape of a float tensor."""


class Chooser(Protocol):
    def integer(self, low: int, high: int) -> int: ...

    def pick(self, items: Sequence[T]) -> T: ...

    def chance(self, percent: int) -> bool: ...


class SeededChooser:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def pick(self, items: Sequence[T]) -> T:
        return self._random.choice(items)

    def chance(self, percent: int) -> bool:
        return self._random.randrange(100) < percent


class DrawnChooser:
    def __init__(self, draw: Callable[..., Any]) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return int(self._draw(st.integers(low, high)))

    def pick(self, items: Sequence[T]) -> T:
        found: T = self._draw(st.sampled_from(items))
        return found

    def chance(self, percent: int) -> bool:
        return bool(self._draw(st.integers(0, 99)) >= 100 - percent)


@dataclass(frozen=True)
class Generated:
    model: ModelProto
    data: dict[str, Array]
    """Calibration arrays, samples first."""


@st.composite
def small_graphs(draw: Callable[..., Any]) -> Generated:
    return generate(DrawnChooser(draw))


def generate(chooser: Chooser) -> Generated:
    return _Generator(chooser).generate()


_STRANGE = ("x_scale", "x_zero_point", "x_quantized", "x_QuantizeLinear_Output", "x_DequantizeLinear_Output", "w_scale",
            "w_quantized", "b1", "a/b:0", "x_QuantizeLinear_Input", "y_scale")  # fmt: skip


class _Generator:
    def __init__(self, chooser: Chooser) -> None:
        self.c = chooser
        opset = chooser.pick((13, 14, 15, 16, 17, 17, 17, 18, 19, 20, 21, 22, 23, 7, 8, 9, 10, 11, 12))
        kind = chooser.pick((TensorProto.FLOAT,) * 20 + (TensorProto.FLOAT16, TensorProto.FLOAT16, TensorProto.DOUBLE))
        self.g = GraphBuilder(opset, chooser.integer(0, 10_000), kind)
        self.float32 = kind == TensorProto.FLOAT
        self.modern = opset >= 13
        self.tensors: list[Tensor] = []
        self.read: set[str] = set()
        self.shared: dict[tuple[int, ...], list[str]] = {}
        self.count = 0
        self.weighted = 0
        self.constants = 0

    def generate(self) -> Generated:
        for index in range(self.c.pick((1, 1, 1, 2, 3))):
            shape = self.c.pick(((1, 4, 8, 8), (1, 6, 5, 5), (2, 5, 8), (1, 7, 6), (4, 8), (1, 6), (8,), (1, 4, 10)))
            self.tensors.append((self.g.input("x" if not index else f"x{index}", *shape), shape))
        wanted = self.c.integer(2, 10)
        for _ in range(60):
            if self.count >= wanted and self.weighted:
                break
            self._step()
        if not self.weighted:
            self.tensors.append(self.tensors[0])
            _matmul(self, self.tensors[0])
            self.read.add(self.tensors[0][0])
        self._outputs()
        model = self.g.model()
        return Generated(mangled(model, self.c), calibration_of(model, samples=8, seed=self.c.integer(0, 99)))

    # Choosing.

    def _source(self) -> Tensor:
        """One of the last tensors mostly."""
        recent = self.tensors[-3:] if self.c.chance(70) else self.tensors
        found = self.c.pick(recent)
        self.read.add(found[0])
        return found

    def _name(self) -> str:
        self.count += 1
        if self.c.chance(4):
            name = self.c.pick(_STRANGE)
            if name not in self.g.constants and all(name not in node.output for node in self.g.nodes):
                return name
        return f"t{self.count}"

    def _constant(self, shape: tuple[int, ...], values: Array | None = None, *, fan: int = 0) -> str:
        """A constant of its own, or one that is there already; in one of the ways exporters write them."""
        if values is None and shape in self.shared and self.c.chance(30):
            return self.c.pick(self.shared[shape])
        if values is None:
            values = self.g.random.standard_normal(shape).astype(np.float32)
            values = values / np.float32(np.sqrt(fan)) if fan else values * np.float32(0.5)
            if self.c.chance(20) and len(shape) > 1:
                # Channels of very different size.
                spread = np.logspace(-2, 0, shape[0]).astype(np.float32)
                values = values * spread.reshape(-1, *[1] * (len(shape) - 1))
        self.constants += 1
        name = f"k{self.constants}"
        way = self.c.integer(0, 19)
        array = np.asarray(values, np.float32)
        if way == 0 and self.float32:
            self.g.node("Constant", [], name, value=helper.make_tensor("v", 1, shape, array.ravel()))
        elif way == 1 and self.float32:
            half = self.g.constant(f"{name}_half", array, np.float16)
            self.g.node("Cast", [half], name, to=TensorProto.FLOAT)
        elif way == 2:
            self.g.node("Identity", [self.g.constant(f"{name}_id", array)], name)
        elif way == 3 and len(shape) == 2:
            self.g.node("Transpose", [self.g.constant(f"{name}_t", np.ascontiguousarray(array.T))], name, perm=[1, 0])
        else:
            self.g.constant(name, array)
        self.shared.setdefault(shape, []).append(name)
        return name

    def _integers(self, values: Sequence[int]) -> str:
        self.constants += 1
        return self.g.constant(f"i{self.constants}", list(values), np.int64)

    def _made(self, name: str, shape: Sequence[int]) -> None:
        self.tensors.append((name, tuple(shape)))

    # Operators.

    def _step(self) -> None:
        if self.c.chance(35):
            self._layer()
        else:
            if self.c.chance(25):
                choices = STRUCTURE if self.modern else OLD_STRUCTURE
            else:
                choices = _MODERN if self.modern else _OLD
            self.c.pick(choices)(self, self._source())

    def _layer(self) -> None:
        x = self._source()
        rank = len(x[1])
        if not all(x[1]):
            return
        if rank == 4:
            self.c.pick((_conv, _conv, _conv_transpose))(self, x)
        elif rank == 2:
            self.c.pick((_gemm, _gemm, _matmul, _matmul_first))(self, x)
        elif rank == 3:
            self.c.pick((_matmul, _matmul, _conv, _matmul_first, _batched_matmul, _lstm))(self, x)
        elif rank == 1:
            _matmul(self, x)

    def _outputs(self) -> None:
        computed = [(n, s) for n, s in self.tensors if any(n in node.output for node in self.g.nodes)]
        ends = [name for name, _ in computed if name not in self.read]
        outputs = ends[-4:] or [computed[-1][0]]
        if self.c.chance(25):
            outputs.append(self.c.pick([name for name, _ in computed]))
        if self.c.chance(3):
            outputs.append(self.tensors[0][0])
        plain = [name for name in self.g.constants if name.startswith("k") and name in self.g.constants]
        if self.c.chance(3) and plain:
            outputs.append(self.c.pick(plain))
        types = {n: t.data_type for n, t in self.g.constants.items()}
        for name in dict.fromkeys(outputs):
            self.g.output(name, type=types.get(name, self.g.float_type))


Operator = Callable[[_Generator, Tensor], None]


def _conv(m: _Generator, x: Tensor) -> None:
    name, shape = x
    channels, space = shape[1], shape[2:]
    group = m.c.pick([1, 1, channels, *([2] if channels % 2 == 0 else [])])
    out = group * m.c.integer(1, 3 if group > 1 else 6)
    size = min(m.c.pick((1, 3, 3)), *space)
    weight = m._constant((out, channels // group, *[size] * len(space)), fan=channels // group * size ** len(space))
    inputs = [name, weight]
    if m.c.chance(70):
        inputs.append(m._constant((out,)))
    elif m.c.chance(10):
        inputs.append("")
    pad = size // 2 if m.c.chance(60) else 0
    y = m.g.node("Conv", inputs, m._name(), group=group, pads=[pad] * (2 * len(space)))
    m.weighted += 1
    m._made(y, [shape[0], out, *(s + 2 * pad - size + 1 for s in space)])


def _conv_transpose(m: _Generator, x: Tensor) -> None:
    name, shape = x
    channels, space = shape[1], shape[2:]
    group = m.c.pick([1, 1, channels, *([2] if channels % 2 == 0 else [])])
    per_group = m.c.integer(1, 3)
    size = m.c.pick((1, 2, 3))
    inputs = [name, m._constant((channels, per_group, size, size), fan=channels // group * size)]
    if m.c.chance(60):
        inputs.append(m._constant((per_group * group,)))
    y = m.g.node("ConvTranspose", inputs, m._name(), group=group)
    m.weighted += 1
    m._made(y, [shape[0], per_group * group, *(s + size - 1 for s in space)])


def _gemm(m: _Generator, x: Tensor) -> None:
    name, (rows, columns) = x
    options: dict[str, Any] = {}
    if m.c.chance(15):
        rows, columns = columns, rows
        options["transA"] = 1
    out = m.c.integer(1, 8)
    turned = m.c.chance(40)
    options["transB"] = int(turned)
    if m.c.chance(15):
        options["alpha"] = m.c.pick((0.5, 2.0))
    inputs = [name, m._constant((out, columns) if turned else (columns, out), fan=columns)]
    if m.c.chance(75) or m.g.opset < 11:
        inputs.append(m._constant(m.c.pick(((out,), (out,), (out,), (1, out), (1,), (), (rows, out), (rows, 1)))))
        if m.c.chance(15):
            options["beta"] = m.c.pick((0.0, 0.5, 2.0))
    y = m.g.node("Gemm", inputs, m._name(), **options)
    m.weighted += 1
    m._made(y, [rows, out])


def _matmul(m: _Generator, x: Tensor) -> None:
    name, shape = x
    if m.c.chance(12):
        y = m.g.node("MatMul", [name, m._constant(shape[-1:], fan=shape[-1])], m._name())
        m._made(y, shape[:-1])
    else:
        out = m.c.integer(1, 8)
        y = m.g.node("MatMul", [name, m._constant((shape[-1], out), fan=shape[-1])], m._name())
        m._made(y, [*shape[:-1], out])
    m.weighted += 1


def _batched_matmul(m: _Generator, x: Tensor) -> None:
    name, shape = x
    weight = m._constant((*shape[:-2], shape[-1], 4), fan=shape[-1])
    m._made(m.g.node("MatMul", [name, weight], m._name()), [*shape[:-1], 4])
    m.weighted += 1


def _matmul_first(m: _Generator, x: Tensor) -> None:
    name, shape = x
    out = m.c.integer(1, 6)
    y = m.g.node("MatMul", [m._constant((out, shape[-2]), fan=shape[-2]), name], m._name())
    m._made(y, [*shape[:-2], out, shape[-1]])
    m.weighted += 1


def _lstm(m: _Generator, x: Tensor) -> None:
    name, (steps, batch, width) = x
    weights = [m._constant((1, 12, width), fan=width), m._constant((1, 12, 3), fan=3)]
    outputs = [m._name(), *([""] if m.c.chance(50) else [])]
    m.g.node("LSTM", [name, *weights, *([m._constant((1, 24))] if m.c.chance(50) else [])], outputs, hidden_size=3)
    m.weighted += 1
    m._made(outputs[0], [steps, 1, batch, 3])


def _attend(m: _Generator, x: Tensor) -> None:
    """x·xᵀ, masked or not, Softmax, times x."""
    name, shape = x
    if len(shape) < 2 or not all(shape):
        return
    order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    turned = m.g.node("Transpose", [name], m._name(), perm=order)
    score = m.g.node("MatMul", [name, turned], m._name())
    score = m.g.node("Mul", [score, m._constant((), np.float32(1 / np.sqrt(shape[-1])))], m._name())
    rows = shape[-2]
    upper = np.triu(np.ones((rows, rows), np.bool_), 1)
    value = np.float32(m.c.pick((-np.inf, -1e9, -6e4, -1e4)) if m.float32 else -1e4)
    way = m.c.integer(0, 3)
    if way == 0:
        score = m.g.node("Add", [score, m._constant((rows, rows), np.where(upper, value, np.float32(0)))], m._name())
    elif way == 1 and m.modern:
        mask = m.g.constant(f"mask{m.count}", upper)
        score = m.g.node("Where", [mask, m._constant((), value), score], m._name())
    weights = m.g.node("Softmax", [score], m._name(), axis=len(shape) - 1)
    m._made(m.g.node("MatMul", [weights, name], m._name()), shape)


def _with_constant(m: _Generator, x: Tensor) -> None:
    name, shape = x
    kind = m.c.pick(("Add", "Mul", "Sub", "Add", "Mul", "Div", "Min", "Max") if m.modern else ("Add", "Mul", "Sub"))
    choices: list[tuple[int, ...]] = [(), (1,), shape]
    if shape:
        choices.append(shape[-1:])
    if len(shape) == 4:
        choices.append((1, shape[1], 1, 1))
    chosen = m.c.pick(choices)
    if kind == "Div":
        constant = m._constant(chosen, m.g.random.uniform(0.5, 2.0, chosen).astype(np.float32))
    else:
        constant = m._constant(chosen)
    operands = [name, constant] if kind == "Div" or m.c.chance(75) else [constant, name]
    m._made(m.g.node(kind, operands, m._name()), np.broadcast_shapes(shape, chosen))


def _with_other(m: _Generator, x: Tensor) -> None:
    name, shape = x
    others = [n for n, s in m.tensors if s == shape]
    other = m.c.pick(others)
    m.read.add(other)
    m._made(m.g.node(m.c.pick(("Add", "Mul", "Sub")), [name, other], m._name()), shape)


def _activation(m: _Generator, x: Tensor) -> None:
    kinds = [
        "Relu",
        "Relu",
        "Relu",
        "Relu",
        "Sigmoid",
        "Sigmoid",
        "Tanh",
        "LeakyRelu",
        "Elu",
        "Softplus",
        "HardSigmoid",
    ]
    if m.g.opset >= 14:
        kinds.append("HardSwish")
    if m.g.opset >= 20:
        kinds.append("Gelu")
    m._made(m.g.node(m.c.pick(kinds), [x[0]], m._name()), x[1])


def _clip(m: _Generator, x: Tensor) -> None:
    if m.g.opset < 11:
        m._made(m.g.node("Clip", [x[0]], m._name(), min=-1.0, max=m.c.pick((1.0, 6.0))), x[1])
        return
    if m.g.opset == 11 and not m.float32:
        return
    low, high = m.c.pick(((0.0, 6.0), (-1.0, 1.0), (None, 1.0), (-1e30, 2.0), (0.25, 2.0), (None, None), (-0.5, None)))
    low = -6e4 if low == -1e30 and not m.float32 else low
    bounds = ["" if v is None else m._constant((), np.float32(v)) for v in (low, high)]
    while bounds and not bounds[-1] and m.c.chance(70):
        bounds.pop()
    m._made(m.g.node("Clip", [x[0], *bounds], m._name()), x[1])


def _softmax(m: _Generator, x: Tensor) -> None:
    if x[1]:
        m._made(m.g.node("Softmax", [x[0]], m._name(), axis=len(x[1]) - 1), x[1])


def _layer_norm(m: _Generator, x: Tensor) -> None:
    name, shape = x
    if m.g.opset < 17 or not shape or shape[-1] < 2 or not all(shape):
        return
    ones = m.g.random.uniform(0.5, 2.0, shape[-1:]).astype(np.float32)
    inputs = [name, m._constant(shape[-1:], ones), *([m._constant(shape[-1:])] if m.c.chance(60) else [])]
    outputs = [m._name(), *m.c.pick(((), (), ("",), ("", "")))]
    m._made(m.g.node("LayerNormalization", inputs, outputs), shape)


def _batch_norm(m: _Generator, x: Tensor) -> None:
    name, shape = x
    if len(shape) < 2 or not all(shape):
        return
    channels = shape[1:2]
    positive = [m._constant(channels, m.g.random.uniform(0.3, 3.0, channels).astype(np.float32)) for _ in "sv"]
    inputs = [name, positive[0], m._constant(channels), m._constant(channels), positive[1]]
    m._made(m.g.node("BatchNormalization", inputs, m._name()), shape)


def _instance_norm(m: _Generator, x: Tensor) -> None:
    name, shape = x
    if len(shape) < 3 or not all(shape) or np.prod(shape[2:]) < 4:
        return
    inputs = [name, m._constant(shape[1:2]), m._constant(shape[1:2])]
    m._made(m.g.node("InstanceNormalization", inputs, m._name()), shape)


def _pool(m: _Generator, x: Tensor) -> None:
    name, shape = x
    if len(shape) != 4 or not all(shape):
        return
    kind = m.c.pick(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
    if kind.startswith("Global"):
        m._made(m.g.node(kind, [name], m._name()), [*shape[:2], 1, 1])
        return
    size = min(2, *shape[2:])
    outputs = [m._name(), *([""] if kind == "MaxPool" and m.c.chance(20) else [])]
    m._made(
        m.g.node(kind, [name], outputs, kernel_shape=[size, size]), [*shape[:2], *(s - size + 1 for s in shape[2:])]
    )


def _reshape(m: _Generator, x: Tensor) -> None:
    name, shape = x
    size = int(np.prod(shape, dtype=int))
    if not size:
        return
    choices: list[tuple[int, ...]] = [(size,), (1, size), (size, 1)]
    if size % 2 == 0:
        choices += [(2, size // 2), (1, 2, size // 2)]
    if len(shape) >= 2:
        choices.append((shape[0], size // shape[0]))
    target = m.c.pick(choices)
    m._made(m.g.node("Reshape", [name, m._integers(target)], m._name()), target)


def _transpose(m: _Generator, x: Tensor) -> None:
    name, shape = x
    if len(shape) >= 2:
        order = list(range(len(shape)))
        first, second = m.c.integer(0, len(shape) - 1), m.c.integer(0, len(shape) - 1)
        order[first], order[second] = order[second], order[first]
        m._made(m.g.node("Transpose", [name], m._name(), perm=order), [shape[i] for i in order])


def _unsqueeze(m: _Generator, x: Tensor) -> None:
    name, shape = x
    if len(shape) < 4:
        m._made(m.g.node("Unsqueeze", [name, m._integers([0])], m._name()), [1, *shape])
    elif 1 in shape:
        axis = shape.index(1)
        rest = [s for i, s in enumerate(shape) if i != axis]
        m._made(m.g.node("Squeeze", [name, m._integers([axis])], m._name()), rest)


def _slice(m: _Generator, x: Tensor) -> None:
    name, shape = x
    if not shape or not all(shape):
        return
    axis = m.c.integer(0, len(shape) - 1)
    start = m.c.integer(0, shape[axis] - 1)
    # Sometimes nothing is left.
    end = start if m.c.chance(6) else m.c.integer(start + 1, shape[axis])
    inputs = [name, *(m._integers([v]) for v in (start, end, axis))]
    m._made(m.g.node("Slice", inputs, m._name()), [end - start if i == axis else s for i, s in enumerate(shape)])


def _split(m: _Generator, x: Tensor) -> None:
    name, shape = x
    axes = [i for i, s in enumerate(shape) if s and s % 2 == 0]
    if not axes:
        return
    axis = m.c.pick(axes)
    names = [m._name(), m._name()]
    extra = {"num_outputs": 2} if m.g.opset >= 18 else {}
    m.g.node("Split", [name], names, axis=axis, **extra)
    for made in names:
        m._made(made, [s // 2 if i == axis else s for i, s in enumerate(shape)])


def _concat(m: _Generator, x: Tensor) -> None:
    name, shape = x
    if not shape:
        return
    axis = m.c.integer(0, len(shape) - 1)
    fits = [
        t
        for t in m.tensors
        if len(t[1]) == len(shape)
        and all(i == axis or a == b for i, (a, b) in enumerate(zip(t[1], shape, strict=True)))
    ]
    other = m.c.pick(fits) if m.c.chance(70) else (m._constant(shape), shape)
    m.read.add(other[0])
    total = shape[axis] + other[1][axis]
    operands = [name, other[0]] if m.c.chance(60) else [other[0], name]
    m._made(
        m.g.node("Concat", operands, m._name(), axis=axis), [total if i == axis else s for i, s in enumerate(shape)]
    )


def _where(m: _Generator, x: Tensor) -> None:
    name, shape = x
    condition = m.g.node("Greater", [name, m._constant((), np.float32(0))], m._name())
    m._made(m.g.node("Where", [condition, name, m._constant(m.c.pick(((), shape)))], m._name()), shape)


def _reduce(m: _Generator, x: Tensor) -> None:
    name, shape = x
    if not shape or not all(shape):
        return
    kind = m.c.pick(("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceL2"))
    axis, keep = m.c.integer(0, len(shape) - 1), m.c.integer(0, 1)
    as_input = kind == "ReduceSum" or m.g.opset >= 18
    inputs = [name, *([m._integers([axis])] if as_input else [])]
    options = {} if as_input else {"axes": [axis]}
    y = m.g.node(kind, inputs, m._name(), keepdims=keep, **options)
    m._made(y, [1 if i == axis else s for i, s in enumerate(shape) if keep or i != axis])


def _resize(m: _Generator, x: Tensor) -> None:
    name, shape = x
    if len(shape) != 4 or not all(shape) or not m.float32 or max(shape[2:]) > 16:
        return
    scales = m.g.constant(f"scales{m.count}", [1, 1, 2, 2], np.float32)
    y = m.g.node("Resize", [name, "", scales], m._name(), mode=m.c.pick(("nearest", "linear")))
    m._made(y, [*shape[:2], *(2 * s for s in shape[2:])])


def _pad(m: _Generator, x: Tensor) -> None:
    name, shape = x
    if not shape or not all(shape):
        return
    pads = [0] * (2 * len(shape))
    pads[-1] = 1
    inputs = [name, m._integers(pads)]
    if m.c.chance(50):
        inputs.append(m._constant((), np.float32(m.c.pick((0.0, 1.0, -2.0)))))
    m._made(m.g.node("Pad", inputs, m._name()), [*shape[:-1], shape[-1] + 1])


def _gather(m: _Generator, x: Tensor) -> None:
    name, shape = x
    if not shape or not all(shape):
        return
    axis = m.c.integer(0, len(shape) - 1)
    if m.c.chance(30):
        index = m.g.constant(f"one{m.count}", np.int64(shape[axis] - 1))
        m._made(m.g.node("Gather", [name, index], m._name(), axis=axis), shape[:axis] + shape[axis + 1 :])
    else:
        index = m._integers([0, shape[axis] - 1])
        m._made(m.g.node("Gather", [name, index], m._name(), axis=axis), [*shape[:axis], 2, *shape[axis + 1 :]])


def _no_operation(m: _Generator, x: Tensor) -> None:
    m._made(m.g.node(m.c.pick(("Identity", "Dropout")), [x[0]], m._name()), x[1])


def _square(m: _Generator, x: Tensor) -> None:
    if m.c.chance(50):
        y = m.g.node("Pow", [x[0], m._constant((), np.float32(2))], m._name())
    else:
        y = m.g.node("Sqrt", [m.g.node("Abs", [x[0]], m._name())], m._name())
    m._made(y, x[1])


def _parametric_relu(m: _Generator, x: Tensor) -> None:
    if x[1]:
        m._made(m.g.node("PRelu", [x[0], m._constant(x[1][-1:])], m._name()), x[1])


def _choice(m: _Generator, x: Tensor) -> None:
    """An If whose branches read the tensor and a weight from outside."""
    name, shape = x
    if not shape or not all(shape) or not m.float32:
        return
    weight = m._constant((shape[-1], 4), fan=shape[-1])
    number = m.count
    branches = []
    for end, kind in (("then", "Relu"), ("else", "Neg")):
        b = GraphBuilder()
        h = b.node("MatMul", [name, weight], f"{end}{number}_h")
        b.node(kind, [h], f"{end}{number}_y")
        branches.append(b.subgraph(end, [f"{end}{number}_y"]))
    total = m.g.node("ReduceSum", [name], m._name(), keepdims=0)
    condition = m.g.node("Greater", [total, m.g.constant(f"zero{number}", np.float32(0))], m._name())
    y = m.g.node("If", [condition], m._name(), then_branch=branches[0], else_branch=branches[1])
    m._made(y, [*shape[:-1], 4])


def _flatten(m: _Generator, x: Tensor) -> None:
    name, shape = x
    if len(shape) >= 2:
        m._made(m.g.node("Flatten", [name], m._name()), [shape[0], int(np.prod(shape[1:], dtype=int))])


_OLD: tuple[Operator, ...] = (
    _with_constant, _with_other, _activation, _activation, _pool, _pool, _clip, _softmax, _batch_norm, _reshape,
    _transpose, _concat, _flatten, _no_operation, _attend, _split,
)  # fmt: skip
_MODERN: tuple[Operator, ...] = (
    *_OLD, _activation, _with_constant, _with_other, _layer_norm, _instance_norm, _unsqueeze, _slice, _where, _reduce,
    _resize, _pad, _gather, _square, _parametric_relu, _choice,
)  # fmt: skip
