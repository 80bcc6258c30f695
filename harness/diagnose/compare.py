"""Runs the float model and the quantized one over the same samples and gathers, tensor by tensor, what was lost.

Both run unoptimised: intermediate values are then what the graphs say. Memory is bounded by one sample's tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from harness.diagnose.tensors import Grid, Reading
from harness.quantize.model_file import save_model
from harness.quantize.observe import SHOWN_BYTES, grouped
from harness.quantize.sessions import open_session
from harness.quantize.snr import MAX_SNR_DB

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float64]
Feed = Mapping[str, Array]

LOST_DB = 6.0
"""Less signal than four times the noise."""
FINE_DB = 20.0
SMALL = 0.1
"""Of the largest magnitude: what is called a small signal beside others."""
SLICES = 4096
"""Axes longer than this are not looked at place by place."""


@dataclass(frozen=True, eq=False)
class Loss:
    """One activation over the samples compared."""

    tensor: str
    grid: Grid | None
    signal: Floats
    """float64 [samples]: sum of squares of the float values."""
    noise: Floats
    """float64 [samples]: sum of squares of the differences."""
    clipped: Floats
    """float64 [samples]: share of values that the quantized range cuts off by more than half a step."""
    clip_noise: Floats
    """float64 [samples]: sum of squares of what is cut off."""
    lowest: float
    highest: float
    values: int
    """Over all samples."""
    non_finite: int
    """Values that are NaN or infinite in the quantized model and finite in the float one."""
    slices: Mapping[int, Slices] = field(default_factory=dict)
    """By axis (of the tensor, without the first)."""

    @property
    def snr_db(self) -> float:
        return ratio_db(float(self.signal.sum()), float(self.noise.sum()))

    @property
    def clip_share_of_noise(self) -> float:
        total = float(self.noise.sum())
        return min(1.0, float(self.clip_noise.sum()) / total) if total > 0.0 else 0.0

    @property
    def clipped_share(self) -> float:
        return float(self.clipped.mean()) if self.clipped.size else 0.0


@dataclass(frozen=True, eq=False)
class Slices:
    """One activation along one axis, over all samples; arrays are float64 [length]."""

    signal: Floats
    noise: Floats
    peak: Floats
    """Largest magnitude of the float values."""

    def with_more(self, signal: Floats, noise: Floats, peak: Floats) -> Slices:
        """With another sample's values."""
        return Slices(self.signal + signal, self.noise + noise, np.maximum(self.peak, peak))

    @property
    def lost(self) -> npt.NDArray[np.intp]:
        """Places whose values are small beside the others' and drown, where the whole is fine."""
        if ratio_db(float(self.signal.sum()), float(self.noise.sum())) < FINE_DB:
            return np.zeros(0, np.intp)
        small = (self.peak > 0.0) & (self.peak < SMALL * self.peak.max())
        return np.flatnonzero(small & (self.snr_db < LOST_DB))

    @property
    def snr_db(self) -> Floats:
        return np.array([ratio_db(float(s), float(n)) for s, n in zip(self.signal, self.noise, strict=True)])


def ratio_db(signal: float, noise: float) -> float:
    if noise <= 0.0:
        return MAX_SNR_DB
    if signal <= 0.0:
        return -MAX_SNR_DB
    return float(np.clip(10.0 * (math.log10(signal) - math.log10(noise)), -MAX_SNR_DB, MAX_SNR_DB))


def compare(
    model: ModelProto, artifact: ModelProto, readings: Mapping[str, Reading], feeds: Sequence[Feed], folder: Path
) -> dict[str, Loss]:
    """``model`` and ``artifact`` are not changed; ``folder`` holds what is run. Raises what ONNX Runtime raises."""
    fed = {value.name for value in model.graph.input}
    computed = [name for name in readings if name not in fed]
    ours = _opened(model, computed, folder / "float_shown.onnx")
    theirs = _opened(artifact, [readings[name].source for name in readings], folder / "quantized_shown.onnx")
    gathered = {name: _Gathering(readings[name]) for name in readings}
    groups = [[name for name in readings if name in fed], *grouped(model, computed, SHOWN_BYTES // 2)]
    for feed in feeds:
        for group in groups:
            if not group:
                continue
            sources = [readings[name].source for name in group]
            expected = [feed[n] for n in group] if group[0] in fed else ours.run(group, dict(feed))
            got = _run(theirs, sources, feed)
            for name, before, after in zip(group, expected, got, strict=True):
                gathered[name].add(np.asarray(before), np.asarray(after))
    made = {name: item.result() for name, item in gathered.items()}
    return {name: loss for name, loss in made.items() if loss is not None}


def plain_outputs(
    artifact: ModelProto, names: Sequence[str], feeds: Sequence[Feed], folder: Path
) -> dict[str, npt.NDArray[np.float64]]:
    """Outputs of ``artifact`` computed as its graph says, without fused kernels: float64 [feeds, values]."""
    if not names or not feeds:
        return {}
    session = _opened(artifact, (), folder / "quantized_plain.onnx")
    runs = [session.run(list(names), dict(feed)) for feed in feeds]
    return {
        name: np.stack([np.asarray(outputs[index], np.float64).ravel() for outputs in runs])
        for index, name in enumerate(names)
    }


def _run(session: Any, names: Sequence[str], feed: Feed) -> list[Array]:
    """A source may be an input itself, which cannot be asked for as an output."""
    asked = [name for name in dict.fromkeys(names) if name not in feed]
    found = dict(zip(asked, session.run(asked, dict(feed)) if asked else [], strict=True))
    return [feed[name] if name in feed else found[name] for name in names]


def _opened(model: ModelProto, names: Iterable[str], path: Path) -> Any:
    copy = ModelProto()
    copy.CopyFrom(model)
    present = {value.name for value in (*copy.graph.output, *copy.graph.input)}
    for name in dict.fromkeys(names):
        if name not in present:
            copy.graph.output.add().name = name  # ONNX Runtime knows its type.
    save_model(copy, path)
    return open_session(path, "disabled")


class _Gathering:
    """Sums of one tensor, sample by sample."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._rows: list[tuple[float, float, float, float]] = []
        self._lowest, self._highest = math.inf, -math.inf
        self._non_finite = self._values = 0
        self._slices: dict[int, Slices] = {}
        self._seen = False

    def add(self, before: Array, after: Array) -> None:
        if before.dtype.kind != "f" or before.size == 0:
            return
        values = before.astype(np.float64)
        grid = self._reading.grid
        others = grid.values(after) if grid is not None and after.dtype.kind in "iu" else after.astype(np.float64)
        if others.shape != values.shape:
            return
        finite = np.isfinite(values)
        self._non_finite += int(np.count_nonzero(finite & ~np.isfinite(others)))
        values = np.where(finite, values, 0.0)
        # What became NaN or infinite counts as lost wholly, so that sums stay numbers.
        others = np.where(finite & np.isfinite(others), others, 0.0)
        self._seen = True
        self._values += values.size
        noise = np.square(others - values)
        signal = np.square(values)
        cut, cut_noise = self._clipped(values)
        self._rows.append((float(signal.sum()), float(noise.sum()), cut, cut_noise))
        self._lowest = min(self._lowest, float(values.min()))
        self._highest = max(self._highest, float(values.max()))
        for axis in sorted({1, values.ndim - 1} - {0}):
            if values.ndim > 1 and axis < values.ndim and 1 < values.shape[axis] <= SLICES:
                self._add_slices(axis, values, signal, noise)

    def result(self) -> Loss | None:
        """``None`` where it held no floats."""
        if not self._seen:
            return None
        table = np.array(self._rows, dtype=np.float64).reshape(-1, 4)
        return Loss(
            tensor=self._reading.tensor,
            grid=self._reading.grid,
            signal=table[:, 0],
            noise=table[:, 1],
            clipped=table[:, 2],
            clip_noise=table[:, 3],
            lowest=self._lowest,
            highest=self._highest,
            values=self._values,
            non_finite=self._non_finite,
            slices=dict(self._slices),
        )

    def _clipped(self, values: Floats) -> tuple[float, float]:
        grid = self._reading.grid
        if grid is None:
            return 0.0, 0.0
        low, high = grid.bounds
        beyond = np.maximum(np.maximum(values - high, low - values), 0.0)
        return float(np.mean(beyond > 0.5 * grid.scale)), float(np.square(beyond).sum())

    def _add_slices(self, axis: int, values: Floats, signal: Floats, noise: Floats) -> None:
        others = tuple(i for i in range(values.ndim) if i != axis)
        parts = (signal.sum(axis=others), noise.sum(axis=others), np.abs(values).max(axis=others))
        known = self._slices.get(axis)
        fits = known is not None and len(known.peak) == len(parts[0])
        self._slices[axis] = known.with_more(*parts) if known is not None and fits else Slices(*parts)
