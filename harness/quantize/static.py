"""Static quantization with ONNX Runtime's graph rewriters, fed with ranges of our own.

ONNX Runtime's ``quantize_static`` couples calibration and rewriting; its calibrators keep every activation of every
sample in memory. Here the ranges come from :mod:`harness.quantize.ranges`, and only the rewriting is ONNX Runtime's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData
from onnxruntime.quantization.execution_providers.qnn.mixed_precision_overrides_utils import (
    MixedPrecisionTensorQuantOverridesFixer,
)
from onnxruntime.quantization.quant_utils import (
    QuantizationMode,
    QuantType,
    add_infer_metadata,
    get_qmin_qmax_for_qType,
)
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry
from onnxruntime.quantization.tensor_quant_overrides import TensorQuantOverridesHelper

from harness.quantize.continued import drop_repeated_conversions, quantized_before, write_scales_once
from harness.quantize.float_nodes import float_notices, nodes_left_in_float
from harness.quantize.graph import MIN_OPSET, opset_of
from harness.quantize.passes.interface import put_back, set_aside
from harness.quantize.passes.moves import requantize_moved
from harness.quantize.passes.names import colliding_tensors, rename
from harness.quantize.passes.stay_float import keep_layers_in_float
from harness.quantize.ranges import Range
from harness.quantize.rewriters import OperatorRewriter, QDQRewriter
from harness.quantize.statistics import ActivationStatistics
from harness.recipes.axes import SIXTEEN_BIT, SUB_BYTE
from harness.recipes.recipe import Recipe

_TYPES = {
    "int4": QuantType.QInt4, "uint4": QuantType.QUInt4, "int8": QuantType.QInt8, "uint8": QuantType.QUInt8,
    "int16": QuantType.QInt16, "uint16": QuantType.QUInt16,
}  # fmt: skip
_NATIVE_NARROW_AND_WIDE_OPSET = 21
"""First opset whose QuantizeLinear and DequantizeLinear take 4- and 16-bit integers."""
_FOUR_BIT_IR_VERSION = 10


def quantizable_types(recipe: Recipe) -> tuple[str, ...]:
    """Operator types a static recipe quantizes: those asked for, or all that ONNX Runtime quantizes by default."""
    return recipe.op_types or tuple(sorted({*QDQRegistry, *QLinearOpsRegistry}))


def quantize_static(
    model: ModelProto,
    recipe: Recipe,
    ranges: Mapping[str, Range],
    statistics: Mapping[str, ActivationStatistics],
    excluded_nodes: Sequence[str],
    notices: list[str] | None = None,
) -> ModelProto:
    """The quantized model; ``model`` is consumed.

    ``ranges`` holds (lowest, highest) of every activation to quantize. Nodes that cannot be quantized stay in float,
    and ``notices`` says so. Raises what ONNX Runtime's rewriters raise.
    """
    left = nodes_left_in_float(model, recipe, statistics, quantizable_types(recipe))
    if notices is not None:
        notices += float_notices(model, {name: reason for name, reason in left.items() if name not in excluded_nodes})
    excluded_nodes = sorted({*excluded_nodes, *left})
    before = quantized_before(model)
    if before:
        write_scales_once(model)
    add_infer_metadata(model)  # Shapes are inferred already: the rewriters need not do it again.
    own_names = colliding_tensors(model)
    rename(model, own_names)
    aside = set_aside(model)
    data = {
        own_names.get(name, name): TensorData(
            lowest=np.array(low, dtype=statistics[name].dtype), highest=np.array(high, dtype=statistics[name].dtype)
        )
        for name, (low, high) in ranges.items()
    }
    tensors_range = TensorsData(CalibrationMethod.MinMax, data)
    per_channel = recipe.granularity == "per_channel"
    options: dict[str, Any] = {
        "ActivationSymmetric": recipe.activation_symmetric,
        "WeightSymmetric": recipe.weight_symmetric,
    }
    types = list(quantizable_types(recipe))
    activation, weight = _TYPES[recipe.activation], _TYPES[recipe.weight]
    if recipe.format == "QOperator":
        rewriter = OperatorRewriter(
            model, per_channel, recipe.reduce_range, QuantizationMode.QLinearOps, True, weight, activation,
            tensors_range, [], list(excluded_nodes), types, options,
        )  # fmt: skip
    else:
        if recipe.overrides:
            options["TensorQuantOverrides"] = _overrides(model, recipe)
        if {recipe.activation, recipe.weight, *(kind for _, kind in recipe.overrides)} & (SIXTEEN_BIT | SUB_BYTE):
            # Microsoft's domain has these types at any opset, and on older runtimes than opset 21 needs.
            options["UseQDQContribOps"] = opset_of(model) < _NATIVE_NARROW_AND_WIDE_OPSET
        if opset_of(model) < MIN_OPSET:
            # Its conversion would have changed what the model computes. Microsoft's domain has an axis at any opset.
            options["UseQDQContribOps"] = True
        if recipe.weight in SUB_BYTE:
            model.ir_version = max(model.ir_version, _FOUR_BIT_IR_VERSION)
        if recipe.scale == "power_of_two":
            # A scale rounded up reaches beyond where an activation clips.
            options["QDQKeepRemovableActivations"] = True
        kind = PowerOfTwoQuantizer if recipe.scale == "power_of_two" else QDQRewriter
        rewriter = kind(
            model, per_channel, recipe.reduce_range, weight, activation,
            tensors_range, [], list(excluded_nodes), types, options,
        )  # fmt: skip
    rewriter.quantize_model()
    quantized: ModelProto = rewriter.model.model
    if recipe.format == "QDQ":
        keep_layers_in_float(quantized)
    states_type = opset_of(quantized) >= _NATIVE_NARROW_AND_WIDE_OPSET and recipe.activation == "int8"
    requantize_moved(quantized, only_captured=not states_type)
    if before:
        drop_repeated_conversions(quantized)
    put_back(quantized, aside)
    rename(quantized, {own: name for name, own in own_names.items()})
    return quantized


def _overrides(model: ModelProto, recipe: Recipe) -> dict[str, Any]:
    """The recipe's overrides with conversions where integers of different types meet, as ONNX Runtime's tool for mixed
    precision inserts them."""
    types = _TYPES[recipe.activation]
    helper = TensorQuantOverridesHelper({name: [{"quant_type": _TYPES[kind]}] for name, kind in recipe.overrides})
    fixer = MixedPrecisionTensorQuantOverridesFixer.create_from_model(helper, model, types)
    fixer.apply(types, bool(recipe.activation_symmetric))
    made: dict[str, Any] = helper.get_dict()
    return made


def power_of_two_at_least(scale: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The smallest powers of two not below ``scale`` (> 0): no value is clipped that was not before."""
    mantissa, exponent = np.frexp(scale)
    exact = mantissa == 0.5
    return np.asarray(np.ldexp(np.ones_like(scale), exponent - exact), dtype=scale.dtype)


class PowerOfTwoQuantizer(QDQRewriter):
    """ONNX Runtime's QDQ rewriter with every scale of activations and weights rounded up to a power of two.

    Scales of biases are products of those, so they are powers of two as well.
    """

    def calc_quant_params(self, tensor_data: Any, quant_overrides: dict[str, Any]) -> Any:
        """As the base class, for one activation."""
        params = super().calc_quant_params(tensor_data, quant_overrides)
        scale = power_of_two_at_least(np.asarray(params["scale"]))
        params.data["scale"] = scale
        if not self.is_activation_symmetric:
            low = min(float(tensor_data.range_value[0]), 0.0)
            smallest, largest = get_qmin_qmax_for_qType(params["quant_type"])
            zero = np.clip(np.round(float(smallest) - low / float(scale)), float(smallest), float(largest))
            params.data["zero_point"] = zero.astype(params["zero_point"].dtype)
        return params

    def _calc_initializer_quant_params(self) -> Any:
        params = super()._calc_initializer_quant_params()
        _round_scales(params)
        return params

    def _adjust_weight_quant_params_for_bias_tensors(self) -> None:
        super()._adjust_weight_quant_params_for_bias_tensors()
        _round_scales(self.initializer_quant_params)


def _round_scales(params: Mapping[str, Any]) -> None:
    for value in params.values():
        value.data["scale"] = power_of_two_at_least(np.asarray(value["scale"]))
