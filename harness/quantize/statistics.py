"""One streaming pass over the calibration set: what every calibration method needs, in bounded memory.

Per activation: the range, counts, and a histogram around zero whose half-width is a power of two. When a value falls
outside, the width doubles and neighbouring bins are merged exactly, so histograms of parts can be merged too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, TensorProto

from harness.quantize.graph import initializers_of
from harness.quantize.model_file import save_model
from harness.quantize.sessions import open_session

BINS = 8192
"""Over [-half_width, half_width): at least 2048 between zero and the largest magnitude."""
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


class Accumulator:
    """Gathers the statistics of one tensor, array by array."""

    def __init__(self, *, histogram: bool, bins: int = BINS) -> None:
        self._wants_histogram = histogram
        self._bins = bins
        self._counts = np.zeros(bins, dtype=np.int64)
        self._half_width = 0.0
        self._pending_zeros = 0
        self._lowest = math.inf
        self._highest = -math.inf
        self._count = 0
        self._non_finite = 0
        self._dtype = "float32"

    def add(self, array: npt.NDArray[np.generic]) -> None:
        self._dtype = str(array.dtype)
        values = np.asarray(array, dtype=np.float32).ravel()
        if values.size == 0:
            return
        lowest, highest = float(values.min()), float(values.max())
        if not (math.isfinite(lowest) and math.isfinite(highest)):
            finite = np.isfinite(values)
            self._non_finite += int(values.size - np.count_nonzero(finite))
            values = values[finite]
            if values.size == 0:
                return
            lowest, highest = float(values.min()), float(values.max())
        self._count += values.size
        self._lowest = min(self._lowest, lowest)
        self._highest = max(self._highest, highest)
        if self._wants_histogram:
            self._count_into_bins(values, max(-lowest, highest, 0.0))

    def result(self) -> ActivationStatistics | None:
        """``None`` if no finite value was seen."""
        if self._count == 0:
            return None
        histogram = None
        if self._half_width > 0.0:
            histogram = Histogram(self._counts.copy(), self._half_width)
        return ActivationStatistics(self._lowest, self._highest, self._count, self._non_finite, histogram, self._dtype)

    def _count_into_bins(self, values: npt.NDArray[np.float32], magnitude: float) -> None:
        if magnitude == 0.0:
            if self._half_width == 0.0:
                self._pending_zeros += values.size
            else:
                self._counts[self._bins // 2] += values.size
            return
        self._widen(_power_of_two_above(magnitude))
        # Positions in float64: with float32 a value just under an edge may round onto it.
        scale = self._bins / (2.0 * self._half_width)
        index = np.floor(values.astype(np.float64) * scale).astype(np.int64) + self._bins // 2
        np.clip(index, 0, self._bins - 1, out=index)
        self._counts += np.bincount(index, minlength=self._bins)

    def _widen(self, half_width: float) -> None:
        if self._half_width == 0.0:
            self._half_width = half_width
            self._counts[self._bins // 2] += self._pending_zeros
            self._pending_zeros = 0
        while self._half_width < half_width:
            merged = self._counts.reshape(-1, 2).sum(axis=1)
            quarter = self._bins // 4
            self._counts = np.zeros(self._bins, dtype=np.int64)
            self._counts[quarter : quarter + len(merged)] = merged
            self._half_width *= 2.0


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


def collect(
    model: ModelProto,
    tensors: Iterable[str],
    feeds: Iterable[Mapping[str, npt.NDArray[np.generic]]],
    folder: Path,
    *,
    histogram: bool,
    breathe: Callable[[], None] = lambda: None,
) -> dict[str, ActivationStatistics]:
    """Runs the float model over ``feeds`` and gathers the statistics of ``tensors``.

    ``breathe`` is called between batches. ``folder`` takes a temporary model. Tensors without a finite value are left
    out. Raises what ONNX Runtime raises.
    """
    names = list(tensors)
    accumulators = {name: Accumulator(histogram=histogram) for name in names}
    inputs = {value.name for value in model.graph.input}
    computed = [name for name in names if name not in inputs]
    path = folder / "observed.onnx"
    save_model(_with_outputs(model, computed), path)
    # Optimised, an intermediate value may be computed fused and differ from what the quantizer will see.
    session = open_session(path, "disabled")
    for feed in feeds:
        for name, array in zip(computed, session.run(computed, dict(feed)), strict=True) if computed else ():
            accumulators[name].add(array)
        for name in inputs & set(names):
            accumulators[name].add(feed[name])
        breathe()
    results = {name: accumulator.result() for name, accumulator in accumulators.items()}
    return {name: result for name, result in results.items() if result is not None}


def _with_outputs(model: ModelProto, names: Iterable[str]) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    present = {value.name for value in copy.graph.output}
    types = {value.name: value.type.tensor_type.elem_type for value in copy.graph.value_info}
    copy.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, types[name], None) for name in names if name not in present
    )
    return copy
