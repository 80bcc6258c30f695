"""Statistics of activations, gathered array by array in bounded memory: what every calibration method needs.

Per activation: the range, counts, and a histogram around zero whose half-width is a power of two. When a value falls
outside, the width doubles and neighbouring bins are merged exactly, so histograms of parts can be merged too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto

from harness.quantize.graph import initializers_of

BINS = 8192
"""Over [-half_width, half_width): at least 2048 between zero and the largest magnitude."""
MAX_CHANNELS = 1 << 16
"""Activations with more channels than this (vocabularies) are only known as a whole."""
_CACHED = 1 << 15
_NARROWEST = 2.0**-100
"""Half width below which the scale to bins would overflow float32."""
"""Values binned at once: what stays in a processor's cache."""
_OBSERVED = (TensorProto.FLOAT, TensorProto.FLOAT16)


@dataclass(frozen=True)
class Histogram:
    """Counts of values in :data:`BINS` equal bins over [-half_width, half_width]."""

    counts: npt.NDArray[np.int64]
    half_width: float

    @property
    def edges(self) -> npt.NDArray[np.float64]:
        """float64 [bins + 1]."""
        return np.linspace(-self.half_width, self.half_width, len(self.counts) + 1)

    @property
    def centers(self) -> npt.NDArray[np.float64]:
        """float64 [bins]."""
        edges = self.edges
        return (edges[:-1] + edges[1:]) / 2.0


@dataclass(frozen=True)
class ChannelStatistics:
    """Of each channel of an activation; all arrays are [channels]."""

    axis: int
    lowest: npt.NDArray[np.float32]
    highest: npt.NDArray[np.float32]
    total: npt.NDArray[np.float64]
    """Sum of the values; NaN or infinite where values were."""
    count: int
    """Values in each channel."""

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        return self.total / max(self.count, 1)

    @property
    def magnitude(self) -> npt.NDArray[np.float32]:
        """Largest absolute value."""
        return np.maximum(np.abs(self.lowest), np.abs(self.highest))


@dataclass(frozen=True)
class ActivationStatistics:
    lowest: float
    """Of the finite values."""
    highest: float
    count: int
    """Finite values."""
    non_finite: int
    histogram: Histogram | None
    """``None`` where only the range was asked for, or all values are zero."""
    dtype: str = "float32"
    channels: ChannelStatistics | None = None
    """Where an operator with weights reads or writes the activation, along the axis its weights know."""


class Accumulator:
    """Gathers the statistics of one tensor, array by array. Its fields are its whole state."""

    def __init__(self, *, histogram: bool, bins: int = BINS, axis: int | None = None) -> None:
        """``axis`` is that of the channels to tell apart, if any."""
        self.wants_histogram = histogram
        self.axis = axis
        self.counts = np.zeros(bins, dtype=np.int64)
        self.half_width = 0.0
        self.lowest = math.inf
        self.highest = -math.inf
        self.count = 0
        self.non_finite = 0
        self.dtype = "float32"
        self.channels: ChannelStatistics | None = None

    def add(self, array: npt.NDArray[np.generic]) -> None:
        if self.count == 0:
            self.dtype = array.dtype.name
        values = np.ascontiguousarray(array, dtype=np.float32)
        if values.size == 0:
            return
        lowest, highest = self._add_range(values)
        flat = values.ravel()
        if not (math.isfinite(lowest) and math.isfinite(highest)):
            finite = np.isfinite(flat)
            self.non_finite += int(flat.size - np.count_nonzero(finite))
            flat = flat[finite]
            if flat.size == 0:
                return
            lowest, highest = float(flat.min()), float(flat.max())
        zeros_before = self.count
        self.count += flat.size
        self.lowest = min(self.lowest, lowest)
        self.highest = max(self.highest, highest)
        if self.wants_histogram:
            self._count_into_bins(flat, max(-lowest, highest, 0.0), zeros_before)

    def result(self) -> ActivationStatistics | None:
        """``None`` if no finite value was seen."""
        if self.count == 0:
            return None
        histogram = Histogram(self.counts.copy(), self.half_width) if self.half_width > 0.0 else None
        return ActivationStatistics(
            self.lowest, self.highest, self.count, self.non_finite, histogram, self.dtype, self.channels
        )

    def _add_range(self, values: npt.NDArray[np.float32]) -> tuple[float, float]:
        """Extremes of ``values``, NaN or infinite if one of them is; per channel too, where channels are told apart."""
        axis = self.axis
        if axis is None or not -values.ndim <= axis < values.ndim or values.shape[axis] > MAX_CHANNELS:
            return float(values.min()), float(values.max())
        channels = values.shape[axis]
        table = _by_channel(values, axis)
        low, high = table.min(axis=(0, 2)), table.max(axis=(0, 2))
        with np.errstate(invalid="ignore", over="ignore"):
            # Along the contiguous axis pairwise in float32, then float64: as exact as needed, and vectorised.
            total = table.sum(axis=2).sum(axis=0, dtype=np.float64)
        before = self.channels
        count = values.size // channels
        if before is not None and len(before.lowest) == channels:
            # fmin and fmax: a NaN of one batch does not hide the range of the others.
            self.channels = ChannelStatistics(
                axis, np.fmin(before.lowest, low), np.fmax(before.highest, high), before.total + total,
                before.count + count,
            )  # fmt: skip
        else:
            self.channels = ChannelStatistics(axis, low, high, total, count)
        return float(low.min()), float(high.max())

    def _count_into_bins(self, values: npt.NDArray[np.float32], magnitude: float, zeros_before: int) -> None:
        bins = len(self.counts)
        if magnitude == 0.0:
            if self.half_width > 0.0:
                self.counts[bins // 2] += values.size
            return
        if self.half_width == 0.0:
            # All before were zeros, which fit any width.
            self.half_width = _power_of_two_above(magnitude)
            self.counts[bins // 2] += zeros_before
        while self.half_width <= magnitude:
            self._widen()
        # Both are powers of two, so the scaled value is exact in float32 too, and no value can round into the next bin.
        kind = np.float32 if self.half_width >= _NARROWEST else np.float64
        scale = kind(bins / (2.0 * self.half_width))
        for start in range(0, values.size, _CACHED):
            places = np.floor(values[start : start + _CACHED] * scale).astype(np.intp)
            places += bins // 2
            self.counts += np.bincount(places, minlength=bins)

    def _widen(self) -> None:
        merged = self.counts.reshape(-1, 2).sum(axis=1)
        quarter = len(self.counts) // 4
        self.counts = np.zeros(len(self.counts), dtype=np.int64)
        self.counts[quarter : quarter + len(merged)] = merged
        self.half_width *= 2.0


def _by_channel(values: npt.NDArray[np.float32], axis: int) -> npt.NDArray[np.float32]:
    """``values`` as [before, channels, after]."""
    if axis in (-1, values.ndim - 1):
        return values.reshape(-1, values.shape[-1], 1)
    return values.reshape(math.prod(values.shape[:axis]), values.shape[axis], -1)


def _power_of_two_above(value: float) -> float:
    """The smallest power of two above ``value`` (> 0)."""
    mantissa, exponent = math.frexp(value)
    del mantissa
    return math.ldexp(1.0, exponent)


def observed_tensors(model: ModelProto, op_types: Iterable[str]) -> tuple[str, ...]:
    """Float activations that nodes of the given types read or write, in graph order; types must be inferred."""
    wanted = set(op_types)
    constants = initializers_of(model.graph)
    values = [*model.graph.value_info, *model.graph.output, *model.graph.input]
    floats = {v.name for v in values if v.type.tensor_type.elem_type in _OBSERVED} - set(constants)
    names = (n for node in model.graph.node if node.op_type in wanted for n in (*node.input, *node.output))
    return tuple(dict.fromkeys(name for name in names if name in floats))


def channel_axes(model: ModelProto) -> dict[str, int]:
    """Activation -> axis of the channels its weights know: 1 beside convolutions, the last beside matrices."""
    axes: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type in _CONVOLUTIONS:
            names, axis = (*node.input[:1], *node.output[:1]), 1
        elif node.op_type in ("MatMul", "Gemm", "LayerNormalization"):
            names, axis = (*node.input[:2], *node.output[:1]), -1
        else:
            continue
        for name in names:
            axes.setdefault(name, axis)
    return axes


_CONVOLUTIONS = ("Conv", "ConvTranspose", "BatchNormalization", "InstanceNormalization", "PRelu")
