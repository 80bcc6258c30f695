"""Per-channel weights all at once are ONNX Runtime's own, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import ModelProto, TensorProto
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData
from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.quant_utils import (
    QuantizationMode,
    QuantType,
    add_infer_metadata,
    compute_data_quant_params,
    quantize_nparray,
)
from quantize_models import Array, conv_net, matmul_net

from harness.quantize.channelwise import (
    ChannelwiseQDQ,
    ChannelwiseQOperator,
    channel_parameters,
    quantized_channels,
)

KINDS = (
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.INT16,
    TensorProto.UINT16,
    TensorProto.INT4,
    TensorProto.UINT4,
)


@given(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=4, max_side=4),
        elements=st.floats(-(2.0**99), 2.0**99, width=32),
    ),
    st.sampled_from(KINDS),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
)
def test_numbers_are_the_same(weights: Array, kind: int, symmetric: bool, reduced: bool, axis: int) -> None:
    axis %= weights.ndim
    reduced = reduced and kind in (TensorProto.INT8, TensorProto.UINT8)
    computed = channel_parameters(weights, axis, kind, symmetric, reduced)
    assert computed is not None
    zeros, scales = computed
    integers = quantized_channels(weights, axis, kind, zeros, scales)
    for channel in range(weights.shape[axis]):
        values = weights.take(channel, axis)
        zero, scale = compute_data_quant_params(values.ravel(), kind, symmetric, reduced)
        assert (zeros[channel], scales[channel]) == (zero, scale)
        theirs = quantize_nparray(kind, values.ravel(), scale, zero)
        np.testing.assert_array_equal(integers.take(channel, axis).ravel().astype(int), np.asarray(theirs).astype(int))


def test_what_is_not_a_number_is_left_to_them() -> None:
    bad = np.array([[1.0, np.nan], [0.0, 1.0]], np.float32)
    assert channel_parameters(bad, 0, TensorProto.INT8, True, False) is None
    assert channel_parameters(np.zeros((0, 3), np.float32), 0, TensorProto.INT8, True, False) is None


def _ranges(model: ModelProto) -> TensorsData:
    names = [v.name for v in (*model.graph.value_info, *model.graph.input, *model.graph.output)]
    data = {n: TensorData(lowest=np.float32(-1.5), highest=np.float32(2.5)) for n in names}
    return TensorsData(CalibrationMethod.MinMax, data)


@pytest.mark.parametrize("build", [conv_net, matmul_net])
@pytest.mark.parametrize("weight", [QuantType.QInt8, QuantType.QUInt8, QuantType.QInt4, QuantType.QInt16])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_models_are_the_same(build: Any, weight: QuantType, form: str) -> None:
    if form == "QOperator" and weight in (QuantType.QInt4, QuantType.QInt16):
        pytest.skip("8 bits only")
    types = ["Conv", "Gemm", "MatMul", "Relu", "Add", "GlobalAveragePool", "Softmax"]
    made = []
    for qdq, integer in ((QDQQuantizer, ONNXQuantizer), (ChannelwiseQDQ, ChannelwiseQOperator)):
        model = onnx.shape_inference.infer_shapes(build(opset=21))
        add_infer_metadata(model)
        ranges = _ranges(model)
        if form == "QDQ":
            rewriter = qdq(model, True, False, weight, QuantType.QUInt8, ranges, [], [], types, {})
        else:
            rewriter = integer(
                model,
                True,
                True,
                QuantizationMode.QLinearOps,
                True,
                weight,
                QuantType.QUInt8,
                ranges,
                [],
                [],
                types,
                {},
            )
        rewriter.quantize_model()
        made.append(rewriter.model.model.SerializeToString(deterministic=True))
    assert made[0] == made[1]
