"""MaxPool, AveragePool, GlobalAveragePool and ReduceMean.

Averages are floating point in both worlds: the sum of the integers is exact, what follows is one float32 operation.
ESP-PPQ divides by the number of elements; esp-dl (``CONFIG_ACCURATE_INFER``) multiplies by its float32 reciprocal,
which can fall on the other side of a half.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from device_agents.emulated.espdl.arithmetic import Array, limits, rounded
from device_agents.emulated.espdl.kernels.base import Run, Site
from device_agents.emulated.espdl.kernels.elementwise import moved
from device_agents.emulated.espdl.kernels.filters import Window, window


def averaged(total: Array, count: int | Array, shift: int, *, reciprocal: bool) -> Array:
    """``total`` (exact integers) over ``count``, times 2**-shift: what is rounded next, float32."""
    total = total.astype(np.float32)
    mean: Array
    if reciprocal:
        mean = total * (np.float32(1.0) / np.asarray(count, np.float32))
    else:
        mean = total / np.asarray(count, np.float32)
    scaled: Array = mean * np.float32(2.0**-shift)
    return scaled


def _mean(site: Site, total: Array, count: int | Array, shift: int, whole: int) -> Array:
    real = averaged(total, whole if site.on_device else count, shift, reciprocal=site.on_device)
    low, high = limits(site.out_bits)
    return np.clip(rounded(real, site.target), low, high)


def _sum_type(bits: int, count: int) -> type[np.float32] | type[np.float64]:
    return np.float32 if (count << (bits - 1)) <= 1 << 24 else np.float64


def _kernel(site: Site) -> tuple[tuple[int, int], bool]:
    shape = site.node.integers("kernel_shape")
    if shape is None or len(shape) not in (1, 2) or min(shape) < 1 or max(shape) > 1 << 15:
        raise site.malformed(f"kernel_shape of {shape}")
    return ((1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])), len(shape) == 1


def _window(site: Site, kernel: tuple[int, int], flat: bool) -> Window:
    shape = window(site, kernel, flat)
    if any(pad >= side for pad, side in zip(shape.pads, kernel * 2, strict=True)):
        raise site.malformed(f"pads of {list(shape.pads)} around a window of {list(kernel)}")
    return shape


def _check_bits(site: Site) -> tuple[int, int]:
    x = site.activation(0)
    if not x.bits or not site.out_bits:
        raise site.unsupported("float input or output")
    return x.exponent, x.bits


def _images(site: Site, x: Array, flat: bool) -> Array:
    if x.ndim != (4 if flat else 5):
        raise site.malformed(f"input of rank {x.ndim - 1}")
    return x.reshape(x.shape[0] * x.shape[1], 1, *x.shape[2:]) if flat else x.reshape(-1, *x.shape[2:])


def _restored(x: Array, like: Array, flat: bool) -> Array:
    return x.reshape(*like.shape[:2], *(x.shape[2:] if flat else x.shape[1:]))


def max_pool(site: Site) -> Run:
    exponent, bits = _check_bits(site)
    kernel, flat = _kernel(site)
    shape = _window(site, kernel, flat)
    ceil = bool(site.node.integer("ceil_mode"))
    lowest = np.float32(limits(bits)[0])

    def run(inputs: Sequence[Array]) -> list[Array]:
        x = _images(site, inputs[0], flat)
        padded = _padded(site, x, shape.pads, kernel, shape.strides, shape.dilations, ceil, lowest)
        patches = shape.patches(padded)
        if not patches.size:
            raise site.malformed("the window is larger than its input")
        out = patches[:, :, :, 0, 0].copy()
        for y in range(kernel[0]):
            for column in range(kernel[1]):
                np.maximum(out, patches[:, :, :, y, column], out=out)
        return [_restored(out, inputs[0], flat)]

    return moved(site, run, exponent, bits)


def _padded(
    site: Site,
    x: Array,
    pads: tuple[int, ...],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    ceil: bool,
    value: np.float32,
) -> Array:
    """With room behind for the last windows when sizes are rounded up (a window must begin inside input or front
    padding)."""
    extra = [0, 0]
    if ceil:
        for side in range(2):
            padded = x.shape[1 + side] + pads[side] + pads[2 + side]
            reach = (kernel[side] - 1) * dilations[side] + 1
            count = -(-(padded - reach) // strides[side]) + 1
            if (count - 1) * strides[side] >= x.shape[1 + side] + pads[side]:
                count -= 1
            extra[side] = max(0, (count - 1) * strides[side] + reach - padded)
    if not any(pads) and not any(extra):
        return x
    batch, height, width, channels = x.shape
    top, left, bottom, right = pads
    wide = np.full(
        (batch, height + top + bottom + extra[0], width + left + right + extra[1], channels), value, np.float32
    )
    wide[:, top : top + height, left : left + width] = x
    return wide


def average_pool(site: Site) -> Run:
    exponent, bits = _check_bits(site)
    kernel, flat = _kernel(site)
    shape = _window(site, kernel, flat)
    if shape.dilations != (1, 1):
        raise site.unsupported("dilations")
    ceil = bool(site.node.integer("ceil_mode"))
    area = kernel[0] * kernel[1]
    shift = site.out.exponent - exponent
    dtype = _sum_type(bits, area)

    def run(inputs: Sequence[Array]) -> list[Array]:
        x = _images(site, inputs[0], flat)
        padded = _padded(site, x, shape.pads, kernel, shape.strides, (1, 1), ceil, np.float32(0))
        patches = shape.patches(padded)
        if not patches.size:
            raise site.malformed("the window is larger than its input")
        total: Array = np.zeros(patches.shape[:3] + patches.shape[5:], dtype)
        for y in range(kernel[0]):
            for column in range(kernel[1]):
                total += patches[:, :, :, y, column]
        # torch, and so ESP-PPQ, counts padding, but not what rounding sizes up added behind it
        high = np.minimum(
            np.arange(total.shape[1]) * shape.strides[0] + kernel[0], x.shape[1] + shape.pads[0] + shape.pads[2]
        )
        wide = np.minimum(
            np.arange(total.shape[2]) * shape.strides[1] + kernel[1], x.shape[2] + shape.pads[1] + shape.pads[3]
        )
        rows, columns = (
            high - np.arange(total.shape[1]) * shape.strides[0],
            wide - np.arange(total.shape[2]) * shape.strides[1],
        )
        count = (rows[:, None] * columns)[:, :, None]
        return [_restored(_mean(site, total, count, shift, area), inputs[0], flat)]

    return run


def global_average_pool(site: Site) -> Run:
    exponent, bits = _check_bits(site)
    shift = site.out.exponent - exponent

    def run(inputs: Sequence[Array]) -> list[Array]:
        x = inputs[0]
        if x.ndim not in (4, 5):
            raise site.malformed(f"input of rank {x.ndim - 1}")
        axes = tuple(range(2, x.ndim - 1))
        count = int(np.prod([x.shape[axis] for axis in axes]))
        total = x.sum(axis=axes, keepdims=True, dtype=_sum_type(bits, count))
        return [_mean(site, total, count, shift, count)]

    return run


def reduce_mean(site: Site) -> Run:
    exponent, bits = _check_bits(site)
    shift = site.out.exponent - exponent
    axes_given = site.integers(1) if site.optional(1) else list(site.node.integers("axes") or ())
    keep = bool(site.node.integer("keepdims", 1))

    def run(inputs: Sequence[Array]) -> list[Array]:
        x = inputs[0]
        axes = tuple(sorted({site.axis(axis, x.ndim - 1) for axis in axes_given})) or tuple(range(1, x.ndim))
        count = int(np.prod([x.shape[axis] for axis in axes]))
        total = x.sum(axis=axes, keepdims=keep, dtype=_sum_type(bits, count))
        return [_mean(site, total, count, shift, count)]

    return run
