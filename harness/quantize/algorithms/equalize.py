"""Cross-layer equalization: the weights of consecutive layers scaled against each other, channel by channel, so that
no channel's weights vanish under a scale shared with larger ones. The float function stays the same.

Nagel et al., "Data-Free Quantization through Weight Equalization and Bias Correction" (ICCV 2019), section 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto

from harness.quantize.algorithms.layers import (
    FloatArray,
    Layer,
    constant,
    consumers,
    linear_layers,
    owned_biases,
    set_constant,
)
from harness.quantize.statistics import ActivationStatistics

VERSION = 3
ROUNDS = 20
"""Passes over all pairs; each pair disturbs its neighbours' balance, less every time."""
HEADROOM = 1.25
"""Of calibrated maxima under a Clip's bound: other samples reach further."""
_ENOUGH = 1e-3
"""Largest change of a factor in a pass at which to stop."""
_FURTHEST = 1e4
"""By which a channel may grow or shrink in all."""
_DEAD = 1e-6
"""Of a layer's largest channel: what is smaller is no channel, and grown, its bias would drown the others."""
_HOMOGENEOUS = frozenset({"Relu", "LeakyRelu", "PRelu", "Identity", "Dropout"})
"""``f(s·x) = s·f(x)`` for s > 0 in every channel."""
_SPATIAL = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})
"""Homogeneous as well, and they leave channels where they are."""


@dataclass(eq=False)
class _Pair:
    """Layers of which the second reads nothing but the first."""

    first: str
    second: str
    largest: npt.NDArray[np.float64]
    """How far each channel may grow in all, [channels]; 1 where it may not change at all."""
    fixed: npt.NDArray[np.bool_]
    grown: npt.NDArray[np.float64]
    """By how much each channel has grown."""


def equalize(model: ModelProto, statistics: Mapping[str, ActivationStatistics] | None = None) -> int:
    """Equalizes every pair of layers in place; returns how many pairs there were.

    With ``statistics`` also through Clip from 0 on (ReLU6): those channels that stayed below its upper bound by
    :data:`HEADROOM`, and as far as they still do. Without, and for channels that reach the bound, nothing is changed.
    """
    layers = {layer.node.name or layer.output: layer for layer in linear_layers(model)}
    biases = owned_biases(model, list(layers.values()))
    pairs = list(_pairs(model, layers, biases, statistics or {}))
    for _ in range(ROUNDS):
        change = 0.0
        for pair in pairs:
            change = max(change, _balance(layers, biases, pair))
        if change < _ENOUGH:
            break
    for name in {name for pair in pairs for name in (pair.first, pair.second)}:
        layer = layers[name]
        set_constant(model.graph, layer.name, layer.weights)
        if layer.bias in biases:
            set_constant(model.graph, layer.bias, biases[layer.bias])
    return len(pairs)


def _pairs(
    model: ModelProto,
    layers: Mapping[str, Layer],
    biases: Mapping[str, FloatArray],
    statistics: Mapping[str, ActivationStatistics],
) -> Iterator[_Pair]:
    readers = consumers(model)
    by_node = {id(layer.node): key for key, layer in layers.items()}
    for key, layer in layers.items():
        if layer.bias and layer.bias not in biases:
            continue
        tensor, vector = layer.output, layer.node.op_type != "Conv"
        largest = np.full(layer.outputs, _FURTHEST)
        while len(readers.get(tensor, ())) == 1:
            node = readers[tensor][0]
            after = by_node.get(id(node))
            if after is not None and tensor == layers[after].input:
                if _fits(layer, layers[after], vector):
                    yield _Pair(key, after, largest, largest < 1.0, np.ones(layer.outputs))
                break
            if node.op_type == "Clip" and node.input[0] == tensor:
                room = _room_under_clip(model, layer, node, statistics)
                if room is None:
                    break
                largest = np.minimum(largest, room)
            elif not _keeps_scales(node, tensor):
                break
            # Flattened, a channel is as many inputs of the next layer as it has places: only one place is simple.
            vector = vector or node.op_type.startswith("Global")
            tensor = str(node.output[0])


def _room_under_clip(
    model: ModelProto, layer: Layer, node: NodeProto, statistics: Mapping[str, ActivationStatistics]
) -> npt.NDArray[np.float64] | None:
    """How far each channel can grow before it reaches the upper bound; ``None`` unless the lower bound is 0 and both
    the upper one and the channels are known."""
    bounds = [constant(model.graph, name) if name else None for name in (*node.input, "", "")[1:3]]
    stats = statistics.get(layer.output)
    channels = stats.channels if stats else None
    low, high = bounds
    if low is None or high is None or low.size != 1 or high.size != 1 or float(low.ravel()[0]) != 0.0:
        return None
    if channels is None or len(channels.highest) != layer.outputs or not np.isfinite(channels.highest).all():
        return None
    reached = np.maximum(channels.highest.astype(np.float64), 1e-30)
    return np.asarray(float(high.ravel()[0]) / (HEADROOM * reached))


def _keeps_scales(node: NodeProto, tensor: str) -> bool:
    if node.domain not in ("", "ai.onnx") or not node.output or node.input[0] != tensor:
        return False
    if any(node.output[1:]):
        return False
    return node.op_type in _HOMOGENEOUS | _SPATIAL or node.op_type == "Flatten"


def _fits(first: Layer, second: Layer, vector: bool) -> bool:
    if first.outputs != second.inputs:
        return False
    # A matrix reads and writes the last axis, a convolution axis 1: the same only once the places are gone.
    return vector if second.node.op_type != "Conv" else first.node.op_type == "Conv"


def _balance(layers: dict[str, Layer], biases: dict[str, FloatArray], pair: _Pair) -> float:
    """Scales one pair; returns the largest relative change."""
    one, two = layers[pair.first], layers[pair.second]
    out, into = one.output_magnitudes().astype(np.float64), two.input_magnitudes().astype(np.float64)
    usable = (out > _DEAD * out.max(initial=0.0)) & (into > _DEAD * into.max(initial=0.0))
    usable &= np.isfinite(out) & np.isfinite(into)
    # Powers of two would be exact, but these are as good as float32 can tell.
    factor = np.where(usable, np.sqrt(np.where(usable, into, 1.0) / np.where(usable, out, 1.0)), 1.0)
    factor = np.maximum(np.minimum(factor, pair.largest / pair.grown), 1.0 / (_FURTHEST * pair.grown))
    factor = np.where(pair.fixed, 1.0, factor)
    pair.grown = pair.grown * factor
    layers[pair.first] = replace(one, weights=one.scaled_outputs(factor))
    layers[pair.second] = replace(two, weights=two.scaled_inputs(1.0 / factor))
    if one.bias in biases:
        biases[one.bias] = np.asarray(biases[one.bias] * factor, dtype=np.float32)
    return float(np.abs(np.log(factor)).max(initial=0.0))
