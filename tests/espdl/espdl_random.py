"""Random models with every operator, valid by construction, as bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.espdl.espdl_writer import Array, Constant, Graph, Step, Value, blocked


@dataclass
class Wire:
    value: Value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape


@dataclass
class Builder:
    """Grows a graph by random steps. ``even`` keeps exponents as the device wants them, so that nothing is to be said
    of them."""

    seed: int
    target: str = "esp32s3"
    bits: int = 8
    even: bool = False
    small_weights: bool = False
    graph: Graph = field(default_factory=lambda: Graph([], []))

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.count = 0

    def fresh(self, shape: tuple[int, ...], exponent: int, dtype: int | None = None) -> Wire:
        self.count += 1
        value = Value(f"t{self.count}", shape, exponent, (3 if self.bits == 8 else 5) if dtype is None else dtype)
        self.graph.values.append(value)
        return Wire(value)

    def input(self, shape: tuple[int, ...]) -> Wire:
        wire = self.fresh(shape, -5 if self.bits == 8 else -11)
        self.graph.inputs.append(wire.value)
        return wire

    def constant(
        self, values: Array, dims: tuple[int, ...], exponents: tuple[int, ...] = (0,), layout: str = "UNK"
    ) -> str:
        self.count += 1
        self.graph.constants.append(Constant(f"c{self.count}", values, dims, exponents, layout))
        return f"c{self.count}"

    def ints(self, *values: int) -> str:
        return self.constant(np.asarray(values, np.int64), (len(values),))

    def integers(self, *shape: int, reach: int | None = None) -> Array:
        most = reach or (1 << (self.bits - 1))
        return self.random.integers(-most, most, shape).astype(np.int8 if self.bits == 8 else np.int16)

    def step(self, op: str, inputs: list[str], out: Wire, **attributes: object) -> Wire:
        self.graph.steps.append(Step(op, tuple(inputs), (out.value.name,), attributes))
        return out

    def near(self, exponent: int) -> int:
        return exponent if self.even else exponent + int(self.random.integers(-1, 2))

    def table(self, out: Wire) -> str:
        if self.bits == 8:
            return self.constant(self.integers(256), (256,), (out.value.exponent,))
        return self.constant(self.integers(2049), (2049,), (out.value.exponent,))

    # ---- operators ----

    def filter(self, ohwi: Array, groups: int, exponents: tuple[int, ...], flat: bool) -> str:
        outer, height, width, inner = ohwi.shape
        if self.target == "esp32":
            values, layout = (
                (ohwi.reshape(-1), "NHWC") if groups == 1 else (ohwi.transpose(1, 2, 3, 0).reshape(-1), "HWCN")
            )
        else:
            values, layout = blocked(ohwi, 16 if self.bits == 8 else 8, groups)
        dims = (height, width, inner, outer) if groups == 1 else (height, width, outer, inner)
        if flat:
            layout, dims = layout.replace("H", ""), dims[1:]
        return self.constant(np.ascontiguousarray(values), dims, exponents, layout)

    def scales(self, outer: int) -> tuple[int, ...]:
        if self.target == "esp32p4" and not self.even:
            return tuple(int(value) for value in self.random.integers(-9, -5, outer))
        return (-7,) * (outer if self.target == "esp32p4" else 1)

    def bias(self, outer: int, exponents: tuple[int, ...]) -> str:
        return self.constant(self.random.integers(-5000, 5000, outer).astype(np.int32), (outer,), exponents)

    def conv(self, x: Wire) -> Wire:
        flat = len(x.shape) == 3
        channels = x.shape[-1]
        groups = int(self.random.choice([1, 1, channels, 2 if channels % 2 == 0 else 1]))
        outer = channels if groups == channels else int(self.random.integers(1, 20)) * groups
        k = [int(self.random.integers(1, 4)) for _ in range(1 if flat else 2)]
        kernel = (1, k[0]) if flat else (k[0], k[1])
        steps = [int(self.random.integers(1, 3)) for _ in k]
        wider = [int(self.random.integers(1, 3)) for _ in k]
        pads = [int(self.random.integers(0, 3)) for _ in range(2 * len(k))]
        sizes = []
        for i, size in enumerate(x.shape[1:-1]):
            room = size + pads[i] + pads[i + len(k)] - ((k[i] - 1) * wider[i] + 1)
            if room < 0:
                return x
            sizes.append(room // steps[i] + 1)
        weights = self.integers(outer, *kernel, channels // groups, reach=4 if self.small_weights else None)
        scales = self.scales(outer)
        scale = scales[0]
        out = self.fresh((x.shape[0], *sizes, outer), x.value.exponent + scale + int(self.random.integers(6, 14)))
        inputs = [x.value.name, self.filter(weights, groups, scales, flat)]
        if self.random.random() < 0.7:
            inputs.append(self.bias(outer, tuple(value + x.value.exponent for value in scales)))
        return self.step(
            "Conv",
            inputs,
            out,
            activation=str(self.random.choice(["Linear", "Relu"])),
            group=groups,
            kernel_shape=k,
            strides=steps,
            pads=pads,
            dilations=wider,
        )

    def gemm(self, x: Wire) -> Wire:
        inner, outer = x.shape[-1], int(self.random.integers(1, 40))
        scales = self.scales(outer)
        weights = self.integers(outer, 1, 1, inner, reach=4 if self.small_weights else None)
        out = self.fresh((*x.shape[:-1], outer), x.value.exponent + scales[0] + int(self.random.integers(5, 12)))
        name = self.filter(weights, 1, scales, flat=False)
        bias = self.bias(outer, tuple(value + x.value.exponent for value in scales))
        return self.step("Gemm", [x.value.name, name, bias], out, activation="Linear")

    def matmul(self, x: Wire) -> Wire:
        order = (*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2)
        turned = self.step(
            "Transpose", [x.value.name], self.fresh(tuple(x.shape[i] for i in order), x.value.exponent), perm=order
        )
        shape = (*x.shape[:-1], turned.shape[-1])
        out = self.fresh(shape, 2 * x.value.exponent + int(self.random.integers(7, 12)))
        layout = str(self.random.choice(["native_kn", "packed"]))
        return self.step("MatMul", [x.value.name, turned.value.name], out, input1_layout=layout, activation="Relu")

    def arithmetic(self, x: Wire) -> Wire:
        op = str(self.random.choice(["Add", "Sub", "Mul"]))
        shape = tuple(size if self.random.random() < 0.7 else 1 for size in x.shape)
        other = self.constant(self.integers(*shape), shape, (self.near(x.value.exponent),))
        exponent = self.near(x.value.exponent)
        if op == "Mul":
            exponent = 2 * x.value.exponent + int(self.random.integers(4, 9))
        names = [x.value.name, other] if self.random.random() < 0.5 or op != "Add" else [other, x.value.name]
        return self.step(op, names, self.fresh(x.shape, exponent))

    def activation(self, x: Wire) -> Wire:
        kind = str(self.random.choice(["Swish", "Sigmoid", "Relu", "PRelu", "LeakyRelu", "HardSwish", "Tanh", "Clip"]))
        out = self.fresh(x.shape, self.near(x.value.exponent))
        attributes: dict[str, object] = {}
        inputs = [x.value.name]
        if kind == "PRelu":
            slopes = self.integers(x.shape[-1])
            inputs.append(self.constant(slopes, (x.shape[-1],), (-7,)))
        elif kind == "Clip":
            inputs += [self.constant(np.asarray(v, np.float32).reshape(1), ()) for v in (-0.7, 1.3)]
        elif kind != "Relu" and self.random.random() < 0.7:
            attributes["lut"] = self.table(out)
        return self.step(kind, inputs, out, **attributes)

    def pool(self, x: Wire) -> Wire:
        op = str(self.random.choice(["MaxPool", "AveragePool"]))
        dims = len(x.shape) - 2
        kernel = [int(self.random.integers(1, 4)) for _ in range(dims)]
        pads = [int(self.random.integers(0, k)) for k in kernel] * 2
        steps = [int(self.random.integers(1, 3)) for _ in kernel]
        ceil = bool(self.random.random() < 0.3)
        sizes = []
        for i, size in enumerate(x.shape[1:-1]):
            room = size + 2 * pads[i] - kernel[i]
            if room < 0:
                return x
            count = (-(-room // steps[i]) if ceil else room // steps[i]) + 1
            if ceil and (count - 1) * steps[i] >= size + pads[i]:
                count -= 1
            sizes.append(count)
        out = self.fresh((x.shape[0], *sizes, x.shape[-1]), self.near(x.value.exponent))
        return self.step(op, [x.value.name], out, kernel_shape=kernel, strides=steps, pads=pads, ceil_mode=int(ceil))

    def mean(self, x: Wire) -> Wire:
        if self.random.random() < 0.5:
            out = self.fresh((x.shape[0], *[1] * (len(x.shape) - 2), x.shape[-1]), self.near(x.value.exponent))
            return self.step("GlobalAveragePool", [x.value.name], out)
        axis = int(self.random.integers(0, len(x.shape)))
        shape = tuple(1 if i == axis else size for i, size in enumerate(x.shape))
        return self.step(
            "ReduceMean", [x.value.name, self.ints(axis)], self.fresh(shape, self.near(x.value.exponent)), keepdims=1
        )

    def resize(self, x: Wire) -> Wire:
        dims = len(x.shape) - 2
        factors = [float(self.random.choice([1.0, 1.5, 2.0, 3.0])) for _ in range(dims)]
        mode = str(self.random.choice(["nearest", "linear"]))
        rule = str(self.random.choice(["half_pixel", "align_corners"])) if mode == "linear" else "asymmetric"
        scales = self.constant(np.asarray([1, 1, *factors], np.float32), (dims + 2,))
        shape = (x.shape[0], *(int(s * f) for s, f in zip(x.shape[1:-1], factors, strict=True)), x.shape[-1])
        out = self.fresh(shape, self.near(x.value.exponent))
        return self.step("Resize", [x.value.name, "", scales], out, mode=mode, coordinate_transformation_mode=rule)

    def moving(self, x: Wire) -> Wire:
        rank = len(x.shape)
        kind = str(
            self.random.choice(["Transpose", "Slice", "Pad", "Gather", "Concat", "Squeeze", "Split", "InsertZeros"])
        )
        axis = int(self.random.integers(1, rank))
        size, e = x.shape[axis], x.value.exponent
        if kind == "Transpose":
            perm = (0, *(1 + self.random.permutation(rank - 1)).tolist())
            return self.step(kind, [x.value.name], self.fresh(tuple(x.shape[i] for i in perm), self.near(e)), perm=perm)
        if kind == "Slice" and size > 1:
            first, pace = int(self.random.integers(0, size - 1)), int(self.random.integers(1, 3))
            shape = tuple(len(range(first, size, pace)) if i == axis else s for i, s in enumerate(x.shape))
            inputs = [
                x.value.name,
                self.ints(first - size),
                self.ints(1 << 40),
                self.ints(axis - rank),
                self.ints(pace),
            ]
            return self.step(kind, inputs, self.fresh(shape, self.near(e)))
        if kind == "Pad":
            pads = [int(v) for v in self.random.integers(0, 2, 2 * rank)]
            shape = tuple(s + pads[i] + pads[i + rank] for i, s in enumerate(x.shape))
            return self.step(kind, [x.value.name, self.ints(*pads)], self.fresh(shape, self.near(e)))
        if kind == "Gather":
            chosen = [int(v) for v in self.random.integers(-size, size, 3)]
            shape = tuple(3 if i == axis else s for i, s in enumerate(x.shape))
            return self.step(kind, [x.value.name, self.ints(*chosen)], self.fresh(shape, self.near(e)), axis=axis)
        if kind == "Concat":
            other = self.constant(self.integers(*x.shape), x.shape, (self.near(e),))
            shape = tuple(3 * s if i == axis else s for i, s in enumerate(x.shape))
            return self.step(kind, [x.value.name, other, x.value.name], self.fresh(shape, self.near(e)), axis=axis)
        if kind == "Squeeze":
            grown = self.step(
                "Unsqueeze", [x.value.name, self.ints(axis)], self.fresh((*x.shape[:axis], 1, *x.shape[axis:]), e)
            )
            return self.step(kind, [grown.value.name, self.ints(axis)], self.fresh(x.shape, self.near(e)))
        if kind == "Split" and size > 1:
            left = int(self.random.integers(1, size))
            shapes = [tuple(part if i == axis else s for i, s in enumerate(x.shape)) for part in (left, size - left)]
            wires = [self.fresh(shape, e) for shape in shapes]
            names = tuple(wire.value.name for wire in wires)
            self.graph.steps.append(Step(kind, (x.value.name, self.ints(left, size - left)), names, {"axis": axis}))
            return wires[1]
        if kind == "InsertZeros":
            dims = rank - 2
            paces = [int(v) for v in self.random.integers(1, 3, dims)]
            shape = (x.shape[0], *((s - 1) * p + 1 for s, p in zip(x.shape[1:-1], paces, strict=True)), x.shape[-1])
            return self.step(kind, [x.value.name], self.fresh(shape, e), stride=paces, output_padding=[0] * dims)
        return x

    def softmax(self, x: Wire) -> Wire:
        real = self.fresh(x.shape, 0, dtype=1)
        self.step("Softmax", [x.value.name], real, axis=int(self.random.integers(0, len(x.shape))))
        return self.step("QuantizeLinear", [real.value.name], self.fresh(x.shape, -7 if self.bits == 8 else -15))

    def requantize(self, x: Wire) -> Wire:
        return self.step(
            "RequantizeLinear", [x.value.name], self.fresh(x.shape, x.value.exponent + int(self.random.integers(-2, 3)))
        )


def random_model(
    seed: int, target: str, bits: int = 8, *, steps: int = 6, even: bool = False, small_weights: bool = False
) -> Graph:
    builder = Builder(seed, target, bits, even, small_weights)
    flat = bool(builder.random.random() < 0.3)
    x = builder.input((1, 9, 6) if flat else (1, 6, 7, 6))
    ways = [
        builder.conv,
        builder.conv,
        builder.gemm,
        builder.matmul,
        builder.arithmetic,
        builder.activation,
        builder.pool,
        builder.mean,
        builder.resize,
        builder.moving,
        builder.moving,
        builder.softmax,
        builder.requantize,
    ]
    for _ in range(steps):
        grown = ways[int(builder.random.integers(len(ways)))](x)
        if int(np.prod(grown.shape)) <= 6000 and len(grown.shape) == len(x.shape):
            x = grown
    if not builder.graph.steps:
        x = builder.requantize(x)
    builder.graph.outputs.append(x.value)
    return builder.graph
