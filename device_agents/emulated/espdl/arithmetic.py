"""Integer arithmetic in floating point, exactly.

Integers are held in float32 or float64 so that matrix products run in BLAS. That is exact: products and sums of
integers are integers, and every integer of magnitude up to 2**24 (2**53) is a float32 (float64), so as long as the
sum of the magnitudes of all terms stays below that bound no partial sum is ever rounded, in whatever order they are
added. :func:`holder` picks the type by that bound. Scaling by a power of two is exact, and so is adding one half
while the sum still has room for it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from device_agents.emulated.espdl.target import Target

Array = npt.NDArray[Any]

FLOAT32_EXACT: Final = 1 << 24
FLOAT64_EXACT: Final = 1 << 53


def holder(bound: float) -> type[np.float32] | type[np.float64]:
    """The type in which integers up to ``bound`` are exact."""
    if bound <= FLOAT32_EXACT:
        return np.float32
    if bound <= FLOAT64_EXACT:
        return np.float64
    raise OverflowError(f"integers up to {bound:.3g} do not fit 53 bits")


def limits(bits: int) -> tuple[int, int]:
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def rounded(values: Array, target: Target) -> Array:
    """In place: to the nearest integer, halves as the target has them."""
    if target.half_even:
        return np.rint(values, out=values)
    values += values.dtype.type(0.5)
    return np.floor(values, out=values)


def requantized(acc: Array, shift: int | Array, bits: int, target: Target, *, relu: bool = False) -> Array:
    """In place: ``acc`` * 2**-shift, rounded and clipped to ``bits``, as float32. ``shift`` may be one for each
    channel (last axis)."""
    if np.any(shift):
        acc *= np.exp2(-np.asarray(shift, np.float64)).astype(acc.dtype)
        if np.max(shift) > 0:
            rounded(acc, target)
    low, high = limits(bits)
    np.clip(acc, acc.dtype.type(0 if relu else low), acc.dtype.type(high), out=acc)
    return acc.astype(np.float32, copy=False)


def half(shift: int | Array) -> int:
    """What rounding adds before the shift: room for it must be left in the accumulator's type."""
    largest = int(np.max(shift))
    return 1 << (largest - 1) if largest > 0 else 0


def quantized(real: Array, exponent: int, bits: int, target: Target) -> Array:
    """Real values (float32 or float64, not changed) to integers of ``bits`` with ``exponent``, as float32. NaN
    becomes 0."""
    low, high = limits(bits)
    scaled = np.nan_to_num(real * real.dtype.type(2.0**-exponent), copy=False, nan=0.0)
    return np.clip(rounded(scaled, target), low, high).astype(np.float32, copy=False)


# Cephes' rational exp would do too; this is the Taylor series after reduction to |r| <= ln(2)/2, whose 14 terms leave
# a relative error under 1e-16. Written out in additions and multiplications so that C computes the very same float64.
_LN2_HIGH: Final = 6.93147180369123816490e-01
_LN2_LOW: Final = 1.90821492927058770002e-10
_INVERSE_LN2: Final = 1.44269504088896338700e00
_FACTORIALS: Final = (
    6227020800.0, 479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0,
)  # fmt: skip
_EXP_LOWEST: Final = -700.0
_EXP_HIGHEST: Final = 700.0


def exp(values: Array) -> Array:
    """e**x in float64 by operations that IEEE 754 fixes to the bit; x is clipped to ±700."""
    x = np.clip(values.astype(np.float64), _EXP_LOWEST, _EXP_HIGHEST)
    k = np.floor(x * _INVERSE_LN2 + 0.5)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    total = np.full_like(r, 1.0 / _FACTORIALS[0])
    for factorial in _FACTORIALS[1:]:
        total = total * r + 1.0 / factorial
    return total * np.ldexp(1.0, k.astype(np.int64))


def sigmoid(values: Array) -> Array:
    e = exp(-np.abs(values.astype(np.float64)))
    return np.where(values >= 0, 1.0 / (1.0 + e), e / (1.0 + e))


def tanh(values: Array) -> Array:
    e = exp(-2.0 * np.abs(values.astype(np.float64)))
    positive = (1.0 - e) / (1.0 + e)
    return np.where(values >= 0, positive, -positive)
