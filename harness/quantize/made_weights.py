"""Integer weights in a model that ONNX Runtime's rewriters made: reading what they mean, and writing other ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, numpy_helper
from onnxruntime.quantization.quant_utils import ONNX_TYPE_TO_NP_TYPE, get_qmin_qmax_for_qType

from harness.quantize.algorithms.layers import FloatArray, Layer
from harness.quantize.algorithms.rounding import Grid
from harness.quantize.channelwise import integer_tensor
from harness.quantize.graph import initializers_of

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class MadeWeights:
    """Of one layer, as matrices of outputs by inputs."""

    integers: npt.NDArray[np.float64]
    grid: Grid
    kind: int
    """ONNX element type."""


def read_weights(made: ModelProto, layer: Layer, *, reduce_range: bool) -> MadeWeights | None:
    """``None`` if the layer's weights were not quantized."""
    tensors = initializers_of(made.graph)
    parts = [tensors.get(f"{layer.name}{end}") for end in ("_quantized", "_scale", "_zero_point")]
    if any(part is None for part in parts):
        return None
    values, scale, zero = (np.asarray(numpy_helper.to_array(part)).astype(np.float64) for part in parts if part)
    if values.shape != layer.weights.shape or scale.size not in (1, layer.outputs) or zero.size != scale.size:
        return None
    kind = tensors[f"{layer.name}_quantized"].data_type
    signed_middle = not zero.any()
    lowest, highest = get_qmin_qmax_for_qType(kind, reduce_range=reduce_range, symmetric=signed_middle)
    shape = (layer.outputs, 1)
    grid = Grid(
        np.ascontiguousarray(np.broadcast_to(scale.reshape(-1, 1), shape)),
        np.ascontiguousarray(np.broadcast_to(zero.reshape(-1, 1), shape)),
        int(lowest),
        int(highest),
    )
    return MadeWeights(layer.matrix(values), grid, kind)


def write_weights(made: ModelProto, layer: Layer, integers: npt.NDArray[np.float64]) -> None:
    """Replaces the layer's integers, given as a matrix of outputs by inputs."""
    tensor = next(t for t in made.graph.initializer if t.name == f"{layer.name}_quantized")
    values = layer.shaped(integers).astype(ONNX_TYPE_TO_NP_TYPE[tensor.data_type])
    tensor.CopyFrom(integer_tensor(values, tensor.name, tensor.data_type))


def input_quantizer(made: ModelProto) -> Any:
    """A function of a tensor's name and float values that gives what ``made`` reads in their place."""
    tensors: Mapping[str, TensorProto] = initializers_of(made.graph)

    def quantized(name: str, values: FloatArray) -> FloatArray:
        scale, zero = tensors.get(f"{name}_scale"), tensors.get(f"{name}_zero_point")
        if scale is None or zero is None or list(scale.dims) not in ([], [1]):
            return values
        step = np.float32(np.asarray(numpy_helper.to_array(scale)).ravel()[0])
        middle = np.float32(np.asarray(numpy_helper.to_array(zero)).ravel()[0])
        lowest, highest = get_qmin_qmax_for_qType(zero.data_type)
        integers = np.clip(np.round(values / step) + middle, np.float32(lowest), np.float32(highest))
        return np.asarray((integers - middle) * step, dtype=np.float32)

    return quantized
