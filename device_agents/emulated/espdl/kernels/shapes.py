"""Operators that only move values: Concat, Split, Slice, Transpose, Reshape and their like, Pad, Gather, InsertZeros,
Resize (nearest)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from device_agents.emulated.espdl.arithmetic import Array, limits
from device_agents.emulated.espdl.kernels.base import Run, Site, as_float32
from device_agents.emulated.espdl.kernels.elementwise import moved


def _simple(site: Site, change: Callable[[Array], Array]) -> Run:
    x = site.activation(0)
    return moved(site, lambda inputs: [change(inputs[0])], x.exponent, x.bits)


def transpose(site: Site) -> Run:
    perm = site.node.integers("perm")

    def change(x: Array) -> Array:
        order = perm if perm is not None else tuple(range(x.ndim - 1))[::-1]
        if sorted(order) != list(range(x.ndim - 1)):
            raise site.malformed(f"perm {list(order)} of a tensor with {x.ndim - 1} dimensions")
        return np.ascontiguousarray(x.transpose(0, *(axis + 1 for axis in order)))

    return _simple(site, change)


def _reshaped(site: Site, x: Array, shape: Sequence[int]) -> Array:
    if min(shape, default=1) < 0 or math.prod(shape) != math.prod(x.shape[1:]):
        raise site.malformed(f"{list(x.shape[1:])} cannot become {list(shape)}")
    return x.reshape(x.shape[0], *shape)


def reshape(site: Site) -> Run:
    wanted = site.integers(1)
    zero_is_zero = bool(site.node.integer("allowzero"))
    if wanted.count(-1) > 1 or min(wanted, default=0) < -1:
        raise site.malformed(f"a shape of {wanted}")

    def change(x: Array) -> Array:
        shape = list(wanted)
        for index, size in enumerate(shape):
            if size == 0 and not zero_is_zero:
                if index >= x.ndim - 1:
                    raise site.malformed(f"{wanted} takes a dimension that {list(x.shape[1:])} has not")
                shape[index] = x.shape[1 + index]
        if -1 in shape:
            rest = -math.prod(shape)
            shape[shape.index(-1)] = math.prod(x.shape[1:]) // rest if rest else 0
        return _reshaped(site, x, shape)

    return _simple(site, change)


def flatten(site: Site) -> Run:
    axis = site.node.integer("axis", 1)

    def change(x: Array) -> Array:
        rank = x.ndim - 1
        if not -rank <= axis <= rank:
            raise site.malformed(f"axis {axis} of a tensor with {rank} dimensions")
        cut = axis % rank if axis < 0 else axis
        return _reshaped(site, x, (math.prod(x.shape[1 : 1 + cut]), math.prod(x.shape[1 + cut :])))

    return _simple(site, change)


def _axes(site: Site) -> list[int] | None:
    if site.optional(1) is not None:
        return site.integers(1)
    given = site.node.integers("axes")
    return None if given is None else list(given)


def squeeze(site: Site) -> Run:
    axes = _axes(site)

    def change(x: Array) -> Array:
        rank = x.ndim - 1
        gone = (
            {a for a in range(1, rank + 1) if x.shape[a] == 1} if axes is None else {site.axis(a, rank) for a in axes}
        )
        return _reshaped(site, x, [size for a, size in enumerate(x.shape) if a and a not in gone])

    return _simple(site, change)


def unsqueeze(site: Site) -> Run:
    axes = _axes(site) or []

    def change(x: Array) -> Array:
        rank = x.ndim - 1 + len(axes)
        new = {site.axis(axis, rank) for axis in axes}
        if len(new) != len(axes):
            raise site.malformed(f"axes {axes}")
        old = iter(x.shape[1:])
        return _reshaped(site, x, [1 if axis in new else next(old) for axis in range(1, rank + 1)])

    return _simple(site, change)


def identity(site: Site) -> Run:
    return _simple(site, lambda x: x)


def _alone(inputs: Sequence[Array]) -> list[Array]:
    return [inputs[0]]


def concat(site: Site) -> Run:
    """Inputs whose exponent is not the output's are rescaled by ``reference`` and copied as they are by the
    device."""
    operands = [site.operand(index) for index in range(len(site.inputs))]
    parts = [moved(site, _alone, operand.exponent, operand.bits) for operand in operands]
    fixed = [None if operand.constant is None else as_float32(operand.constant) for operand in operands]
    axis_given = site.node.integer("axis")

    def run(inputs: Sequence[Array]) -> list[Array]:
        moving = iter(inputs)
        arrays = [next(moving) if value is None else value for value in fixed]
        arrays = [part([array])[0] for part, array in zip(parts, arrays, strict=True)]
        samples = max(array.shape[0] for array in arrays)
        arrays = [np.broadcast_to(array, (samples, *array.shape[1:])) for array in arrays]
        axis = site.axis(axis_given, arrays[0].ndim - 1)
        if len({(*a.shape[:axis], *a.shape[axis + 1 :]) for a in arrays}) != 1 or len({a.ndim for a in arrays}) != 1:
            raise site.malformed(f"shapes {[list(a.shape[1:]) for a in arrays]} do not concatenate")
        return [np.concatenate(arrays, axis=axis)]

    return run


def split(site: Site) -> Run:
    x = site.activation(0)
    sizes_given = site.integers(1) if site.optional(1) is not None else None
    axis_given = site.node.integer("axis")
    scales = [None if out.exponent == x.exponent or site.on_device or not x.bits else out for out in site.outputs]

    def run(inputs: Sequence[Array]) -> list[Array]:
        array = inputs[0]
        axis = site.axis(axis_given, array.ndim - 1)
        whole, parts = array.shape[axis], len(site.outputs)
        each = -(-whole // parts)
        sizes = sizes_given or [min(each, whole - each * index) for index in range(parts)]
        if len(sizes) != parts or min(sizes) < 0 or sum(sizes) != whole:
            raise site.malformed(f"{whole} elements cannot be split into {sizes}")
        pieces = np.split(array, np.cumsum(sizes)[:-1], axis=axis)
        if any(scales):
            raise site.unsupported("outputs whose exponents differ from the input's")
        return [np.ascontiguousarray(piece) for piece in pieces]

    return run


def slice_(site: Site) -> Run:
    starts, ends = site.integers(1), site.integers(2)
    axes = site.integers(3) if site.optional(3) is not None else list(range(len(starts)))
    steps = site.integers(4) if site.optional(4) is not None else [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise site.malformed("starts, ends, axes and steps do not go together")

    def change(x: Array) -> Array:
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            at = site.axis(axis, x.ndim - 1)
            if step < 0:
                raise site.unsupported("a negative step")
            size = x.shape[at]
            first = min(max(start + size if start < 0 else start, 0), size)
            last = min(max(end + size if end < 0 else end, 0), size)
            x = x[(slice(None),) * at + (slice(first, last, step),)]
        return np.ascontiguousarray(x)

    return _simple(site, change)


def pad(site: Site) -> Run:
    amounts = site.integers(1)
    if site.node.text("mode", "constant") != "constant":
        raise site.unsupported(f"mode {site.node.text('mode')}")
    x = site.activation(0)
    operand = site.optional(2)
    fill = 0.0
    if operand is not None and len(site.constant(2).values):
        real = float(site.constant(2).values[0]) * 2.0 ** (operand.exponent if operand.bits else 0)
        low, high = limits(x.bits) if x.bits else (-math.inf, math.inf)
        fill = min(max(real * 2.0**-x.exponent if x.bits else real, low), high)
        if x.bits and fill != int(fill):
            raise site.unsupported(f"fills with {real}, which is no multiple of 2**{x.exponent}")

    def change(array: Array) -> Array:
        rank = array.ndim - 1
        if len(amounts) != 2 * rank or min(amounts) < 0 or max(amounts) > 1 << 20:
            raise site.malformed(f"pads {amounts} of a tensor with {rank} dimensions")
        site.room(
            array.shape[0],
            *(a + b + c for a, b, c in zip(array.shape[1:], amounts[:rank], amounts[rank:], strict=True)),
        )
        return np.pad(array, [(0, 0), *zip(amounts[:rank], amounts[rank:], strict=True)], constant_values=fill)

    return _simple(site, change)


def gather(site: Site) -> Run:
    tensor = site.constant(1)
    axis_given = site.node.integer("axis")
    wanted = np.asarray(site.integers(1), np.int64).reshape(tensor.dims)

    def change(x: Array) -> Array:
        axis = site.axis(axis_given, x.ndim - 1)
        size = x.shape[axis]
        if wanted.size and (wanted.min() < -size or wanted.max() >= size):
            raise site.malformed(f"indices up to {wanted.max()} of {size} elements")
        site.room(x.size // max(1, size), wanted.size)
        return np.take(x, wanted, axis=axis)

    return _simple(site, change)


def insert_zeros(site: Site) -> Run:
    """Between the rows and columns of an image; what ESP-PPQ makes of a ConvTranspose's strides."""
    strides = site.node.integers("stride") or ()
    behind = site.node.integers("output_padding") or (0,) * len(strides)

    def change(x: Array) -> Array:
        spatial = x.shape[2:-1]
        if (
            len(spatial) != len(strides)
            or len(behind) != len(strides)
            or min(strides, default=1) < 1
            or min(behind, default=0) < 0
        ):
            raise site.malformed(f"stride {strides} and output_padding {behind} of a shape of {list(x.shape[1:])}")
        sizes = [(size - 1) * step + 1 + extra for size, step, extra in zip(spatial, strides, behind, strict=True)]
        if max(sizes, default=0) > 1 << 15:
            raise site.malformed(f"an output of {sizes}")
        site.room(*x.shape[:2], *sizes, x.shape[-1])
        wide = np.zeros((*x.shape[:2], *sizes, x.shape[-1]), np.float32)
        place = tuple(slice(0, (size - 1) * step + 1, step) for size, step in zip(spatial, strides, strict=True))
        wide[(slice(None), slice(None), *place)] = x
        return wide

    return _simple(site, change)
