"""Add, Sub, Mul and RequantizeLinear."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from device_agents.emulated.espdl.arithmetic import Array, half, holder, limits, requantized
from device_agents.emulated.espdl.kernels.base import Operand, Run, Site, aligned, as_float32


def _pair(site: Site) -> tuple[Operand, Operand]:
    first, second = site.operand(0), site.operand(1)
    if not site.out_bits or not first.bits or not second.bits:
        raise site.unsupported("float input or output")
    return first, second


def _fed(site: Site, operands: Sequence[Operand]) -> Run:
    """All inputs, constants among them, with equal rank."""
    fixed = [None if operand.constant is None else as_float32(operand.constant) for operand in operands]

    def run(inputs: Sequence[Array]) -> list[Array]:
        moving = iter(inputs)
        arrays = aligned([next(moving) if value is None else value for value in fixed])
        try:
            site.room(*np.broadcast_shapes(*(array.shape for array in arrays)))
        except ValueError:
            shapes = " and ".join(str(list(array.shape[1:])) for array in arrays)
            raise site.malformed(f"shapes {shapes} do not broadcast") from None
        return arrays

    return run


def add(site: Site) -> Run:
    return _sum(site, 1)


def sub(site: Site) -> Run:
    return _sum(site, -1)


def _sum(site: Site, sign: int) -> Run:
    """``reference``: both sides at the finer exponent, then to the output's. ``device``: the integers as they are,
    saturated."""
    first, second = _pair(site)
    exponents = (first.exponent, second.exponent)
    # the device's kernels do not look at exponents, and where all are equal neither need we
    common = site.out.exponent if site.on_device else min(exponents)
    scales = [1.0 if site.on_device else 2.0 ** (exponent - common) for exponent in exponents]
    shift = site.out.exponent - common
    largest = 1 << (max(first.bits, second.bits) - 1)
    try:
        dtype = holder(largest * sum(scales) * max(1.0, 2.0**-shift) + half(shift))
    except OverflowError as error:
        raise site.unsupported(f"exponents {exponents} are too far apart: {error}") from None
    feed, bits = _fed(site, (first, second)), site.out_bits

    def run(inputs: Sequence[Array]) -> list[Array]:
        a, b = (x if scale == 1 else x * dtype(scale) for x, scale in zip(feed(inputs), scales, strict=True))
        acc = np.add(a, b, dtype=dtype) if sign > 0 else np.subtract(a, b, dtype=dtype)
        return [requantized(acc, shift, bits, site.target)]

    return run


def mul(site: Site) -> Run:
    first, second = _pair(site)
    shift = site.out.exponent - first.exponent - second.exponent
    dtype = holder((1 << (first.bits + second.bits - 2)) * max(1.0, 2.0**-shift) + half(shift))
    feed, bits = _fed(site, (first, second)), site.out_bits

    def run(inputs: Sequence[Array]) -> list[Array]:
        a, b = feed(inputs)
        return [requantized(np.multiply(a, b, dtype=dtype), shift, bits, site.target)]

    return run


def requantize(site: Site) -> Run:
    x = site.activation(0)
    if not x.bits or not site.out_bits:
        raise site.unsupported("float input or output")
    return rescale(site, x.exponent, x.bits)


def rescale(site: Site, exponent: int, bits: int) -> Run:
    """The first input at the output's exponent and bits."""
    shift = site.out.exponent - exponent
    dtype = holder((1 << (bits - 1)) * max(1.0, 2.0**-shift) + half(shift))

    def run(inputs: Sequence[Array]) -> list[Array]:
        return [requantized(inputs[0].astype(dtype), shift, site.out_bits, site.target)]

    return run


def moved(site: Site, run: Run, exponent: int, bits: int) -> Run:
    """After an operator that only moves values: to the output's exponent (``reference``); the device copies the
    bytes."""
    if (bits == 0) != (site.out_bits == 0):
        raise site.unsupported("types that differ")
    if not bits or (exponent == site.out.exponent and bits == site.out_bits):
        return run
    if site.on_device:
        low, high = limits(site.out_bits)
        return lambda inputs: [np.clip(array, low, high) for array in run(inputs)]
    scale = rescale(site, exponent, bits)
    return lambda inputs: [scale([array])[0] for array in run(inputs)]
