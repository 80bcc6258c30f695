"""Second moments of what layers read on calibration samples: all that is needed to judge a change of their weights.

For outputs ``y = W·x`` the mean square error of other weights is ``tr(ΔW·E[x·xᵀ]·ΔWᵀ)``. Gathered in one streaming pass
over a seeded choice of places, so memory depends on the layers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, helper

from harness.quantize.algorithms.layers import FloatArray, Layer
from harness.quantize.observe import Feed, Observer

PLACES = 64
"""Positions of a feature map (rows of a matrix) taken from each batch."""
LARGEST_BYTES = 64 << 20
"""Of one layer's moments; larger layers are left out."""
TOTAL_BYTES = 1 << 30
"""Of all moments."""
_SEED = 20240229

Transform = Callable[[str, FloatArray], FloatArray]


@dataclass(eq=False)
class Moments:
    """Sums over ``count`` samples of a layer's input, by group: x as in float, q as the quantized model reads it."""

    qq: npt.NDArray[np.float64]
    """[groups, inputs, inputs]: Σ q·qᵀ."""
    xq: npt.NDArray[np.float64]
    """[groups, inputs, inputs]: Σ x·qᵀ."""
    x: npt.NDArray[np.float64]
    """[groups, inputs]: Σ x."""
    q: npt.NDArray[np.float64]
    """[groups, inputs]: Σ q."""
    count: int = 0

    @classmethod
    def empty(cls, groups: int, inputs: int) -> Moments:
        square, line = (groups, inputs, inputs), (groups, inputs)
        return cls(np.zeros(square), np.zeros(square), np.zeros(line), np.zeros(line))

    def add(self, x: FloatArray, q: FloatArray) -> None:
        """``x`` and ``q`` are [groups, places, inputs]."""
        products = np.matmul(q.transpose(0, 2, 1), q)
        self.qq += products
        self.xq += products if x is q else np.matmul(x.transpose(0, 2, 1), q)
        self.x += x.sum(axis=1, dtype=np.float64)
        self.q += q.sum(axis=1, dtype=np.float64)
        self.count += x.shape[1]


def gather_moments(
    model: ModelProto,
    layers: Iterable[Layer],
    feeds: Iterable[Feed],
    quantized: Transform | None = None,
    breathe: Callable[[], None] = lambda: None,
) -> dict[str, Moments]:
    """Weight name -> moments of the layer's input over ``feeds``. ``quantized`` gives, for a tensor's name and values,
    what the quantized model would read instead; without it ``xq`` equals ``qq``.

    Layers beyond the limits on memory are left out. Raises what ONNX Runtime raises.
    """
    chosen = _within_limits(layers)
    moments: dict[str, Moments] = {}
    by_input: dict[str, list[Layer]] = {}
    for layer in chosen:
        by_input.setdefault(layer.input, []).append(layer)
        moments[layer.name] = Moments.empty(layer.groups, layer.matrix().shape[1])
    observer = Observer(model, by_input)
    for index, feed in enumerate(feeds):
        for name, array in observer.observe(feed):
            x = np.asarray(array, dtype=np.float32)
            if not np.isfinite(x).all():
                continue
            q = quantized(name, x) if quantized else x
            for layer in by_input[name]:
                rows = _rows(layer, x, index)
                other = rows if q is x else _rows(layer, q, index)
                if rows is not None and other is not None:
                    moments[layer.name].add(rows, other)
        breathe()
    return {name: value for name, value in moments.items() if value.count}


def _within_limits(layers: Iterable[Layer]) -> list[Layer]:
    chosen, held = [], 0
    for layer in layers:
        size = 16 * layer.groups * layer.matrix().shape[1] ** 2
        if size <= LARGEST_BYTES and held + size <= TOTAL_BYTES:
            chosen.append(layer)
            held += size
    return chosen


def _rows(layer: Layer, x: FloatArray, index: int) -> FloatArray | None:
    """[groups, places, inputs of a group × kernel] at places that depend on the layer and ``index`` alone."""
    random = np.random.default_rng([_SEED, index, layer.weights.size])
    if layer.node.op_type != "Conv":
        rows = x.reshape(-1, x.shape[-1]) if x.ndim else x
        return (
            np.ascontiguousarray(rows[_some(random, len(rows))][None]) if rows.shape[-1:] == (layer.inputs,) else None
        )
    kernel = layer.weights.shape[2:]
    options = {a.name: helper.get_attribute_value(a) for a in layer.node.attribute}
    if x.ndim != layer.weights.ndim or x.shape[1] != layer.inputs:
        return None
    strides = options.get("strides") or [1] * len(kernel)
    dilations = options.get("dilations") or [1] * len(kernel)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = _pads(options, x.shape[2:], spans, strides)
    padded = np.pad(x, [(0, 0), (0, 0), *pads])
    if any(size < span for size, span in zip(padded.shape[2:], spans, strict=True)):
        return None
    axes = tuple(range(2, x.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans, axes)
    steps = [slice(None, None, int(step)) for step in (*strides, *dilations)]
    windows = windows[(slice(None), slice(None), *steps)]
    places = (x.shape[0], *windows.shape[2 : x.ndim])
    picked = np.unravel_index(_some(random, int(np.prod(places))), places)
    # Advanced indices apart from each other come first: [places, channels, kernel].
    index_of: tuple[Any, ...] = (picked[0], slice(None), *picked[1:])
    rows = windows[index_of]
    rows = rows.reshape(len(rows), layer.groups, -1)
    return np.ascontiguousarray(rows.transpose(1, 0, 2))


def _some(random: np.random.Generator, count: int) -> npt.NDArray[np.intp]:
    if count <= PLACES:
        return np.arange(count)
    return np.sort(random.choice(count, PLACES, replace=False))


def _pads(
    options: Mapping[str, object], sizes: tuple[int, ...], spans: list[int], strides: list[int]
) -> list[tuple[int, int]]:
    """Before and after, for each spatial axis (ONNX operator Conv, attribute ``auto_pad``)."""
    mode = options.get("auto_pad", b"NOTSET")
    if mode in (b"SAME_UPPER", b"SAME_LOWER"):
        made = []
        for size, span, stride in zip(sizes, spans, strides, strict=True):
            total = max((-(-size // stride) - 1) * stride + span - size, 0)
            half = total // 2
            made.append((half, total - half) if mode == b"SAME_UPPER" else (total - half, half))
        return made
    pads = options.get("pads")
    if mode == b"VALID" or not isinstance(pads, list) or not pads:
        return [(0, 0)] * len(sizes)
    return [(int(pads[i]), int(pads[i + len(sizes)])) for i in range(len(sizes))]
