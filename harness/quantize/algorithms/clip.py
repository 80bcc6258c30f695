"""Clipping of weights where their quantization error is least."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from harness.quantize.algorithms.layers import FloatArray, linear_layers, set_constant
from harness.recipes.axes import BITS

STEPS = 40
"""Candidates from :data:`NARROWEST` of the range to all of it."""
NARROWEST = 0.3


def clip_weights(model: ModelProto, weight: str, *, per_channel: bool, symmetric: bool) -> None:
    """Clips the weights of every layer in place; ``weight`` is the integer type they will have."""
    for layer in linear_layers(model):
        matrix = layer.matrix()
        if np.isfinite(matrix).all():
            clipped = clipped_rows(matrix if per_channel else matrix.reshape(1, -1), BITS[weight], symmetric)
            set_constant(model.graph, layer.name, layer.shaped(clipped.reshape(matrix.shape)))


def clipped_rows(rows: FloatArray, bits: int, symmetric: bool) -> FloatArray:
    """Each row clipped such that rounding it to 2^bits levels over its range has the least square error."""
    low, high = np.minimum(rows.min(axis=1), 0.0), np.maximum(rows.max(axis=1), 0.0)
    if symmetric:
        high = np.maximum(-low, high)
        low = -high
    levels = 2**bits - (2 if symmetric else 1)
    best = np.full(len(rows), np.inf)
    chosen = np.ones(len(rows))
    # From the widest: of equals the one that clips least.
    for fraction in np.linspace(1.0, NARROWEST, STEPS):
        error = _errors(rows, (fraction * low).astype(np.float32), (fraction * high).astype(np.float32), levels)
        better = error < best
        best, chosen = np.where(better, error, best), np.where(better, fraction, chosen)
    return np.asarray(
        np.clip(rows, (chosen * low)[:, None], (chosen * high)[:, None]), dtype=np.float32
    )  # fmt: skip


def _errors(rows: FloatArray, low: FloatArray, high: FloatArray, levels: int) -> FloatArray:
    scale = (high - low) / np.float32(levels)
    scale = np.where(scale > 0.0, scale, np.float32(1.0))[:, None]
    zero = np.round(-low[:, None] / scale)
    quantized = (np.clip(np.round(rows / scale) + zero, 0.0, levels) - zero) * scale
    return np.asarray(np.einsum("ij,ij->i", quantized - rows, quantized - rows, dtype=np.float64))
