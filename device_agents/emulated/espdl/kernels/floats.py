"""Into floating point and back: QuantizeLinear, DequantizeLinear, Softmax, LogSoftmax.

Results are computed in float64 and rounded to float32 once, so that they do not depend on the order of sums; ESP-PPQ
and esp-dl compute in float32, and the last bits differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from device_agents.emulated.espdl.arithmetic import Array, exp, quantized
from device_agents.emulated.espdl.kernels.base import Run, Site


def quantize(site: Site) -> Run:
    if site.activation(0).bits or not site.out_bits:
        raise site.unsupported("from or to what it is made for: float to integers")

    def run(inputs: Sequence[Array]) -> list[Array]:
        return [quantized(inputs[0], site.out.exponent, site.out_bits, site.target)]

    return run


def dequantize(site: Site) -> Run:
    x = site.activation(0)
    if not x.bits or site.out_bits:
        raise site.unsupported("from or to what it is made for: integers to float")
    scale = np.float32(2.0**x.exponent)
    return lambda inputs: [inputs[0] * scale]


def softmax(site: Site) -> Run:
    x = site.activation(0)
    scale = 2.0**x.exponent if x.bits else 1.0
    axis_given = site.node.integer("axis", -1)
    logarithm = site.node.op == "LogSoftmax"

    def run(inputs: Sequence[Array]) -> list[Array]:
        values = inputs[0]
        axis = site.axis(axis_given, values.ndim - 1)
        real = values.astype(np.float64) * scale
        real -= real.max(axis=axis, keepdims=True)
        power = exp(real)
        # one by one, as a loop in C adds
        total = np.take(np.cumsum(power, axis=axis), [-1], axis=axis)
        out = (real - np.log(total) if logarithm else power / total).astype(np.float32)
        return [quantized(out, site.out.exponent, site.out_bits, site.target) if site.out_bits else out]

    return run
