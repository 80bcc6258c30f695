"""Functions of one value: by the table the model brings, or computed where it brings none.

8 bits: 256 entries, exact. 16 bits: 65536 / step + 1 entries, of which the nearest is taken; ESP-PPQ simulates that
only for nodes it rewrote to ``LUT`` (whole models of 16 bits), elsewhere it computes the function itself while the
device still reads the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from device_agents.emulated.espdl.arithmetic import (
    Array,
    exp,
    half,
    holder,
    quantized,
    requantized,
    rounded,
    sigmoid,
    tanh,
)
from device_agents.emulated.espdl.kernels.base import Run, Site
from device_agents.emulated.espdl.kernels.elementwise import rescale
from device_agents.emulated.espdl.model import Tensor

Function = Callable[[Array], Array]


def activation(site: Site) -> Run:
    table = table_of(site)
    bits = site.activation(0).bits
    if table is not None and bits == 8:
        return _whole_table(site, table)
    if table is not None and bits == 16 and (site.on_device or site.node.op == "LUT"):
        return _nearest(site, table)
    if not bits or not site.out_bits:
        raise site.unsupported("float input or output")
    if site.node.op == "Relu":
        return _clipped(site, 0.0, None)
    if site.node.op == "Clip":
        return _clipped(site, _bound(site, 1, "min"), _bound(site, 2, "max"))
    if site.node.op == "PRelu":
        return _prelu(site)
    return _computed(site, function_of(site))


def table_of(site: Site) -> Tensor | None:
    name = site.node.text("lut")
    if not name:
        return None
    table = site.constants.get(name)
    if table is None:
        raise site.malformed(f"its table {name!r} is missing")
    return table


def _whole_table(site: Site, table: Tensor) -> Run:
    if len(table.values) != 256:
        raise site.malformed(f"a table of {len(table.values)} entries for 8 bits")
    values = table.values.astype(np.float32)

    def run(inputs: Sequence[Array]) -> list[Array]:
        index = inputs[0].astype(np.int16)
        index += 128
        return [values[index]]

    return run


def _nearest(site: Site, table: Tensor) -> Run:
    entries = len(table.values)
    step = 65536 // (entries - 1) if entries > 1 else 0
    if step < 1 or step * (entries - 1) != 65536:
        raise site.malformed(f"a table of {entries} entries for 16 bits")
    if step & (step - 1):
        raise site.unsupported(f"a table with a step of {step}, which is no power of two")
    values = table.values.astype(np.float32)

    def run(inputs: Sequence[Array]) -> list[Array]:
        place = (inputs[0] + np.float32(32768)) * np.float32(1.0 / step)
        return [values[rounded(place, site.target).astype(np.int32)]]

    return run


def _bound(site: Site, index: int, name: str) -> float | None:
    operand = site.optional(index)
    if operand is not None:
        tensor = site.constant(index)
        if len(tensor.values) != 1:
            raise site.malformed(f"{name} has {len(tensor.values)} values")
        return float(tensor.values[0]) * 2.0**operand.exponent
    value = site.node.attributes.get(name)
    return float(value) if isinstance(value, int | float) else None


def _clipped(site: Site, low: float | None, high: float | None) -> Run:
    """Bounds are real values; clipping before rounding, as the executor does."""
    x = site.activation(0)
    if low is None and high is None:
        return rescale(site, x.exponent, x.bits)
    scale = 2.0**x.exponent

    def run(inputs: Sequence[Array]) -> list[Array]:
        real = np.clip(inputs[0].astype(np.float64) * scale, low, high)
        return [quantized(real, site.out.exponent, site.out_bits, site.target)]

    return run


def _prelu(site: Site) -> Run:
    x, slope = site.activation(0), site.constant(1)
    factors = slope.values.astype(np.float64)
    shift_down = site.out.exponent - x.exponent - slope.exponent
    shift = site.out.exponent - x.exponent
    dtype = holder(
        float(1 << (x.bits - 1)) * (np.abs(factors).max(initial=1) + 1) * max(1.0, 2.0 ** -min(shift, shift_down))
        + half(max(shift, shift_down))
    )

    def run(inputs: Sequence[Array]) -> list[Array]:
        values = inputs[0]
        if len(factors) not in (1, values.shape[-1]):
            raise site.malformed(f"{len(factors)} slopes for {values.shape[-1]} channels")
        wide = values.astype(dtype)
        positive = requantized(wide.copy(), shift, site.out_bits, site.target)
        negative = requantized(wide * factors.astype(dtype), shift_down, site.out_bits, site.target)
        return [np.where(values >= 0, positive, negative)]

    return run


def function_of(site: Site) -> Function:
    """The real function, in float64."""
    node = site.node
    kind = node.text("original_op_type") or node.op
    if kind == "Sigmoid":
        return sigmoid
    if kind == "Tanh":
        return tanh
    if kind == "Swish":
        return lambda x: x * sigmoid(x)
    if kind == "Exp":
        return exp
    if kind == "LeakyRelu":
        slope = node.number("alpha", 0.01)
        return lambda x: np.where(x >= 0, x, x * slope)
    if kind == "Elu":
        alpha = node.number("alpha", 1.0)
        return lambda x: np.where(x > 0, x, alpha * (exp(np.minimum(x, 0)) - 1))
    if kind in ("HardSigmoid", "HardSwish"):
        plain = kind == "HardSigmoid"
        alpha, beta = (node.number("alpha", 0.2), node.number("beta", 0.5)) if plain else (1 / 6, 0.5)
        return (lambda x: np.clip(alpha * x + beta, 0, 1)) if plain else (lambda x: x * np.clip(alpha * x + beta, 0, 1))
    if kind in ("Identity", "Cast"):
        return lambda x: x
    raise site.unsupported("no table, and the function is not known")


def _computed(site: Site, function: Function) -> Run:
    scale = 2.0 ** site.activation(0).exponent

    def run(inputs: Sequence[Array]) -> list[Array]:
        real = function(inputs[0].astype(np.float64) * scale)
        return [quantized(real, site.out.exponent, site.out_bits, site.target)]

    return run
