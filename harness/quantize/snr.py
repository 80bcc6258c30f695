"""Signal-to-noise ratio of outputs against the float model's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

MAX_SNR_DB = 200.0
"""Reported for equal outputs: float32 cannot show more than about 150 dB, and JSON has no infinity."""


class NonFiniteOutputError(ValueError):
    """An output is NaN or infinite where the float model's is finite."""


def snr_db(reference: Sequence[npt.NDArray[np.generic]], outputs: Sequence[npt.NDArray[np.generic]]) -> float:
    """``10·log10(Σ ref² / Σ (ref − out)²)`` over the samples of one output, in dB, within ±:data:`MAX_SNR_DB`.

    Each element of the sequences is one sample's array. Values that are not finite in the reference (masks) must be
    equal in the output and count no further. Integer and boolean outputs (argmax, indices) have no noise power;
    for them the share of unequal elements is the noise and 1 the signal, so 15 dB is 96.8 % agreement. A sample
    whose shape differs counts as wholly unequal (integers), or as if the output were zero (floats).

    Raises :class:`NonFiniteOutputError`.
    """
    signal = noise = 0.0
    for expected, got in zip(reference, outputs, strict=True):
        if np.issubdtype(expected.dtype, np.inexact):
            s, n = _float_powers(expected, got)
        else:
            s, n = _agreement_powers(expected, got)
        signal += s
        noise += n
    if noise == 0.0:
        return MAX_SNR_DB
    if signal == 0.0:
        return -MAX_SNR_DB
    return float(np.clip(10.0 * (np.log10(signal) - np.log10(noise)), -MAX_SNR_DB, MAX_SNR_DB))


def _float_powers(expected: npt.NDArray[np.generic], got: npt.NDArray[np.generic]) -> tuple[float, float]:
    wide = expected.astype(np.float64)
    if got.shape != expected.shape:
        power = float(np.sum(np.square(wide[np.isfinite(wide)])))
        return power, power
    other = got.astype(np.float64)
    finite = np.isfinite(wide)
    if not np.isfinite(other[finite]).all():
        bad = int(np.count_nonzero(~np.isfinite(other[finite])))
        raise NonFiniteOutputError(f"{bad} of {other.size} values are NaN or infinite")
    masked = ~finite
    if masked.any() and not np.array_equal(wide[masked], other[masked], equal_nan=True):
        # A mask that is no longer there: noise without bound, so as large as the signal.
        power = float(np.sum(np.square(wide[finite]))) or 1.0
        return power, power
    return float(np.sum(np.square(wide[finite]))), float(np.sum(np.square(wide[finite] - other[finite])))


def _agreement_powers(expected: npt.NDArray[np.generic], got: npt.NDArray[np.generic]) -> tuple[float, float]:
    if got.shape != expected.shape:
        size = max(expected.size, got.size)
        return float(size), float(size)
    return float(expected.size), float(np.count_nonzero(expected != got))
