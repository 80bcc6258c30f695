"""SmoothQuant: outliers of activations behind a layer normalisation moved into the weights that read them.

Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models" (ICML 2023),
equation 4. The float function stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, helper

from harness.quantize.algorithms.layers import Layer, constant, consumers, linear_layers, set_constant
from harness.quantize.statistics import ActivationStatistics

VERSION = 1
_SMALLEST = 1e-5
"""Lower bound of magnitudes (the authors' code)."""


@dataclass(frozen=True)
class Smoothed:
    places: int
    """Normalisations whose outputs were smoothed."""
    inserted: tuple[str, ...]
    """Names of Mul nodes that had to be added; to be left in float, since they read the outliers."""


def smooth(model: ModelProto, statistics: Mapping[str, ActivationStatistics], alpha: float) -> Smoothed:
    """Smooths in place what LayerNormalization nodes give to MatMul and Gemm.

    Where these are the only readers the factors go into the normalisation's own scale and bias; elsewhere (a residual
    reads it too) into a Mul before the matrices.
    """
    layers = {id(layer.node): layer for layer in linear_layers(model) if layer.node.op_type != "Conv"}
    readers = consumers(model)
    places, inserted = 0, []
    for node in list(model.graph.node):
        if node.op_type != "LayerNormalization" or node.output[0] not in statistics:
            continue
        tensor = str(node.output[0])
        reading = readers.get(tensor, [])
        smoothed = [layers[id(r)] for r in reading if id(r) in layers and layers[id(r)].input == tensor]
        channels = statistics[tensor].channels
        if not smoothed or channels is None or len(channels.lowest) != smoothed[0].inputs:
            continue
        factors = smoothing_factors(channels.magnitude, smoothed, alpha)
        if not (len(smoothed) == len(reading) and _folded(model, readers, node, factors)):
            inserted.append(_divide(model, tensor, smoothed, factors))
        for layer in smoothed:
            set_constant(model.graph, layer.name, layer.scaled_inputs(factors))
        places += 1
    return Smoothed(places, tuple(inserted))


def smoothing_factors(magnitude: npt.NDArray[np.float32], layers: list[Layer], alpha: float) -> npt.NDArray[np.float64]:
    """``max|X_j|^α / max|W_j|^(1−α)`` for each input channel j; the activation is divided by it."""
    weights = np.max([layer.input_magnitudes() for layer in layers], axis=0).astype(np.float64)
    usable = np.isfinite(magnitude) & (magnitude > 0.0) & (weights > 0.0)
    activations = np.maximum(np.where(usable, magnitude, 1.0).astype(np.float64), _SMALLEST)
    factors = activations**alpha / np.maximum(np.where(usable, weights, 1.0), _SMALLEST) ** (1.0 - alpha)
    return np.where(usable, np.maximum(factors, _SMALLEST), 1.0)


def _folded(
    model: ModelProto, readers: Mapping[str, list[NodeProto]], node: NodeProto, factors: npt.NDArray[np.float64]
) -> bool:
    """Whether the normalisation's own scale and bias could take the factors."""
    names = [str(name) for name in node.input[1:3] if name]
    for name in names:
        values = constant(model.graph, name)
        if values is None or values.shape != factors.shape or len(readers.get(name, ())) != 1:
            return False
    for name in names:
        values = constant(model.graph, name)
        if values is not None:
            set_constant(model.graph, name, values / factors)
    return True


def _divide(model: ModelProto, tensor: str, layers: list[Layer], factors: npt.NDArray[np.float64]) -> str:
    """Puts a Mul before the layers; returns its name."""
    taken = {name for node in model.graph.node for name in (node.name, *node.input, *node.output)}
    name = f"{tensor}_smooth"
    while name in taken:
        name += "_"
    set_constant(model.graph, f"{name}_factors", 1.0 / factors)
    made = helper.make_node("Mul", [tensor, f"{name}_factors"], [f"{name}_output"], name)
    position = next(i for i, node in enumerate(model.graph.node) if tensor in node.output)
    model.graph.node.insert(position + 1, made)
    typed = next((v for v in (*model.graph.value_info, *model.graph.output) if v.name == tensor), None)
    if typed is not None:
        model.graph.value_info.add().CopyFrom(typed)
        model.graph.value_info[-1].name = made.output[0]
    for layer in layers:
        # The node that was read before something was inserted among the nodes.
        for node in model.graph.node:
            if node.name == layer.node.name and node.output[0] == layer.output:
                node.input[0] = made.output[0]
    return name
