"""Models that ONNX Runtime runs although the standard forbids them, and forms of operators that few exporters write.

Each was refused, or came out wrong, before preparation knew it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from graph_builder import Array, GraphBuilder, calibration_of
from onnx import ModelProto, TensorProto, helper, numpy_helper
from patterns import ALL, Pattern

from harness.quantize.contract import Cause

ODD_PATTERNS: list[Pattern] = []


def odd(
    floor: float = 30.0,
    recipes: tuple[str, ...] = ALL,
    data: Callable[[ModelProto], dict[str, Array]] = calibration_of,
    runs_as_given: bool = True,
    **own: float | Cause,
) -> Callable[[Callable[[], ModelProto]], Callable[[], ModelProto]]:
    def register(build: Callable[[], ModelProto]) -> Callable[[], ModelProto]:
        floors: Mapping[str, float | Cause] = {**dict.fromkeys(recipes, floor), **own}
        ODD_PATTERNS.append(Pattern(build.__name__, build, floors, data, runs_as_given))
        return build

    return register


def _raw(g: GraphBuilder, *outputs: onnx.ValueInfoProto, ir_version: int = 8) -> ModelProto:
    """As the builder's own, but for outputs of which inference finds no shape, or none of tensors."""
    graph = helper.make_graph(g.nodes, "g", g.inputs, list(outputs), list(g.constants.values()))
    opsets = [helper.make_opsetid(domain, version) for domain, version in g.domains.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def _value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def _layer_and(
    op_type: str, opset: int, extra: Mapping[str, Array | None] | None = None, outputs: int = 1, **attributes: object
) -> ModelProto:
    """A convolution, the operator in question, and Relu."""
    g = GraphBuilder(opset)
    x = g.input("x", 1, 4, 8, 8)
    c = g.node("Conv", [x, g.weight("w", 4, 4, 3, 3), g.weight("b", 4)], "c", pads=[1, 1, 1, 1])
    more = ["" if value is None else g.constant(name, value) for name, value in (extra or {}).items()]
    g.node(op_type, [c, *more], ["o", *(f"o{i}" for i in range(1, outputs))], **attributes)
    r = g.node("Relu", ["o"], "r")
    g.node("Conv", [r, g.weight("w2", 3, 4, 1, 1)], "y")
    return _raw(g, _value("y"), ir_version=4 if opset < 10 else 8)


# An activation behind an operator whose quantized result keeps the scale of its input: QOperator lost the activation.


@odd(recipes=("qop",))
def relu_behind_a_pool() -> ModelProto:
    return _layer_and("MaxPool", 17, kernel_shape=[2, 2])


@odd(recipes=("qop",))
def relu_behind_a_transposition() -> ModelProto:
    return _layer_and("Transpose", 17, perm=[0, 1, 3, 2])


@odd(recipes=("qop",))
def relu_behind_a_resize_of_opset_10() -> ModelProto:
    return _layer_and("Resize", 10, {"scales": np.array([1, 1, 2, 2], np.float32)}, mode="nearest")


@odd(recipes=("qop",))
def relu_behind_a_pad() -> ModelProto:
    return _layer_and("Pad", 17, {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}, mode="reflect")


# Operator sets whose conversion changes the outputs.


@odd(floor=25.0, recipes=("s8s8",))
def upsample_linear_of_opset_9() -> ModelProto:
    return _layer_and("Upsample", 9, {"scales": np.array([1, 1, 2, 2], np.float32)}, mode="linear")


@odd(recipes=("s8s8",))
def hardmax_of_opset_11() -> ModelProto:
    return _layer_and("Hardmax", 11, axis=1)


# Newer forms that ONNX Runtime's transformations forget about.


@odd(recipes=("s8s8", "qop"))
def pad_of_one_axis() -> ModelProto:
    return _layer_and("Pad", 18, {"pads": np.array([1, 1]), "value": None, "axes": np.array([-1])})


@odd(floor=25.0, recipes=("s8s8", "qop"))
def resize_of_two_axes() -> ModelProto:
    extra = {"roi": None, "scales": None, "sizes": np.array([4, 12])}
    return _layer_and("Resize", 18, extra, axes=[2, 3], mode="linear")


@odd(floor=25.0, recipes=("s8s8", "qop"))
def resize_of_two_axes_keeping_proportions() -> ModelProto:
    extra = {"roi": None, "scales": None, "sizes": np.array([4, 6])}
    return _layer_and(
        "Resize", 18, extra, axes=[2, 3], mode="linear", antialias=1, keep_aspect_ratio_policy="not_larger"
    )


@odd(recipes=("s8s8", "qop"))
def average_pool_with_dilations_of_one() -> ModelProto:
    return _layer_and("AveragePool", 19, kernel_shape=[2, 2], dilations=[1, 1])


@odd(recipes=("dynamic",), floor=35.0)
def attention_of_opset_23() -> ModelProto:
    """Of ONNX's own domain; rewriters know Microsoft's."""
    g = GraphBuilder(23)
    x = g.input("x", 2, 5, 8)
    heads = [g.node("MatMul", [x, g.weight(f"w{name}", 8, 8)], name) for name in "qkv"]
    mask = g.constant("mask", np.triu(np.full((5, 5), -np.inf, np.float32), 1))
    a = g.node("Attention", [*heads, mask], "a", q_num_heads=2, kv_num_heads=2)
    g.node("MatMul", [a, g.weight("wo", 8, 4)], "y")
    g.output("y")
    return g.model()


@odd(floor=25.0, recipes=("s8s8",))
def transposition_read_in_float_of_opset_22() -> ModelProto:
    """ONNX Runtime moves the conversion behind it and mixes signed with unsigned, on processors without VNNI."""
    g = GraphBuilder(22)
    p = g.node("GlobalMaxPool", [g.input("x", 1, 6, 8, 8)], "p")
    g.node("Transpose", [p], "t", perm=[0, 1, 2, 3])
    g.node("ConvTranspose", [p, g.weight("w", 6, 2, 1, 1)], "y")
    g.output("t", "y")
    return g.model()


# Constants.


def _sparse() -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.array([1.0, 2.0, -0.5], np.float32), "w")
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 6, 11]), "places"), [4, 4])


@odd(recipes=("qop", "dynamic", "float16"))
def sparse_initializer() -> ModelProto:
    g = GraphBuilder()
    g.node("MatMul", [g.input("x", 2, 4), "w"], "y")
    made = _raw(g, helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4]))
    made.graph.sparse_initializer.append(_sparse())
    return made


@odd(recipes=("qop",))
def sparse_constant_by_coordinates() -> ModelProto:
    g = GraphBuilder()
    sparse = _sparse()
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([[0, 1], [1, 2], [2, 3]]), "places"))
    g.node("Constant", [], "w", sparse_value=sparse)
    g.node("MatMul", [g.input("x", 2, 4), "w"], "y")
    g.output("y")
    return g.model()


@odd(recipes=("qop", "float16"))
def initializers_repeated() -> ModelProto:
    g = GraphBuilder()
    g.node("MatMul", [g.input("x", 2, 4), g.weight("w", 4, 4)], "y")
    g.output("y")
    made = g.model()
    first = numpy_helper.from_array(np.zeros((4, 4), np.float32), "w")
    # The last one counts.
    last = made.graph.initializer.pop()
    made.graph.initializer.extend([first, last])
    return made


@odd(recipes=("s8s8",))
def weight_with_one_huge_value() -> ModelProto:
    """An outlier is no mask."""
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    g.weight("w", 4, 4, 3, 3)
    weights = numpy_helper.to_array(g.constants["w"]).copy()
    weights[0, 0, 0, 0] = 1e4
    g.node("Conv", [x, g.constant("w", weights)], "y")
    g.output("y")
    return g.model()


@odd(recipes=("equalized",))
def channel_of_rounding_errors() -> ModelProto:
    """Grown to the size of the others, its bias would drown them."""
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    g.weight("w", 4, 4, 3, 3)
    weights = numpy_helper.to_array(g.constants["w"]).copy()
    weights[0] = 1e-42
    c = g.node("Conv", [x, g.constant("w", weights), g.weight("b", 4)], "c")
    g.node("Conv", [g.node("Relu", [c], "r"), g.weight("w2", 4, 4, 3, 3)], "y")
    g.output("y")
    return g.model()


@odd(recipes=("s8s4",), floor=20.0)
def bias_too_large_for_its_integer() -> ModelProto:
    """With 4-bit weights no scale can be widened: the bias stays in float, and ONNX Runtime must be kept off it."""
    g = GraphBuilder()
    c = g.node("Gemm", [g.input("x", 3, 8), g.weight("w", 8, 8, scale=1e-7), g.weight("b", 8, scale=10.0)], "c")
    g.node("Gemm", [c, g.weight("w2", 8, 8), g.weight("b2", 8)], "y")
    g.output("y")
    return g.model()


# Interfaces.


@odd(recipes=("float16",), floor=50.0)
def output_listed_twice() -> ModelProto:
    g = GraphBuilder()
    g.node("MatMul", [g.input("x", 2, 4), g.weight("w", 4, 4)], "y")
    g.output("y", "y")
    return g.model()


@odd(recipes=("s8s8",))
def input_called_labels() -> ModelProto:
    g = GraphBuilder()
    g.node("MatMul", [g.input("labels", 2, 4), g.weight("w", 4, 4)], "y")
    g.output("y")
    return g.model()


@odd(recipes=("s8s8", "qop", "dynamic"))
def image_of_bytes_out() -> ModelProto:
    """A pixel off by one is nearly right: agreement would refuse every recipe, float16 too."""
    g = GraphBuilder()
    h = g.node("MatMul", [g.input("x", 2, 6), g.weight("w", 6, 6)], "h")
    h = g.node("Add", [g.node("Mul", [h, g.constant("k", np.float32(40))], "m"), g.constant("o", np.float32(128))], "a")
    c = g.node("Clip", [h, g.constant("low", np.float32(0)), g.constant("high", np.float32(255))], "c")
    g.node("Cast", [c], "y", to=TensorProto.UINT8)
    g.output("y", type=TensorProto.UINT8)
    return g.model()


@odd(recipes=("s8s8",), runs_as_given=False)
def sequence_beside_a_tensor_out() -> ModelProto:
    g = GraphBuilder()
    h = g.node("MatMul", [g.input("x", 2, 6), g.weight("w", 6, 6)], "h")
    g.node("SplitToSequence", [h], "s", axis=0)
    return _raw(
        g,
        helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("h", TensorProto.FLOAT, [2, 6]),
    )


@odd(recipes=("s8s8",), runs_as_given=False)
def map_of_a_classical_classifier_out() -> ModelProto:
    g = GraphBuilder()
    g.domains["ai.onnx.ml"] = 2
    h = g.node("MatMul", [g.input("x", 2, 3), g.weight("w", 3, 3)], "h")
    p = g.node("Softmax", [h], "p")
    g.node("ZipMap", [p], "z", domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])
    made = onnx.ValueInfoProto(name="z")
    element = made.type.sequence_type.elem_type.map_type
    element.key_type = TensorProto.INT64
    element.value_type.tensor_type.elem_type = TensorProto.FLOAT
    return _raw(g, helper.make_tensor_value_info("p", TensorProto.FLOAT, [2, 3]), made)


@odd(recipes=("s8s8",))
def half_precision_output_listed_twice() -> ModelProto:
    g = GraphBuilder(17, float_type=TensorProto.FLOAT16)
    g.node("MatMul", [g.input("x", 2, 6), g.weight("w", 6, 6)], "y")
    g.output("y", "y")
    return g.model()


# Recurrent networks that have no integer form in ONNX Runtime: their weights have one.


def _recurrent(kind: str, gates: int, **attributes: object) -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 7, 2, 4)
    weights = [g.weight("w", 2, gates * 5, 4, scale=0.4), g.weight("r", 2, gates * 5, 5, scale=0.4)]
    g.node(kind, [x, *weights], ["y", "last"], hidden_size=5, direction="bidirectional", **attributes)
    g.output("y", "last")
    return g.model()


@odd(recipes=("block",))
def gru_alone() -> ModelProto:
    return _recurrent("GRU", 3, linear_before_reset=1)


@odd(recipes=("block",))
def rnn_alone() -> ModelProto:
    return _recurrent("RNN", 1)


# Order and names.


def _two_gemms(opset: int = 17) -> GraphBuilder:
    g = GraphBuilder(opset)
    h = g.node("Gemm", [g.input("x", 2, 6), g.weight("w", 6, 6), g.weight("b", 6)], "h")
    g.node("Gemm", [g.node("Relu", [h], "r"), g.weight("w2", 6, 3), g.weight("b2", 3)], "y")
    g.output("y")
    return g


@odd(recipes=("qop",))
def nodes_out_of_order() -> ModelProto:
    made = _two_gemms().model()
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in reversed(made.graph.node)]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


@odd(recipes=("qop",))
def default_domain_by_both_names() -> ModelProto:
    made = _two_gemms().model()
    made.opset_import.append(helper.make_opsetid("ai.onnx", 17))
    made.graph.node[0].domain = "ai.onnx"
    return made


@odd(recipes=("s8s8", "dynamic"))
def initializers_not_listed_in_ir_version_3() -> ModelProto:
    made = _two_gemms(9).model()
    made.ir_version = 3
    return made


@odd(recipes=("qop", "float16"))
def branches_with_the_same_names() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 2, 6)
    h = g.node("MatMul", [x, g.weight("w", 6, 6)], "h")
    first = g.node("Gather", [g.node("Flatten", [x], "f", axis=0), g.constant("one", [1], np.int64)], "v", axis=1)
    less = g.node("Less", [g.node("Squeeze", [first], "s"), g.constant("zero", np.float32(0))], "c")
    branches = []
    for seed in range(2):
        b = GraphBuilder(seed=seed)
        b.node("Relu", [b.node("MatMul", [h, b.weight("inner", 6, 6)], "m")], "o")
        branches.append(b.subgraph(f"b{seed}", ["o"]))
    g.node("If", [less], "i", then_branch=branches[0], else_branch=branches[1])
    g.node("MatMul", ["i", g.weight("w2", 6, 3)], "y")
    g.output("y")
    return g.model()


@odd(recipes=("s8s8",))
def type_of_a_tensor_that_is_gone() -> ModelProto:
    made = _two_gemms().model()
    made.graph.value_info.append(helper.make_tensor_value_info("x_QuantizeLinear_Output", TensorProto.FLOAT, [2, 6]))
    return made


@odd(recipes=("u8s8",))
def pooled_and_reshaped_for_a_branch() -> ModelProto:
    """ONNX Runtime dies moving a conversion behind an operator whose result control flow reads."""
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    p = g.node("MaxPool", [x], "p", kernel_shape=[2, 2])
    f = g.node("Reshape", [p, g.constant("shape", [4, 49], np.int64)], "f")
    less = g.node("Less", [g.node("ReduceSum", [x], "t", keepdims=0), g.constant("zero", np.float32(0))], "c")
    branches = []
    for end in "ab":
        b = GraphBuilder(seed=ord(end))
        b.node("MatMul", [f, b.weight(f"w{end}", 49, 4)], f"o{end}")
        branches.append(b.subgraph(end, [f"o{end}"]))
    g.node("If", [less], "y", then_branch=branches[0], else_branch=branches[1])
    g.node("Conv", [x, g.weight("w", 4, 4, 1, 1)], "z")
    g.output("y", "z")
    return g.model()


@odd(recipes=("qop",))
def sliced_for_a_branch() -> ModelProto:
    """The same of an operator that QOperator has no form of."""
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    c = g.node("Conv", [x, g.weight("w", 4, 4, 1, 1)], "c")
    cut = [g.constant(name, [value], np.int64) for name, value in (("from", 1), ("to", 7), ("along", 2))]
    s = g.node("Slice", [c, *cut], "s")
    less = g.node("Less", [g.node("ReduceSum", [x], "t", keepdims=0), g.constant("zero", np.float32(0))], "l")
    branches = []
    for end, kind in (("a", "Relu"), ("b", "Neg")):
        b = GraphBuilder()
        b.node(kind, [s], f"o{end}")
        branches.append(b.subgraph(end, [f"o{end}"]))
    g.node("If", [less], "y", then_branch=branches[0], else_branch=branches[1])
    g.output("y")
    return g.model()
