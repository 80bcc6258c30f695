"""The cost model against closed forms and against published sizes of networks."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import onnx
import pytest
from emulated_boards import NPU, conv_net, cost_model
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from device_agents.emulated.cost_model import Estimate, UnknownShapes, estimate
from device_agents.emulated.cost_model.figures import input_shapes
from device_agents.emulated.cost_model.graph import Graph, effort
from device_agents.emulated.cost_model.layers import Layers
from device_agents.emulated.cost_model.networks import NETWORKS
from device_agents.emulated.spec import CostModel

SHAPE = {"x": (1, 3, 8, 8)}
NPU_FIRST = ("VitisAIExecutionProvider", "CPUExecutionProvider")


def model_of(**changes: Any) -> CostModel:
    return CostModel.model_validate(cost_model(**changes))


def run(model: onnx.ModelProto, costs: CostModel | None = None, **options: Any) -> Estimate:
    return estimate(model, costs or model_of(), input_shapes(model), **options)


def one_conv(
    integer: bool = False, channels: int = 16, size: int = 32, inputs: int = 8, **options: Any
) -> onnx.ModelProto:
    net = Layers(integer=integer)
    return net.model(net.conv(net.input(1, inputs, size, size), channels, 3, **options))


def test_a_compute_bound_convolution_takes_macs_over_rate_plus_overheads() -> None:
    costs = model_of(processor={"memory_gb_s": 1e6})
    macs = 32 * 32 * 16 * 8 * 9
    assert run(one_conv(), costs).latency_ns == pytest.approx(macs / 10.0 + 3_000 + 20_000)


def test_a_memory_bound_convolution_takes_bytes_over_bandwidth() -> None:
    costs = model_of(processor={"memory_gb_s": 0.01})
    moved = 4 * (32 * 32 * 8 + 16 * 8 * 9 + 16 + 32 * 32 * 16)
    assert run(one_conv(), costs).latency_ns == pytest.approx(moved / 0.01 + 3_000 + 20_000)


def test_small_working_sets_move_at_the_speed_of_the_cache() -> None:
    moved = 4 * (32 * 32 * 8 + 16 * 8 * 9 + 16 + 32 * 32 * 16)
    cached = {"memory_gb_s": 0.01, "cache_gb_s": 0.1, "cache_mb": moved / 1e6}
    assert run(one_conv(), model_of(processor=cached)).latency_ns == pytest.approx(moved / 0.1 + 23_000)
    too_small = {**cached, "cache_mb": (moved - 1) / 1e6}
    assert run(one_conv(), model_of(processor=too_small)).latency_ns == pytest.approx(moved / 0.01 + 23_000)


def test_narrow_layers_reach_half_the_rate_at_half_channels() -> None:
    wide = model_of(processor={"memory_gb_s": 1e6, "half_channels": 16.0})
    macs = 32 * 32 * 16 * 8 * 9
    assert run(one_conv(), wide).latency_ns == pytest.approx(macs / 5.0 + 23_000)


def test_depthwise_convolutions_have_an_efficiency_of_their_own() -> None:
    costs = model_of(processor={"memory_gb_s": 1e6, "half_channels": 16.0, "efficiency": {"DepthwiseConv": 0.25}})
    result = run(one_conv(channels=8, groups=8), costs)
    assert result.macs == 32 * 32 * 8 * 9
    assert result.latency_ns == pytest.approx(result.macs / 2.5 + 23_000)


def test_threads_divide_the_work_and_not_the_launch() -> None:
    costs = model_of(processor={"memory_gb_s": 1e6, "fork_join_us": 2.0})
    macs = 32 * 32 * 16 * 8 * 9
    # Four cores at 50 % efficiency are worth 1 + 3 * 0.5.
    for threads in (4, 0, 9):
        assert run(one_conv(), costs, threads=threads).latency_ns == pytest.approx(macs / 25.0 + 2_000 + 23_000)


def test_a_node_that_does_not_pay_for_waking_threads_stays_on_one() -> None:
    costs = model_of(processor={"memory_gb_s": 1e6, "fork_join_us": 1e6})
    assert run(one_conv(), costs, threads=4).latency_ns == run(one_conv(), costs, threads=1).latency_ns


def test_an_elementwise_operator_takes_elements_over_rate() -> None:
    net = Layers()
    model = net.model(net.unary("Sigmoid", net.input(1, 4, 10, 10)))
    costs = model_of(processor={"memory_gb_s": 1e6, "element_cost": {"Sigmoid": 4.0}})
    assert run(model, costs).latency_ns == pytest.approx(400 * 4 / 2.0 + 23_000)


def test_activations_and_norms_cost_nothing_of_their_own_unless_optimization_is_off() -> None:
    model = one_conv(activation="Relu")
    assert run(model).latency_ns == run(one_conv()).latency_ns
    assert [node.op_type for node in run(model).nodes] == ["Conv"]
    assert run(model).nodes[0].folded == ("Relu_1",)
    assert [node.op_type for node in run(model, optimization="disabled").nodes] == ["Conv", "Relu"]


def test_a_qdq_convolution_runs_as_int8_and_reads_bytes() -> None:
    result = run(one_conv(integer=True))
    conv = next(node for node in result.nodes if node.op_type == "Conv")
    assert conv.data_type == "int8"
    assert conv.moved_bytes == 32 * 32 * 8 + 16 * 8 * 9 + 4 * 16 + 32 * 32 * 16
    # At the edges one node each turns float into integers and back.
    assert sorted(node.op_type for node in result.nodes) == ["Conv", "DequantizeLinear", "QuantizeLinear"]
    assert len(conv.folded) == 4  # three DequantizeLinear in front, one QuantizeLinear behind


def test_qdq_is_executed_literally_below_the_extended_level() -> None:
    result = run(one_conv(integer=True), optimization="basic")
    conv = next(node for node in result.nodes if node.op_type == "Conv")
    assert conv.data_type == "float32"
    assert len([node for node in result.nodes if node.op_type == "DequantizeLinear"]) == 4


def _with_type(model: onnx.ModelProto, activation: int) -> onnx.ModelProto:
    """The activations of a QDQ model stored in another type."""
    fresh = helper.make_tensor("zero_wide", activation, [], [0])
    model.graph.initializer.append(fresh)
    weights = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" or (node.op_type == "DequantizeLinear" and node.input[0] not in weights):
            node.input[2] = "zero_wide"
    return model


def test_16_bit_activations_fall_back_to_float_between_executed_conversions() -> None:
    wide = _with_type(one_conv(integer=True), TensorProto.INT16)
    result = run(wide)
    conv = next(node for node in result.nodes if node.op_type == "Conv")
    assert conv.data_type == "float32"
    assert len([node for node in result.nodes if node.op_type == "DequantizeLinear"]) == 4
    assert result.latency_ns > run(one_conv()).latency_ns > run(one_conv(integer=True)).latency_ns


def test_float16_runs_at_its_own_rate_where_supported_and_with_casts_elsewhere() -> None:
    model = one_conv()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in model.graph.initializer:
        tensor.data_type = TensorProto.FLOAT16
    native = run(model, model_of(processor={"memory_gb_s": 1e6}))
    assert native.latency_ns == pytest.approx(32 * 32 * 16 * 8 * 9 / 20.0 + 23_000)
    slow = run(model, model_of(processor={"memory_gb_s": 0.01, "operators": {"Conv": ["int8"]}}))
    half = 32 * 32 * 8 + 16 * 8 * 9 + 16 + 32 * 32 * 16
    assert slow.nodes[0].data_type == "float32"
    assert slow.latency_ns == pytest.approx((2 + 6) * half / 0.01 + 23_000)


def test_qoperator_models_get_shapes_by_execution() -> None:
    random = np.random.default_rng(0)
    scale = numpy_helper.from_array(np.float32(0.1), "s")
    zero = numpy_helper.from_array(np.uint8(0), "z")
    zero_w = numpy_helper.from_array(np.int8(0), "zw")
    weight = numpy_helper.from_array(random.integers(-5, 5, (4, 3, 1, 1)).astype(np.int8), "w")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
        helper.make_node("QLinearConv", ["q", "s", "z", "w", "s", "zw", "s", "z"], ["c"], name="conv"),
        helper.make_node(
            "QLinearGlobalAveragePool", ["c", "s", "z", "s", "z"], ["p"], name="pool", domain="com.microsoft"
        ),
        helper.make_node("DequantizeLinear", ["p", "s", "z"], ["y"], name="dq"),
    ]
    graph = helper.make_graph(
        nodes,
        "q",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [scale, zero, zero_w, weight],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    result = estimate(model, model_of(processor={"operators": {"QLinearConv": ["int8"]}}), {"x": (1, 3, 6, 6)})
    conv = next(node for node in result.nodes if node.op_type == "QLinearConv")
    assert (conv.data_type, conv.macs) == ("int8", 36 * 4 * 3)
    model.graph.node[2].op_type = "NoSuchOperator"
    with pytest.raises(UnknownShapes, match="p"):
        estimate(model, model_of(), {"x": (1, 3, 6, 6)})


def _two_convs(integer: bool = True, between: str = "Relu") -> onnx.ModelProto:
    net = Layers(integer=integer)
    x = net.conv(net.input(1, 8, 16, 16), 8, 3)
    if between:
        x = net.unary(between, x)
    return net.model(net.conv(x, 8, 3))


def test_the_accelerator_takes_integer_operators_and_the_edges_stay_on_the_processor() -> None:
    costs = model_of(accelerator=NPU)
    result = run(_two_convs(), costs, providers=NPU_FIRST)
    taken = result.by_provider()
    assert sorted(node.op_type for node in result.nodes if node.provider.startswith("Vitis")) == [
        "Conv",
        "Conv",
        "Relu",
    ]
    assert [node.op_type for node in result.nodes if node.provider.startswith("CPU")] == [
        "QuantizeLinear",
        "DequantizeLinear",
    ]
    assert result.subgraphs == 1
    assert set(itertools.chain(*taken.values())) == {node.name for node in _two_convs().graph.node}
    # One int8 tensor crosses each way.
    assert result.transfer_ns == pytest.approx(2 * 10_000 + 2 * 8 * 16 * 16 / 4.0)
    assert result.overhead_ns == pytest.approx(20_000 + 100_000)


def test_an_unsupported_operator_splits_the_graph_and_is_named() -> None:
    costs = model_of(accelerator=NPU)
    result = run(_two_convs(between="Sigmoid"), costs, providers=NPU_FIRST)
    assert result.subgraphs == 2
    assert result.fallback_reasons == {"Sigmoid_7": "Sigmoid is not supported by VitisAIExecutionProvider"}
    assert result.transfer_ns == pytest.approx(4 * 10_000 + 4 * 8 * 16 * 16 / 4.0)


def test_float_models_fall_back_whole_with_the_reason() -> None:
    result = run(_two_convs(integer=False), model_of(accelerator=NPU), providers=NPU_FIRST)
    assert set(result.by_provider()) == {"CPUExecutionProvider"}
    assert result.subgraphs == 0
    assert result.fallback_reasons == dict.fromkeys(
        ("Conv_0", "Conv_2"), "Conv in float32 is not supported by VitisAIExecutionProvider (it takes int8)"
    )


def test_subgraphs_below_the_minimum_are_not_compiled() -> None:
    costs = model_of(accelerator={**NPU, "minimum_matrix_nodes": 3})
    result = run(_two_convs(), costs, providers=NPU_FIRST)
    assert set(result.by_provider()) == {"CPUExecutionProvider"}
    assert "its subgraph has 2 matrix operators" in next(iter(result.fallback_reasons.values()))
    assert result.latency_ns == run(_two_convs(), model_of(), providers=("CPUExecutionProvider",)).latency_ns


def test_an_accelerator_that_is_not_asked_for_is_not_used() -> None:
    with_npu = run(_two_convs(), model_of(accelerator=NPU), providers=("CPUExecutionProvider",))
    assert with_npu == run(_two_convs(), model_of())


def test_memory_is_weights_and_the_live_tensors() -> None:
    net = Layers()
    x = net.input(1, 4, 10, 10)
    a = net.conv(x, 8)
    model = net.model(net.binary("Add", net.conv(a, 8), a))
    result = run(model)
    assert result.weight_bytes == 4 * ((8 * 4 + 8) + (8 * 8 + 8))
    # At the Add: a, the second convolution's output and the sum, each [1, 8, 10, 10] float32.
    assert result.activation_bytes == 3 * 4 * 800


def test_a_batch_multiplies_macs_and_activations_and_not_weights() -> None:
    one, four = (estimate(conv_net(), model_of(), {"x": (n, 3, 8, 8)}) for n in (1, 4))
    assert four.macs == 4 * one.macs
    assert four.activation_bytes == 4 * one.activation_bytes
    assert four.weight_bytes == one.weight_bytes
    assert one.latency_ns < four.latency_ns < 4 * one.latency_ns


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(4, 7))
def test_macs_of_a_convolution_are_counted_one_by_one(
    groups: int, per_group: int, out_per_group: int, kernel: int, stride: int, size: int
) -> None:
    net = Layers()
    out = net.conv(net.input(1, groups * per_group, size, size), groups * out_per_group, kernel, stride, groups, (0, 0))
    model = net.model(out)
    graph = Graph(model, input_shapes(model))
    counted = 0
    for _, _, _ in itertools.product(range(groups * out_per_group), range(out.shape[2]), range(out.shape[3])):
        counted += per_group * kernel * kernel
    assert effort(graph, graph.operations[0]).macs == counted
    assert graph.tensor(out.name).shape == out.shape


PUBLISHED = {
    # name: (multiply-accumulates, parameters) as stated where the networks were published
    "mobilenet_v1": (569e6, 4.2e6),
    "mobilenet_v2": (300e6, 3.5e6),
    "resnet18": (1.81e9, 11.69e6),
    "resnet50": (4.09e9, 25.56e6),
    "inception_v3": (5.71e9, 23.83e6),
    "yolo11n": (3.25e9, 2.6e6),
    "yolo11s": (10.75e9, 9.4e6),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_the_published_size(name: str) -> None:
    macs, parameters = PUBLISHED[name]
    model = NETWORKS[name](False)
    result = run(model)
    assert result.macs == pytest.approx(macs, rel=0.02)
    assert sum(math.prod(tensor.dims) for tensor in model.graph.initializer) == pytest.approx(parameters, rel=0.02)
    # The int8 form is the same work on tensors a quarter the size.
    integer = run(NETWORKS[name](True))
    assert integer.macs == result.macs
    assert integer.weight_bytes == pytest.approx(result.weight_bytes / 4, rel=0.02)


def _behind_a_loop(consumer: onnx.NodeProto) -> onnx.ModelProto:
    """``consumer`` reads ``z``, which a loop gives and whose shape nothing states."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["keep"], ["keep_out"]), helper.make_node("Concat", ["a", "a"], ["b"], axis=0)],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("keep", TensorProto.BOOL, []),
            helper.make_tensor_value_info("a", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("keep_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, None),
        ],
    )
    constants = {
        "trips": np.array(2, np.int64), "yes": np.array(True), "w": np.ones((4, 4), np.float32),
        "kernel": np.ones((1, 4, 1), np.float32), "w3": np.ones((1, 16, 4), np.float32),
        "r3": np.ones((1, 16, 4), np.float32),
    }  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Loop", ["trips", "yes", "x"], ["z"], body=body), consumer],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    "consumer",
    [
        helper.make_node("MatMul", ["z", "w"], ["y"]),
        helper.make_node("MatMul", ["w", "z"], ["y"]),
        helper.make_node("MatMul", ["z", "z"], ["y"]),
        helper.make_node("Gemm", ["z", "w"], ["y"], transA=1),
        helper.make_node("Conv", ["z", "kernel"], ["y"]),
        helper.make_node("Conv", ["z", "z"], ["y"]),
        helper.make_node("ConvTranspose", ["z", "z"], ["y"]),
        helper.make_node("LSTM", ["z", "w3", "r3"], ["y"], hidden_size=4),
        helper.make_node("LSTM", ["z", "z", "z"], ["y"], hidden_size=4),
        helper.make_node("MaxPool", ["z"], ["y"], kernel_shape=[2]),
        helper.make_node("Relu", ["z"], ["y"]),
    ],
    ids=lambda node: f"{node.op_type}-{'-'.join(node.input)}",
)
def test_what_a_loop_gives_may_be_of_any_shape(consumer: onnx.NodeProto) -> None:
    result = run(_behind_a_loop(consumer))
    assert [node.op_type for node in result.nodes] == ["Loop", consumer.op_type]
    assert all(node.macs >= 0 for node in result.nodes)
