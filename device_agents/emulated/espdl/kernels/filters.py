"""Conv, Gemm and MatMul: products of an activation with a filter, or of two activations.

The filter is a matrix (K, N) whose rows are in the order in which the kernels add (height, width, input channel).
Sums are exact (see :mod:`..arithmetic`); where the target's lanes could saturate they are looked at more closely (see
:mod:`.lanes`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from device_agents.emulated.espdl.arithmetic import Array, half, holder, requantized
from device_agents.emulated.espdl.kernels.base import Run, Site
from device_agents.emulated.espdl.kernels.lanes import Lanes
from device_agents.emulated.espdl.layout import filter_ohwi, matrices, unpacked
from device_agents.emulated.espdl.model import Tensor

MOST_PATCH_BYTES = 1 << 25
"""Of im2col at a time: the samples are taken in groups."""


@dataclass(frozen=True)
class Product:
    """acc = x @ matrix + bias, then shift, round, clip."""

    matrix: Array
    bias: Array | None
    shift: Array
    bits: int
    relu: bool
    lanes: Lanes | None


def product(site: Site, matrix: Array, bias: Tensor | None, exponents: Sequence[int]) -> Product:
    """``matrix`` is (K, N) of integers, or (K, C) for a depthwise filter."""
    x = site.activation(0)
    scale = x.exponent + np.asarray(exponents or (0,), np.int64)
    outputs = matrix.shape[-1]
    if len(scale) not in (1, outputs):
        raise site.malformed(f"{len(scale)} exponents for {outputs} output channels")
    if not site.out_bits or not x.bits:
        raise site.unsupported("float input or output")
    values = None
    if bias is not None:
        own = np.asarray(bias.exponents or (0,), np.int64)
        if len(bias.values) != outputs:
            raise site.malformed(f"{len(bias.values)} biases for {outputs} output channels")
        if np.any(own != scale):
            raise site.unsupported(
                f"bias {bias.name!r} has exponent {own[0]} instead of {scale[0]} (input's plus filter's)"
            )
        values = bias.values.astype(np.float64)
    shift = site.out.exponent - scale
    magnitude = float(1 << (x.bits - 1))
    wide = matrix.astype(np.float64)
    bound = np.abs(wide).sum(axis=0) * magnitude + (0 if values is None else np.abs(values))
    try:
        dtype = holder(float(bound.max(initial=0)) * max(1.0, 2.0 ** -int(shift.min())) + half(shift))
    except OverflowError as error:
        raise site.unsupported(str(error)) from None
    lanes = Lanes.of(site, wide, values, x.bits) if site.on_device else None
    return Product(
        matrix=np.ascontiguousarray(matrix, dtype=dtype),
        bias=None if values is None else values.astype(dtype),
        shift=shift,
        bits=site.out_bits,
        relu=site.node.text("activation") == "Relu",
        lanes=lanes,
    )


def _finish(site: Site, done: Product, acc: Array) -> Array:
    if done.bias is not None:
        acc += done.bias
    shift = int(done.shift[0]) if np.all(done.shift == done.shift[0]) else done.shift
    return requantized(acc, shift, done.bits, site.target, relu=done.relu)


def _times(site: Site, done: Product, rows: Array) -> Array:
    """rows (M, K) -> (M, N)."""
    acc = rows.astype(done.matrix.dtype, copy=False) @ done.matrix
    if done.lanes is not None:
        done.lanes.correct(acc, rows)
    return _finish(site, done, acc)


def matrix_of(op: str, weight: Tensor, groups: int = 1) -> Array:
    """A constant filter as a matrix (K, N); K is what one group of a convolution adds up.

    Raises :class:`MalformedModel` for a layout or shape that no filter has.
    """
    if op == "MatMul":
        stacked = matrices(weight)
        single: Array = stacked.reshape(-1, *stacked.shape[-2:])[0]
        return single
    ordered = filter_ohwi(weight, groups)
    return ordered.reshape(ordered.shape[0], -1).T


def gemm(site: Site) -> Run:
    node = site.node
    if node.integer("transA") or node.number("alpha", 1.0) != 1.0 or node.number("beta", 1.0) != 1.0:
        raise site.unsupported("transA, alpha or beta")
    weight = site.constant(1)
    if len(weight.dims) != 4 or weight.dims[:2] != (1, 1):
        raise site.unsupported(f"a filter of shape {list(weight.dims)}")
    bias = site.constant(2) if site.optional(2) else None
    done = product(site, matrix_of("Gemm", weight), bias, weight.exponents)

    def run(inputs: Sequence[Array]) -> list[Array]:
        x = inputs[0]
        if x.shape[-1] != done.matrix.shape[0]:
            raise site.malformed(f"{x.shape[-1]} input features, the filter has {done.matrix.shape[0]}")
        out = _times(site, done, np.ascontiguousarray(x).reshape(-1, x.shape[-1]))
        return [out.reshape(*x.shape[:-1], -1)]

    return run


@dataclass(frozen=True)
class Window:
    """The geometry of a two-dimensional filter."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]

    def out(self, height: int, width: int) -> tuple[int, int]:
        sizes = []
        for side, (size, before, after) in enumerate(
            ((height, self.pads[0], self.pads[2]), (width, self.pads[1], self.pads[3]))
        ):
            reach = (self.kernel[side] - 1) * self.dilations[side] + 1
            sizes.append((size + before + after - reach) // self.strides[side] + 1)
        return sizes[0], sizes[1]

    def wide(self, height: int, width: int) -> tuple[int, int]:
        """With the padding."""
        return height + self.pads[0] + self.pads[2], width + self.pads[1] + self.pads[3]

    def padded(self, x: Array) -> Array:
        top, left, bottom, right = self.pads
        if not any(self.pads):
            return x
        batch, height, width, channels = x.shape
        wide = np.zeros((batch, height + top + bottom, width + left + right, channels), x.dtype)
        wide[:, top : top + height, left : left + width] = x
        return wide

    def patches(self, x: Array) -> Array:
        """A view (B, H', W', kh, kw, C) of padded ``x``."""
        x = np.ascontiguousarray(x)
        high, wide = self.out_of_padded(x)
        b, h, w, c = x.strides
        (sh, sw), (dh, dw) = self.strides, self.dilations
        shape = (x.shape[0], high, wide, *self.kernel, x.shape[3])
        return as_strided(x, shape, (b, h * sh, w * sw, h * dh, w * dw, c), writeable=False)

    def out_of_padded(self, x: Array) -> tuple[int, int]:
        return Window(self.kernel, self.strides, (0, 0, 0, 0), self.dilations).out(x.shape[1], x.shape[2])


def window(site: Site, kernel: tuple[int, int], flat: bool) -> Window:
    """From ONNX's attributes; ``flat`` for one-dimensional filters, which become rows of height 1."""
    node = site.node
    if node.text("auto_pad", "NOTSET") not in ("", "NOTSET"):
        raise site.unsupported(f"auto_pad {node.text('auto_pad')}")
    dims = 1 if flat else 2

    def pair(name: str, default: int) -> tuple[int, int]:
        given = node.integers(name) or (default,) * dims
        if len(given) != dims or min(given) < 1 or max(given) > 1 << 15:
            raise site.malformed(f"{name} of {list(given)}")
        return (1, given[0]) if flat else (given[0], given[1])

    pads = node.integers("pads") or (0,) * (2 * dims)
    if len(pads) != 2 * dims or min(pads) < 0 or max(pads) > 1 << 15:
        raise site.malformed(f"pads of {list(pads)}")
    around = (0, pads[0], 0, pads[1]) if flat else (pads[0], pads[1], pads[2], pads[3])
    return Window(kernel, pair("strides", 1), around, pair("dilations", 1))


def conv(site: Site) -> Run:
    weight = site.constant(1)
    groups = max(1, site.node.integer("group", 1))
    flat = len(weight.dims) == 3
    ordered = filter_ohwi(weight, groups)
    outputs, kh, kw, inner = ordered.shape
    if outputs % groups or not outputs or not kh * kw * inner:
        raise site.malformed(f"{outputs} output channels in {groups} groups")
    bias = site.constant(2) if site.optional(2) else None
    done = product(site, matrix_of("Conv", weight, groups), bias, weight.exponents)
    shape = window(site, (kh, kw), flat)
    depthwise = groups > 1 and inner == 1 and outputs == groups

    def run(inputs: Sequence[Array]) -> list[Array]:
        x = inputs[0]
        if x.ndim != (4 if flat else 5):
            raise site.malformed(f"input of rank {x.ndim - 1}")
        merged = x.reshape(x.shape[0] * x.shape[1], 1, *x.shape[2:]) if flat else x.reshape(-1, *x.shape[2:])
        if merged.shape[-1] != inner * groups:
            raise site.malformed(f"{merged.shape[-1]} input channels, the filter has {inner * groups}")
        high, wide = shape.out(*merged.shape[1:3])
        if high < 1 or wide < 1:
            raise site.malformed("the filter is larger than its input")
        site.room(len(merged), high, wide, outputs)
        site.room(1, *shape.wide(*merged.shape[1:3]), merged.shape[-1])
        step = max(1, MOST_PATCH_BYTES // max(1, high * wide * kh * kw * merged.shape[-1] * 4))
        site.room(min(step, len(merged)), high, wide, kh * kw, 1 if depthwise else merged.shape[-1])
        parts = [_part(merged[at : at + step]) for at in range(0, len(merged), step)]
        out = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return [out.reshape(*x.shape[:2], *((wide,) if flat else (high, wide)), outputs)]

    def _part(x: Array) -> Array:
        padded = shape.padded(x)
        high, wide = shape.out_of_padded(padded)
        if depthwise:
            return _depthwise(site, done, shape, padded)
        if kh * kw == 1 and shape.strides == (1, 1):
            patches: Array = padded.reshape(-1, padded.shape[-1])
        else:
            patches = shape.patches(padded).reshape(-1, kh * kw, padded.shape[-1])
        if groups == 1:
            out = _times(site, done, patches.reshape(len(patches), -1))
            return out.reshape(len(x), high, wide, outputs)
        return _grouped(site, done, patches.reshape(len(patches), kh * kw, groups, inner)).reshape(
            len(x), high, wide, outputs
        )

    return run


def _grouped(site: Site, done: Product, patches: Array) -> Array:
    """patches (M, taps, groups, C/groups) -> (M, N)."""
    rows, taps, groups, inner = patches.shape
    each = done.matrix.shape[1] // groups
    ordered = np.ascontiguousarray(patches.transpose(2, 0, 1, 3)).reshape(groups, rows, taps * inner)
    filters = done.matrix.reshape(taps * inner, groups, each).transpose(1, 0, 2)
    acc = np.ascontiguousarray((ordered.astype(done.matrix.dtype, copy=False) @ filters).transpose(1, 0, 2)).reshape(
        rows, -1
    )
    if done.lanes is not None:
        done.lanes.correct_grouped(acc, ordered)
    return _finish(site, done, acc)


def _depthwise(site: Site, done: Product, shape: Window, padded: Array) -> Array:
    """Tap by tap over a few rows at a time, so that what is added to stays in the cache."""
    patches = shape.patches(padded)
    batch, high, wide, kh, kw, channels = patches.shape
    taps = done.matrix.reshape(kh, kw, channels)
    out = np.empty((batch, high, wide, channels), np.float32)
    rows = max(1, (1 << 16) // max(1, wide * channels))
    for sample in range(batch):
        for top in range(0, high, rows):
            piece = patches[sample, top : top + rows]
            acc = piece[:, :, 0, 0] * taps[0, 0]
            scratch = np.empty_like(acc)
            for y in range(kh):
                for x in range(kw):
                    if y or x:
                        np.multiply(piece[:, :, y, x], taps[y, x], out=scratch)
                        acc += scratch
            if done.lanes is not None:
                flat = piece.reshape(-1, kh * kw, channels)
                done.lanes.correct_depthwise(acc.reshape(-1, channels), flat)
            out[sample, top : top + rows] = _finish(site, done, acc)
    return out


def matmul(site: Site) -> Run:
    left, right = site.activation(0), site.operand(1)
    if right.constant is not None:
        return _matmul_constant(site, right.constant)
    # before ESP-PPQ 1.3 nodes before it packed the right side like a filter, and no attribute said so
    native = site.node.text("input1_layout", "packed") == "native_kn"
    lanes = 0 if site.target.family == "c" else 16 if right.bits == 8 else 8
    bits = site.out_bits
    shift = site.out.exponent - left.exponent - right.exponent
    relu = site.node.text("activation") == "Relu"
    largest = float(1 << (left.bits - 1)) * float(1 << (right.bits - 1)) if left.bits and right.bits else 0.0
    if not bits or not largest:
        raise site.unsupported("float input or output")

    def run(inputs: Sequence[Array]) -> list[Array]:
        a, b = inputs
        if a.ndim < 3 or b.ndim < 3 or a.shape[-1] != b.shape[-2]:
            raise site.malformed(f"shapes {list(a.shape[1:])} and {list(b.shape[1:])} do not multiply")
        rank = max(a.ndim, b.ndim)
        a, b = (x.reshape(x.shape[0], *(1,) * (rank - x.ndim), *x.shape[1:]) for x in (a, b))
        b = b if native else unpacked(b, lanes)
        inner = a.shape[-1]
        site.room(*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
        dtype = holder(largest * inner * max(1.0, 2.0**-shift) + half(shift))
        acc = np.matmul(a.astype(dtype, copy=False), b.astype(dtype, copy=False))
        if site.on_device:
            Lanes.correct_matmul(site, acc, a, b, left.bits)
        return [requantized(acc, shift, bits, site.target, relu=relu)]

    return run


def _matmul_constant(site: Site, weight: Tensor) -> Run:
    if weight.layout in ("", "UNK"):
        raise site.unsupported(f"the right side {weight.name!r} has no layout")
    if math.prod(weight.dims[:-2]) != 1:
        raise site.unsupported("a constant right side of several matrices")
    done = product(site, matrix_of("MatMul", weight), None, weight.exponents)
    inner, outer = done.matrix.shape

    def run(inputs: Sequence[Array]) -> list[Array]:
        x = inputs[0]
        if x.shape[-1] != inner:
            raise site.malformed(f"{x.shape[-1]} columns, the matrix has {inner} rows")
        out = _times(site, done, np.ascontiguousarray(x).reshape(-1, inner))
        return [out.reshape(*x.shape[:-1], outer)]

    return run
