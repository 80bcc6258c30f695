"""Per-channel weights for ONNX Runtime's rewriters, all channels at once.

Theirs loop over channels in Python, which takes longer than everything else they do. The numbers here are the same to
the last bit; what is not plain (overrides, float16 weights, blocks) is left to them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization.base_quantizer import QuantizationParams
from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer, QDQQuantTensorType
from onnxruntime.quantization.quant_utils import (
    ONNX_TYPE_TO_NP_TYPE,
    TENSOR_NAME_QUANT_SUFFIX,
    find_by_name,
    get_qmin_qmax_for_qType,
    pack_bytes_to_4bit,
    tensor_proto_to_array,
)

_INTEGERS = frozenset({TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16,
                       TensorProto.INT4, TensorProto.UINT4})  # fmt: skip
_NIBBLES = frozenset({TensorProto.INT4, TensorProto.UINT4})

Array = npt.NDArray[Any]


def channel_parameters(
    weights: npt.NDArray[np.float32], axis: int, kind: int, symmetric: bool, reduce_range: bool
) -> tuple[Array, npt.NDArray[np.float32]] | None:
    """Zero points and scales [channels], as ONNX Runtime's ``compute_data_quant_params`` gives for each channel.

    ``None`` for weights it has to judge itself: empty, or not finite.
    """
    if not weights.size:
        return None
    others = tuple(i for i in range(weights.ndim) if i != axis)
    low = np.minimum(weights.min(axis=others), np.float32(0.0))
    high = np.maximum(weights.max(axis=others), np.float32(0.0))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return None
    smallest, largest = get_qmin_qmax_for_qType(kind, reduce_range, symmetric=symmetric)
    bottom, top = float(smallest), float(largest)
    if symmetric:
        high = np.maximum(np.abs(low), np.abs(high))
        low = -high
    scale = (high.astype(np.float64) - low.astype(np.float64)) / (top - bottom)
    usable = scale >= float(np.finfo(np.float32).tiny)
    if symmetric:
        zero = np.full(len(scale), np.round((bottom + top) / 2.0))
    else:
        zero = np.round(bottom - low / np.where(usable, scale, 1.0))
    zero = np.where(usable, zero, 0.0)
    scales = np.where(usable, scale, 1.0).astype(np.float32)
    return zero.astype(np.asarray(smallest).dtype), scales


def quantized_channels(
    weights: npt.NDArray[np.float32], axis: int, kind: int, zero_point: Array, scale: Array
) -> Array:
    """Integers of ``weights``' shape, as ONNX Runtime's ``quantize_nparray`` gives for each channel."""
    shape = [1] * weights.ndim
    shape[axis] = -1
    smallest, largest = get_qmin_qmax_for_qType(kind, reduce_range=False, symmetric=False)
    values = weights / scale.reshape(shape)
    np.round(values, out=values)
    values += zero_point.reshape(shape).astype(np.float32)
    np.clip(values, np.float32(smallest), np.float32(largest), out=values)
    return np.asarray(values.astype(ONNX_TYPE_TO_NP_TYPE[kind]))


def integer_tensor(values: Array, name: str, kind: int) -> TensorProto:
    """As an initializer; 4-bit values packed."""
    if kind in _NIBBLES:
        packed = bytes(pack_bytes_to_4bit(values.tobytes()))
        return onnx.helper.make_tensor(name, kind, values.shape, packed, raw=True)
    return numpy_helper.from_array(np.ascontiguousarray(values), name)


class ChannelwiseQDQ(QDQQuantizer):  # type: ignore[misc]
    """ONNX Runtime's QDQ rewriter, quick at per-channel weights."""

    tensors_to_quantize: dict[str, Any]

    def _calc_initializer_quant_params(self) -> dict[str, Any]:
        every = self.tensors_to_quantize
        found = {name: self._channelwise(name, info) for name, info in every.items()}
        params = {name: value for name, value in found.items() if value is not None}
        self.tensors_to_quantize = {name: info for name, info in every.items() if name not in params}
        try:
            params.update(super()._calc_initializer_quant_params())
        finally:
            self.tensors_to_quantize = every
        return {name: params[name] for name in every if name in params}

    def _channelwise(self, name: str, info: Any) -> Any:
        if info.axis is None or name in self.tensor_quant_overrides or self.block_size or self.min_real_range:
            return None
        initializer = find_by_name(name, self.model.initializer())
        is_weight = info.tensor_type is QDQQuantTensorType.WEIGHT
        kind = self.weight_qType if is_weight else self.activation_qType
        if initializer is None or initializer.data_type != TensorProto.FLOAT or kind not in _INTEGERS:
            return None
        weights = tensor_proto_to_array(initializer)
        axis = info.axis + weights.ndim if info.axis < 0 else info.axis
        if not 0 <= axis < weights.ndim:
            return None
        computed = channel_parameters(weights, axis, kind, True, self.reduce_range)
        if computed is None:
            return None
        return QuantizationParams(zero_point=computed[0], scale=computed[1], quant_type=kind, axis=axis)

    def _add_qdq_nodes_for_initializer(self, weight_proto: TensorProto) -> None:
        name = weight_proto.name
        params = self.initializer_quant_params[name]
        axis, kind = params.get("axis"), params["quant_type"]
        plain = weight_proto.data_type == TensorProto.FLOAT and kind in _INTEGERS and not params.get("block_size", 0)
        if axis is None or not plain or self.add_qdq_pair_to_weight or name in self.quantized_value_map:
            super()._add_qdq_nodes_for_initializer(weight_proto)
            return
        weights = tensor_proto_to_array(weight_proto)
        if not weights.size:
            super()._add_qdq_nodes_for_initializer(weight_proto)
            return
        values = quantized_channels(weights, axis, kind, params["zero_point"], params["scale"])
        made = integer_tensor(values, name + TENSOR_NAME_QUANT_SUFFIX, kind)
        # The base class adds the nodes, having quantized one channel; its integers are then replaced by all of them.
        super()._add_qdq_nodes_for_initializer(numpy_helper.from_array(weights.take([0], axis), name))
        find_by_name(made.name, self.model.initializer()).CopyFrom(made)


class ChannelwiseQOperator(ONNXQuantizer):  # type: ignore[misc]
    """ONNX Runtime's rewriter to integer operators, quick at per-channel weights."""

    def quantize_weight_per_channel_impl(
        self, weight_name: str, weight_qType: int, channel_axis: int, reduce_range: bool = True,  # noqa: N803
        keep_float_weight: bool = False,
    ) -> tuple[str, str, str]:  # fmt: skip
        """As the base class: names of the integers, zero points and scales."""
        initializer = find_by_name(weight_name, self.model.initializer())
        plain = (
            initializer is not None
            and initializer.data_type == TensorProto.FLOAT
            and weight_qType in _INTEGERS
            and weight_name not in self.tensor_quant_overrides
            and not self.min_real_range
            and -len(initializer.dims) <= channel_axis < len(initializer.dims)
        )
        computed = None
        if plain:
            weights = tensor_proto_to_array(initializer)
            axis = channel_axis % weights.ndim
            symmetric = self.is_weight_symmetric(weight_qType)
            computed = channel_parameters(weights, axis, weight_qType, symmetric, self.reduce_range and reduce_range)
        if computed is None:
            names: tuple[str, str, str] = super().quantize_weight_per_channel_impl(
                weight_name, weight_qType, channel_axis, reduce_range, keep_float_weight
            )
            return names
        zero_point, scale = computed
        integers, zeros, scales = (weight_name + end for end in (TENSOR_NAME_QUANT_SUFFIX, "_zero_point", "_scale"))
        self.model.initializer_extend(
            [
                onnx.helper.make_tensor(scales, TensorProto.FLOAT, [len(scale)], scale.tolist()),
                onnx.helper.make_tensor(zeros, weight_qType, [len(zero_point)], zero_point.tolist()),
            ]
        )
        if not keep_float_weight:
            values = quantized_channels(weights, axis, weight_qType, zero_point, scale)
            self.model.initializer_extend([integer_tensor(values, integers, weight_qType)])
        return integers, zeros, scales
