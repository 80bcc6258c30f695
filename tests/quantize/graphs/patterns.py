"""Graph patterns on which public quantization tools fail, crash, hang or lie, and their siblings.

Numbers are those of the issues at github.com/microsoft/onnxruntime the patterns come from; patterns without one were
found by looking for siblings of a cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from graph_builder import Array, GraphBuilder, calibration_of
from onnx import ModelProto, TensorProto, helper

from harness.quantize.contract import Cause

ALL = ("s8s8", "u8s8", "qop")
_QDQ_ONLY = Cause.NOTHING_QUANTIZED
"""QOperator has no form of the only layer."""


@dataclass(frozen=True)
class Pattern:
    name: str
    build: Callable[[], ModelProto]
    floors: Mapping[str, float | Cause]
    """Recipe name -> signal-to-noise ratio it must reach, in dB, or the cause it must be refused for."""
    data: Callable[[ModelProto], dict[str, Array]] = calibration_of
    runs_as_given: bool = True
    """Whether ONNX Runtime runs the model before it is prepared."""


PATTERNS: list[Pattern] = []


def pattern(
    floor: float = 30.0,
    recipes: tuple[str, ...] = ALL,
    data: Callable[[ModelProto], dict[str, Array]] = calibration_of,
    runs_as_given: bool = True,
    **own: float | Cause,
) -> Callable[[Callable[[], ModelProto]], Callable[[], ModelProto]]:
    def register(build: Callable[[], ModelProto]) -> Callable[[], ModelProto]:
        floors = {**dict.fromkeys(recipes, floor), **own}
        PATTERNS.append(Pattern(build.__name__, build, floors, data, runs_as_given))
        return build

    return register


# Shared weights and biases.


def _two_convs(shared_bias: bool, second: float = 1.0) -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    b = g.weight("b", 4)
    other = b if shared_bias else g.constant("b2", np.zeros(4, np.float32))
    c = g.node("Conv", [x, g.weight("w1", 4, 4, 3, 3), b], "c")
    g.node("Conv", [c, g.weight("w2", 4, 4, 3, 3, scale=second / 6), other], "y")
    g.output("y")
    return g.model()


@pattern()
def bias_shared_by_two_convs() -> ModelProto:  # 7982
    return _two_convs(True)


@pattern()
def bias_shared_by_two_convs_small_second_weight() -> ModelProto:  # 7982
    return _two_convs(True, 0.01)


@pattern()
def weight_shared_by_two_convs() -> ModelProto:
    g = GraphBuilder()
    x, w, b = g.input("x", 1, 4, 8, 8), g.weight("w", 4, 4, 3, 3), g.weight("b", 4)
    c = g.node("Conv", [x, w, b], "c")
    r = g.node("Relu", [c], "r")
    g.node("Conv", [r, w, b], "y", pads=[1, 1, 1, 1])
    g.output("y")
    return g.model()


@pattern()
def bias_shared_by_gemm_and_conv() -> ModelProto:
    g = GraphBuilder()
    x, b = g.input("x", 1, 4, 6, 6), g.weight("b", 4)
    c = g.node("Conv", [x, g.weight("w", 4, 4, 3, 3), b], "c")
    p = g.node("GlobalAveragePool", [c], "p")
    f = g.node("Flatten", [p], "f")
    g.node("Gemm", [f, g.weight("w2", 4, 4), b], "y")
    g.output("y")
    return g.model()


@pattern()
def bias_shared_by_three_gemms_with_beta() -> ModelProto:
    g = GraphBuilder()
    x, b = g.input("x", 2, 6), g.weight("b", 6, scale=1.0)
    h = g.node("Gemm", [x, g.weight("w1", 6, 6), b], "h")
    h = g.node("Gemm", [h, g.weight("w2", 6, 6), b], "h2", beta=0.5)
    g.node("Gemm", [h, g.weight("w3", 6, 6), b], "y", beta=2.0, alpha=1.5)
    g.output("y")
    return g.model()


@pattern()
def one_tensor_weight_of_conv_and_operand_of_mul() -> ModelProto:
    g = GraphBuilder()
    x, w = g.input("x", 1, 4, 8, 8), g.weight("w", 4, 1, 3, 3, scale=0.5)
    c = g.node("Conv", [x, w], "c", group=4)
    m = g.node("Mul", [w, g.constant("two", np.float32(2.0))], "m")
    s = g.node("ReduceMax", [m], "s", keepdims=0)
    g.node("Add", [c, s], "y")
    g.output("y")
    return g.model()


@pattern()
def one_tensor_bias_and_addend() -> ModelProto:
    g = GraphBuilder()
    x, b = g.input("x", 2, 6), g.weight("b", 6)
    h = g.node("Gemm", [x, g.weight("w1", 6, 6), b], "h")
    g.node("Add", [h, b], "y")
    g.output("y")
    return g.model()


@pattern()
def one_vector_bias_of_gemm_and_weight_of_matmul() -> ModelProto:
    g = GraphBuilder()
    x, b = g.input("x", 2, 6), g.weight("b", 6)
    h = g.node("Gemm", [x, g.weight("w1", 6, 6), b], "h")
    g.node("MatMul", [h, b], "y")
    g.output("y")
    return g.model()


@pattern()
def weight_shared_by_gemm_plain_and_transposed() -> ModelProto:
    g = GraphBuilder()
    x, w = g.input("x", 2, 6), g.constant("w", np.random.default_rng(3).standard_normal((6, 6)) * np.logspace(-2, 0, 6))
    h = g.node("Gemm", [x, w], "h")
    g.node("Gemm", [h, w], "y", transB=1)
    g.output("y")
    return g.model()


@pattern()
def weight_tied_through_transpose() -> ModelProto:  # 21277
    g = GraphBuilder()
    x, w = g.input("x", 2, 8), g.weight("w", 8, 6)
    h = g.node("MatMul", [x, w], "h")
    t = g.node("Transpose", [w], "t", perm=[1, 0])
    g.node("MatMul", [h, t], "y")
    g.output("y")
    return g.model()


def _tokens(model: ModelProto) -> dict[str, Array]:
    shape = [d.dim_value or 1 for d in model.graph.input[0].type.tensor_type.shape.dim]
    return {"ids": np.random.default_rng(5).integers(0, 16, [16, *shape]).astype(np.int64)}


@pattern(data=_tokens, recipes=("s8s8", "u8s8", "qop"))
def embedding_tied_to_the_last_layer() -> ModelProto:
    g = GraphBuilder()
    ids, table = g.input("ids", 1, 5, type=TensorProto.INT64), g.weight("table", 16, 8, scale=1.0)
    e = g.node("Gather", [table, ids], "e")
    h = g.node("MatMul", [e, g.weight("w", 8, 8)], "h")
    t = g.node("Transpose", [table], "t", perm=[1, 0])
    g.node("MatMul", [h, t], "y")
    g.output("y")
    return g.model()


# Bias shapes.


def _gemm_bias(shape: tuple[int, ...]) -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 3, 6)
    b = g.constant("b", np.asarray(g.random.standard_normal(shape), np.float32))
    h = g.node("Gemm", [x, g.weight("w", 6, 4), b], "h")
    g.node("Relu", [h], "y")
    g.output("y")
    return g.model()


@pattern()
def gemm_bias_one() -> ModelProto:  # 24815
    return _gemm_bias((1,))


@pattern()
def gemm_bias_scalar() -> ModelProto:  # 24815
    return _gemm_bias(())


@pattern()
def gemm_bias_row() -> ModelProto:  # 24815
    return _gemm_bias((1, 4))


@pattern()
def gemm_bias_matrix() -> ModelProto:
    return _gemm_bias((3, 4))


@pattern()
def gemm_bias_column() -> ModelProto:
    return _gemm_bias((3, 1))


@pattern(qop=_QDQ_ONLY)
def gemm_bias_computed() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 3, 6)
    b = g.node("ReduceMean", [x], "b", axes=[0], keepdims=0)
    h = g.node("Gemm", [x, g.weight("w", 6, 6), b], "h")
    g.node("Relu", [h], "y")
    g.output("y")
    return g.model()


@pattern()
def gemm_options() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 6, 3)
    h = g.node("Gemm", [x, g.weight("w", 4, 6), g.weight("b", 4)], "h", transA=1, transB=1, alpha=0.5, beta=3.0)
    g.node("Gemm", [h, g.weight("w2", 4, 5), g.weight("b2", 5)], "y", beta=0.0)
    g.output("y")
    return g.model()


@pattern()
def gemm_weight_computed_bias_constant() -> ModelProto:
    g = GraphBuilder()
    x, v = g.input("x", 3, 6), g.input("v", 6, 4)
    h = g.node("Gemm", [x, v, g.weight("b", 4)], "h")
    g.node("Relu", [h], "y")
    g.output("y")
    return g.model()


@pattern()
def gemm_weight_is_first_operand() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 6, 4)
    h = g.node("Gemm", [g.weight("w", 3, 6), x, g.weight("b", 4)], "h")
    g.node("Relu", [h], "y")
    g.output("y")
    return g.model()


@pattern()
def conv_weight_computed_bias_constant() -> ModelProto:
    g = GraphBuilder()
    x, w = g.input("x", 1, 3, 6, 6), g.input("w", 4, 3, 3, 3)
    g.node("Conv", [x, w, g.weight("b", 4)], "y")
    g.output("y")
    return g.model()


@pattern(qop=_QDQ_ONLY)
def conv_bias_computed() -> ModelProto:
    g = GraphBuilder()
    x, b = g.input("x", 1, 3, 6, 6), g.input("b", 4)
    g.node("Conv", [x, g.weight("w", 4, 3, 3, 3), b], "y")
    g.output("y")
    return g.model()


@pattern()
def conv_bias_huge_against_its_weight() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 3, 6, 6)
    w = g.constant("w", g.random.standard_normal((4, 3, 3, 3)) * np.logspace(-9, 0, 4)[:, None, None, None])
    g.node("Conv", [x, w, g.weight("b", 4, scale=2.0)], "y")
    g.output("y")
    return g.model()


@pattern()
def conv_with_a_dead_channel() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 3, 6, 6)
    w = g.random.standard_normal((4, 3, 3, 3)).astype(np.float32)
    w[1] = 0.0
    g.node("Conv", [x, g.constant("w", w), g.weight("b", 4, scale=2.0)], "y")
    g.output("y")
    return g.model()


@pattern()
def conv_bias_given_as_empty_name() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 3, 6, 6)
    g.node("Conv", [x, g.weight("w", 4, 3, 3, 3), ""], "y")
    g.output("y")
    return g.model()


# Convolutions of all kinds.


def _transposed(group: int, bias: bool) -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 4, 5, 5)
    w = g.constant(
        "w",
        g.random.standard_normal((4, 6 // group, 3, 3)) * np.logspace(-1, 0, 6 // group)[None, :, None, None] * 0.3,
    )
    c = g.node("ConvTranspose", [x, w, *([g.weight("b", 6)] if bias else [])], "c", group=group, strides=[2, 2])
    g.node("Relu", [c], "y")
    g.output("y")
    return g.model()


@pattern(qop=_QDQ_ONLY)
def conv_transpose_with_bias() -> ModelProto:  # 19694
    return _transposed(1, True)


@pattern(qop=_QDQ_ONLY)
def conv_transpose_in_groups_with_bias() -> ModelProto:  # 19694
    return _transposed(2, True)


@pattern(qop=_QDQ_ONLY)
def conv_transpose_in_groups() -> ModelProto:
    return _transposed(2, False)


@pattern(qop=_QDQ_ONLY)
def conv_transpose_depthwise() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 4, 5, 5)
    w = g.constant("w", g.random.standard_normal((4, 1, 3, 3)) * np.logspace(-2, 0, 4)[:, None, None, None])
    c = g.node("ConvTranspose", [x, w, g.weight("b", 4)], "c", group=4, strides=[2, 2])
    g.node("Relu", [c], "y")
    g.output("y")
    return g.model()


@pattern()
def conv_transpose_sharing_weight_with_conv() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    w = g.constant("w", g.random.standard_normal((6, 4, 3, 3)) * np.logspace(-2, 0, 6)[:, None, None, None] * 0.3)
    c = g.node("Conv", [x, w, g.weight("b", 6)], "c")
    g.node("ConvTranspose", [c, w, g.weight("b2", 4)], "y")
    g.output("y")
    return g.model()


@pattern()
def conv_in_one_dimension() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 4, 16)
    c = g.node("Conv", [x, g.weight("w", 6, 2, 3), g.weight("b", 6)], "c", group=2, strides=[2])
    r = g.node("Relu", [c], "r")
    g.node("ConvTranspose", [r, g.weight("w2", 6, 4, 3), g.weight("b2", 4)], "y")
    g.output("y")
    return g.model()


@pattern()
def conv_in_three_dimensions() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 2, 5, 5, 5)
    c = g.node("Conv", [x, g.weight("w", 4, 2, 3, 3, 3), g.weight("b", 4)], "c")
    g.node("Relu", [c], "y")
    g.output("y")
    return g.model()


@pattern(floor=25.0)
def depthwise_batch_norm_block() -> ModelProto:  # 11415
    g = GraphBuilder()
    x = g.input("x", 1, 8, 8, 8)
    c = g.node("Conv", [x, g.weight("w", 8, 1, 3, 3), ""], "c", group=8, pads=[1, 1, 1, 1])
    spread = np.logspace(-3, 1, 8).astype(np.float32)
    names = [g.constant("s", spread), g.weight("o", 8), g.weight("m", 8), g.constant("v", spread**2)]
    n = g.node("BatchNormalization", [c, *names], "n")
    h = g.node("HardSwish", [n], "h")
    g.node("Conv", [h, g.weight("w2", 8, 8, 1, 1), g.weight("b2", 8)], "y")
    g.output("y")
    return g.model()


# Constants in unusual places.


@pattern()
def bias_also_reshaped_and_added() -> ModelProto:
    """Hangs ONNX Runtime's QDQ rewriter."""
    g = GraphBuilder()
    x, b = g.input("x", 1, 4, 8, 8), g.weight("b", 4)
    c = g.node("Conv", [x, g.weight("w", 4, 4, 3, 3), b], "c")
    r = g.node("Reshape", [b, g.constant("shape", [1, 4, 1, 1], np.int64)], "r")
    g.node("Add", [c, r], "y")
    g.output("y")
    return g.model()


@pattern()
def weight_also_sliced_and_multiplied() -> ModelProto:
    g = GraphBuilder()
    x, w = g.input("x", 1, 4, 8, 8), g.weight("w", 4, 4, 3, 3)
    c = g.node("Conv", [x, w], "c")
    names = [g.constant(n, [v], np.int64) for n, v in (("from", 0), ("to", 1), ("axis", 1))]
    s = g.node("Slice", [w, *names], "s")
    t = g.node("Reshape", [s, g.constant("shape", [1, 4, 3, 3], np.int64)], "t")
    p = g.node("GlobalMaxPool", [t], "p")
    g.node("Mul", [c, p], "y")
    g.output("y")
    return g.model()


@pattern(recipes=("s8s8", "u8s8", "qop", "dynamic"))
def half_precision_weight_behind_a_cast() -> ModelProto:  # 13358
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    w = g.constant("w", g.random.standard_normal((4, 4, 3, 3)) / 6, np.float16)
    b = g.constant("b", g.random.standard_normal(4), np.float16)
    wf, bf = (g.node("Cast", [n], f"{n}f", to=TensorProto.FLOAT) for n in (w, b))
    g.node("Conv", [x, wf, bf], "y")
    g.output("y")
    return g.model()


@pattern()
def weight_as_constant_node() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    value = helper.make_tensor("v", 1, [4, 4, 3, 3], (g.random.standard_normal(144) / 6).astype(np.float32))
    w = g.node("Constant", [], "w", value=value)
    b = g.node("Constant", [], "b", value_floats=[0.5, -0.5, 1.0, 2.0])
    g.node("Conv", [x, w, b], "y")
    g.output("y")
    return g.model()


@pattern()
def weight_behind_identity_and_dropout() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 2, 6)
    w = g.node("Identity", [g.weight("w0", 6, 6)], "w")
    h = g.node("MatMul", [x, w], "h")
    d = g.node("Dropout", [h], "d")
    i = g.node("Identity", [d], "i")
    g.node("MatMul", [i, g.weight("w2", 6, 4)], "y")
    g.output("y")
    return g.model()


@pattern()
def weight_from_constant_of_shape() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    value = helper.make_tensor("v", 1, [1], [0.11])
    w = g.node("ConstantOfShape", [g.constant("shape", [4, 1, 3, 3], np.int64)], "w", value=value)
    g.node("Conv", [x, w], "y", group=4)
    g.output("y")
    return g.model()


@pattern()
def weight_listed_as_an_input() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    w = g.weight("w", 4, 4, 3, 3)
    g.input("w", 4, 4, 3, 3)
    g.node("Conv", [x, w], "y")
    g.output("y")
    return g.model()


@pattern(float16=50.0, dynamic=20.0)
def weight_is_an_output() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 2, 6)
    w = g.weight("w", 6, 6)
    g.node("MatMul", [x, w], "y")
    g.output("y", w)
    return g.model()


@pattern(float16=50.0, dynamic=20.0)
def input_is_an_output() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 2, 6)
    g.node("MatMul", [x, g.weight("w", 6, 6)], "y")
    g.output("y", x)
    return g.model()


@pattern()
def outputs_also_consumed() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    c = g.node("Conv", [x, g.weight("w", 4, 4, 3, 3), g.weight("b", 4)], "c")
    r = g.node("Relu", [c], "r")
    p = g.node("MaxPool", [r], "p", kernel_shape=[2, 2])
    g.node("Reshape", [p, g.constant("shape", [1, -1], np.int64)], "y")
    g.output(c, r, p, "y")
    return g.model()


# Operand ranks.


@pattern()
def matmul_with_vectors() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 3, 6)
    h = g.node("MatMul", [x, g.weight("w", 6, 5)], "h")
    v = g.node("MatMul", [h, g.weight("v", 5)], "v1")
    g.node("MatMul", [v, g.weight("u", 3, 4)], "y")
    g.output("y")
    return g.model()


@pattern()
def matmul_of_two_vectors() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 6)
    h = g.node("MatMul", [x, g.weight("w", 6)], "h")
    g.node("Add", [x, h], "y")
    g.output("y")
    return g.model()


@pattern()
def matmul_batched_weight() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 2, 3, 6)
    w = g.constant("w", g.random.standard_normal((2, 6, 5)) * np.logspace(-1, 0, 5) * np.array([1, 0.3])[:, None, None])
    h = g.node("MatMul", [x, w], "h")
    g.node("Relu", [h], "y")
    g.output("y")
    return g.model()


@pattern()
def matmul_constant_first() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 6, 3)
    w = g.constant("w", g.random.standard_normal((5, 6)) * np.logspace(-1, 0, 5)[:, None])
    h = g.node("MatMul", [w, x], "h")
    g.node("Relu", [h], "y")
    g.output("y")
    return g.model()


@pattern()
def matmul_batched_constant_first() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 2, 6, 3)
    h = g.node("MatMul", [g.weight("w", 2, 5, 6, scale=0.4), x], "h")
    g.node("Relu", [h], "y")
    g.output("y")
    return g.model()


@pattern()
def matmul_of_two_activations() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 2, 4, 6)
    q = g.node("MatMul", [x, g.weight("w", 6, 6)], "q")
    t = g.node("Transpose", [q], "t", perm=[0, 2, 1])
    g.node("MatMul", [q, t], "y")
    g.output("y")
    return g.model()


# Names.


@pattern(dynamic=20.0)
def names_that_collide() -> ModelProto:
    """Names of the form that rewriters make up."""
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    scale = g.input("x_scale", 1, 4, 8, 8)
    w, b = g.weight("w", 4, 4, 3, 3), g.weight("w_scale", 4)
    c = g.node("Conv", [x, w, b], "x_QuantizeLinear_Output")
    d = g.node(
        "Conv", [scale, g.weight("w_zero_point", 4, 4, 3, 3), g.weight("w_quantized", 4)], "x_DequantizeLinear_Output"
    )
    s = g.node("Add", [c, d], "y_QuantizeLinear_Input")
    q = g.node("Relu", [s], "x_quantized")
    z = g.node("Mul", [q, s], "x_zero_point")
    g.node("Conv", [z, g.weight("b_quantized", 4, 4, 3, 3), g.weight("b", 4)], "y")
    g.output("y", z)
    return g.model()


@pattern()
def names_of_nodes_equal_to_tensors() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 2, 6)
    h = g.node("MatMul", [x, g.weight("w", 6, 6)], "h")
    g.node("Relu", [h], "y")
    for node, name in zip(g.nodes, ["x_QuantizeLinear", "h_DequantizeLinear"], strict=True):
        node.name = name
    g.output("y")
    return g.model()


# Empty and zero-dimensional tensors, optional outputs.


@pattern()
def empty_tensor_concatenated() -> ModelProto:  # 23600
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    c = g.node("Conv", [x, g.weight("w", 4, 4, 3, 3), g.weight("b", 4)], "c")
    names = [g.constant(n, [v], np.int64) for n, v in (("from", 0), ("to", 0), ("axis", 1))]
    s = g.node("Slice", [c, *names], "s")
    g.node("Concat", [s, c], "y", axis=1)
    g.output("y")
    return g.model()


@pattern()
def empty_tensor_through_layers() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 2, 6)
    names = [g.constant(n, [v], np.int64) for n, v in (("from", 0), ("to", 0), ("axis", 0))]
    s = g.node("Slice", [x, *names], "s")
    h = g.node("MatMul", [s, g.weight("w", 6, 6)], "h")
    r = g.node("Relu", [h], "r")
    d = g.node("MatMul", [x, g.weight("w2", 6, 6)], "d")
    g.node("Concat", [r, d], "y", axis=0)
    g.output("y", r)
    return g.model()


@pattern()
def scalars_between_layers() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 2, 6)
    h = g.node("MatMul", [x, g.weight("w", 6, 6)], "h")
    m = g.node("ReduceMax", [h], "m", keepdims=0)
    k = g.node("Mul", [m, g.constant("half", np.float32(0.5))], "k")
    g.node("Add", [h, k], "y")
    g.output("y")
    return g.model()


@pattern()
def optional_outputs_left_out() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    c = g.node("Conv", [x, g.weight("w", 4, 4, 3, 3), g.weight("b", 4)], "c")
    p = g.node("MaxPool", [c], ["p", ""], kernel_shape=[2, 2])
    d = g.node("Dropout", [p], ["d", ""])
    f = g.node("Flatten", [d], "f")
    g.node("LayerNormalization", [f, g.constant("s", np.ones(100))], ["y", "", ""])
    g.output("y")
    return g.model()


@pattern(runs_as_given=False)
def split_output_left_out() -> ModelProto:
    """Crashes ONNX Runtime in float."""
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    c = g.node("Conv", [x, g.weight("w", 4, 4, 3, 3), g.weight("b", 4)], "c")
    g.node("Split", [c], ["s", ""], axis=1)
    g.node("Conv", ["s", g.weight("w2", 4, 2, 3, 3)], "y")
    g.output("y")
    return g.model()


@pattern()
def split_and_indices() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    c = g.node("Conv", [x, g.weight("w", 4, 4, 3, 3), g.weight("b", 4)], "c")
    g.node("Split", [c], ["s", "t"], axis=1)
    m = g.node("Mul", ["s", "t"], "m")
    g.node("MaxPool", [m], ["y", "i"], kernel_shape=[2, 2])
    g.output("y")
    return g.model()


# Masks.


def _attention(mask_value: float, where: bool) -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 6, 8)
    q, k, v = (g.node("MatMul", [x, g.weight(f"w{n}", 8, 8)], n) for n in "qkv")
    t = g.node("Transpose", [k], "t", perm=[0, 2, 1])
    s = g.node("MatMul", [q, t], "s")
    mask = np.triu(np.ones((1, 6, 6), np.bool_), 1)
    if where:
        m = g.node("Where", [g.constant("mask", mask), g.constant("low", np.float32(mask_value)), s], "m")
    else:
        m = g.node("Add", [s, g.constant("mask", np.where(mask, np.float32(mask_value), np.float32(0)))], "m")
    p = g.node("Softmax", [m], "p", axis=-1)
    a = g.node("MatMul", [p, v], "a")
    g.node("MatMul", [a, g.weight("wo", 8, 8)], "y")
    g.output("y")
    return g.model()


_MASK_FLOOR = 25.0


@pattern(floor=_MASK_FLOOR)
def mask_of_minus_infinity_added() -> ModelProto:
    return _attention(-np.inf, False)


@pattern(floor=_MASK_FLOOR)
def mask_of_lowest_float_added() -> ModelProto:
    return _attention(float(np.finfo(np.float32).min), False)


@pattern(floor=_MASK_FLOOR)
def mask_of_ten_thousand_added() -> ModelProto:
    return _attention(-1e4, False)


@pattern(floor=_MASK_FLOOR)
def mask_of_minus_infinity_where() -> ModelProto:
    return _attention(-np.inf, True)


@pattern(floor=_MASK_FLOOR)
def mask_of_minus_billion_where() -> ModelProto:
    return _attention(-1e9, True)


def _mask_inputs(model: ModelProto) -> dict[str, Array]:
    random = np.random.default_rng(3)
    keep = np.ones((16, 1, 6), np.int64)
    for row, length in enumerate(random.integers(3, 7, 16)):
        keep[row, 0, length:] = 0
    return {"x": random.standard_normal((16, 1, 6, 8)).astype(np.float32), "keep": keep}


@pattern(floor=_MASK_FLOOR, data=_mask_inputs)
def mask_computed_as_exporters_do() -> ModelProto:
    """(1 − mask) × −3.4e38, as in exported BERT models, with steps between it and Softmax."""
    g = GraphBuilder()
    x, keep = g.input("x", 1, 6, 8), g.input("keep", 1, 6, type=TensorProto.INT64)
    u = g.node("Unsqueeze", [keep, g.constant("axes", [1], np.int64)], "u")
    f = g.node("Cast", [u], "f", to=TensorProto.FLOAT)
    i = g.node("Sub", [g.constant("one", np.float32(1)), f], "i")
    mask = g.node("Mul", [i, g.constant("low", np.float32(np.finfo(np.float32).min))], "mask")
    q, k, v = (g.node("MatMul", [x, g.weight(f"w{n}", 8, 8)], n) for n in "qkv")
    t = g.node("Transpose", [k], "t", perm=[0, 2, 1])
    s = g.node("MatMul", [q, t], "s")
    m = g.node("Add", [s, mask], "m")
    r = g.node("Reshape", [m, g.constant("shape", [6, 6], np.int64)], "r")
    p = g.node("Softmax", [r], "p", axis=-1)
    p3 = g.node("Reshape", [p, g.constant("shape3", [1, 6, 6], np.int64)], "p3")
    a = g.node("MatMul", [p3, v], "a")
    g.node("MatMul", [a, g.weight("wo", 8, 8)], "y")
    g.output("y")
    return g.model()


@pattern()
def clip_with_huge_bounds_and_max_pool_padding() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    c = g.node("Conv", [x, g.weight("w", 4, 4, 3, 3), g.weight("b", 4)], "c")
    k = g.node("Clip", [c, g.constant("low", np.float32(-1e30)), g.constant("high", np.float32(2.0))], "k")
    pads = g.constant("pads", [0, 0, 1, 1, 0, 0, 1, 1], np.int64)
    p = g.node("Pad", [k, pads, g.constant("pad", np.float32(-np.inf))], "p")
    g.node("MaxPool", [p], "y", kernel_shape=[2, 2], strides=[2, 2])
    g.output("y")
    return g.model()


@pattern()
def clip_without_bounds() -> ModelProto:  # 5586
    g = GraphBuilder()
    x = g.input("x", 2, 6)
    h = g.node("MatMul", [x, g.weight("w", 6, 6)], "h")
    c = g.node("Clip", [h], "c")
    d = g.node("Clip", [c, "", g.constant("high", np.float32(1.0))], "d")
    g.node("MatMul", [d, g.weight("w2", 6, 6)], "y")
    g.output("y")
    return g.model()


# Types.


def _typed(float_type: int, opset: int) -> ModelProto:
    g = GraphBuilder(opset=opset, float_type=float_type)
    x = g.input("x", 1, 4, 8, 8)
    c = g.node("Conv", [x, g.weight("w", 6, 4, 3, 3), g.weight("b", 6)], "c")
    r = g.node("Relu", [c], "r")
    p = g.node("GlobalAveragePool", [r], "p")
    f = g.node("Flatten", [p], "f")
    g.node("Gemm", [f, g.weight("w2", 6, 4), g.weight("b2", 4)], "y")
    g.output("y")
    return g.model()


@pattern(recipes=(*ALL, "dynamic"))
def half_precision_opset_17() -> ModelProto:
    return _typed(TensorProto.FLOAT16, 17)


@pattern()
def half_precision_opset_21() -> ModelProto:
    return _typed(TensorProto.FLOAT16, 21)


@pattern()
def half_precision_opset_11() -> ModelProto:
    return _typed(TensorProto.FLOAT16, 11)


@pattern(runs_as_given=False)
def double_precision() -> ModelProto:
    return _typed(TensorProto.DOUBLE, 17)


@pattern(runs_as_given=False)
def brain_float() -> ModelProto:
    return _typed(TensorProto.BFLOAT16, 22)


@pattern()
def integers_out() -> ModelProto:  # 5499
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    c = g.node("Conv", [x, g.weight("w", 4, 4, 3, 3), g.weight("b", 4)], "c")
    s = g.node("Shape", [c], "s")
    r = g.node("Relu", [c], "r")
    g.output(r)
    g.output(s, type=TensorProto.INT64)
    return g.model()


def _mixed_inputs(model: ModelProto) -> dict[str, Array]:
    random = np.random.default_rng(3)
    return {
        "x": random.standard_normal((16, 1, 5, 6)).astype(np.float32),
        "ids": random.integers(0, 10, (16, 1, 5)).astype(np.int32),
        "keep": random.integers(0, 2, (16, 1, 5)).astype(np.bool_),
        "gain": random.uniform(0.5, 2, (16,)).astype(np.float32),
    }


@pattern(data=_mixed_inputs)
def inputs_of_four_kinds() -> ModelProto:
    g = GraphBuilder()
    x, ids = g.input("x", 1, 5, 6), g.input("ids", 1, 5, type=TensorProto.INT32)
    keep, gain = g.input("keep", 1, 5, type=TensorProto.BOOL), g.input("gain")
    e = g.node("Gather", [g.weight("table", 10, 6, scale=1.0), ids], "e")
    s = g.node("Add", [x, e], "s")
    f = g.node("Cast", [keep], "f", to=TensorProto.FLOAT)
    u = g.node("Unsqueeze", [f, g.constant("axes", [2], np.int64)], "u")
    m = g.node("Mul", [s, u], "m")
    h = g.node("MatMul", [m, g.weight("w", 6, 6)], "h")
    g.node("Mul", [h, gain], "y")
    g.output("y")
    return g.model()


# Subgraphs.


def _branch(name: str, weight: str, scale: float) -> GraphBuilder:
    b = GraphBuilder(seed=len(name))
    h = b.node("MatMul", ["h", weight], f"{name}_h")
    b.node("Mul", [h, b.constant(f"{name}_k", np.float32(scale))], f"{name}_y")
    return b


def _bool_input(model: ModelProto) -> dict[str, Array]:
    arrays = calibration_of(model)
    if "c" in arrays:
        arrays["c"] = (np.arange(16) % 2 == 0).reshape(arrays["c"].shape)
    return arrays


@pattern(data=_bool_input)
def if_capturing_outer_weights() -> ModelProto:
    g = GraphBuilder()
    x, c = g.input("x", 2, 6), g.input("c", type=TensorProto.BOOL)
    w = g.weight("w", 6, 6)
    g.node("MatMul", [x, w], "h")
    branches = [_branch(name, "w", scale).subgraph(name, [f"{name}_y"]) for name, scale in (("a", 1.0), ("b", -2.0))]
    i = g.node("If", [c], "i", then_branch=branches[0], else_branch=branches[1])
    g.node("MatMul", [i, g.weight("w2", 6, 4)], "y")
    g.output("y")
    return g.model()


@pattern()
def loop_with_weights_inside_and_outside() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 2, 6)
    g.weight("w", 6, 6)
    b = GraphBuilder(seed=4)
    h = b.node("MatMul", ["state", "w"], "h")
    t = b.node("Tanh", [h], "t")
    b.node("MatMul", [t, b.weight("inner", 6, 6)], "next")
    b.node("Identity", ["go"], "again")
    inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, 6]),
    ]
    body = helper.make_graph(
        b.nodes, "body", inputs,
        [helper.make_tensor_value_info(n, t, s) for n, t, s in (("again", TensorProto.BOOL, []), ("next", 1, [2, 6]))],
        list(b.constants.values()),
    )  # fmt: skip
    s = g.node("Loop", [g.constant("n", np.int64(3)), g.constant("yes", np.bool_(True)), x], "s", body=body)
    g.node("MatMul", [s, "w"], "y")
    g.output("y")
    return g.model()


@pattern()
def scan_over_a_sequence() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 5, 6)
    w = g.weight("w", 6, 6)
    b = GraphBuilder()
    b.node("Add", ["state", "item"], "sum")
    b.node("MatMul", ["sum", "w"], "next")
    b.node("Identity", ["next"], "out")
    shape = [6]
    inputs = [helper.make_tensor_value_info(n, 1, shape) for n in ("state", "item")]
    outputs = [helper.make_tensor_value_info(n, 1, shape) for n in ("next", "out")]
    body = helper.make_graph(b.nodes, "body", inputs, outputs)
    z = g.constant("zero", np.zeros(6, np.float32))
    g.node("Scan", [z, x], ["last", "all"], body=body, num_scan_inputs=1)
    g.node("MatMul", ["all", w], "y")
    g.output("y", "last")
    return g.model()


# Recurrent, normalising, resizing.


@pattern(floor=25.0)
def lstm_between_layers() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 7, 1, 4)
    h = g.node("MatMul", [x, g.weight("w0", 4, 4)], "h")
    names = [g.weight("w", 1, 20, 4, scale=0.4), g.weight("r", 1, 20, 5, scale=0.4), g.weight("bb", 1, 40)]
    g.node("LSTM", [h, *names], ["l", "", "cell"], hidden_size=5)
    s = g.node("Squeeze", ["l", g.constant("axes", [1], np.int64)], "s")
    g.node("MatMul", [s, g.weight("w2", 5, 3)], "y")
    g.output("y", "cell")
    return g.model()


@pattern(floor=25.0, float16=50.0)
def layer_normalization_all_outputs() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 2, 5, 8)
    h = g.node("MatMul", [x, g.weight("w", 8, 8)], "h")
    g.node("LayerNormalization", [h, g.constant("s", np.linspace(0.5, 2, 8)), g.weight("b", 8)], ["n", "m", "d"])
    k = g.node("Mul", ["n", "d"], "k")
    g.node("MatMul", [k, g.weight("w2", 8, 8)], "y")
    g.output("y", "m")
    return g.model()


@pattern()
def normalizations_sharing_scale_and_bias() -> ModelProto:
    g = GraphBuilder()
    x, s, b = g.input("x", 2, 5, 8), g.constant("s", np.linspace(0.5, 2, 8)), g.weight("b", 8)
    n = g.node("LayerNormalization", [x, s, b], "n")
    h = g.node("MatMul", [n, g.weight("w", 8, 8)], "h")
    n = g.node("LayerNormalization", [h, s, b], "n2")
    h = g.node("MatMul", [n, g.weight("w2", 8, 8)], "h2")
    g.node("LayerNormalization", [h, s], "y")
    g.output("y")
    return g.model()


@pattern(qop=20.0)
def instance_and_group_normalization() -> ModelProto:
    g = GraphBuilder(opset=21)
    x, s, b = g.input("x", 1, 4, 8, 8), g.constant("s", np.linspace(0.5, 2, 4)), g.weight("b", 4)
    c = g.node("Conv", [x, g.weight("w", 4, 4, 3, 3), b], "c")
    n = g.node("InstanceNormalization", [c, s, b], "n")
    c = g.node("Conv", [n, g.weight("w2", 4, 4, 3, 3), b], "c2")
    g.node("GroupNormalization", [c, s, b], "y", num_groups=2)
    g.output("y")
    return g.model()


@pattern()
def batch_norm_that_cannot_be_folded() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    r = g.node("Relu", [x], "r")
    names = [
        g.constant("s", np.linspace(0.5, 2, 4)),
        g.weight("o", 4),
        g.weight("m", 4),
        g.constant("v", np.linspace(0.5, 2, 4)),
    ]
    n = g.node("BatchNormalization", [r, *names], "n")
    g.node("Conv", [n, g.weight("w", 4, 4, 3, 3)], "y")
    g.output("y", n)
    return g.model()


@pattern()
def resize_pad_slice_pools() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    c = g.node("Conv", [x, g.weight("w", 4, 4, 3, 3), g.weight("b", 4)], "c")
    z = g.node("Resize", [c, "", g.constant("scales", [1, 1, 2, 2], np.float32)], "z", mode="linear")
    p = g.node(
        "Pad", [z, g.constant("pads", [0, 0, 1, 0, 0, 0, 0, 1], np.int64), g.constant("one", np.float32(1))], "p"
    )
    names = [g.constant(n, [v], np.int64) for n, v in (("from", 1), ("to", 9), ("axis", 2))]
    s = g.node("Slice", [p, *names], "s")
    a = g.node("AveragePool", [s], "a", kernel_shape=[2, 2], count_include_pad=1, pads=[1, 1, 1, 1])
    m = g.node("GlobalMaxPool", [a], "m")
    n = g.node("GlobalAveragePool", [a], "n")
    g.node("Concat", [m, n], "y", axis=1)
    g.output("y")
    return g.model()


@pattern()
def add_and_mul_with_constants_first() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 2, 6)
    a = g.node("Add", [g.weight("a", 6), x], "a1")
    m = g.node("Mul", [g.constant("two", np.float32(2)), a], "m")
    q = g.node("Mul", [m, m], "q")
    g.node("Add", [q, q], "y")
    g.output("y")
    return g.model()


@pattern()
def constants_concatenated_and_selected() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8)
    c = g.node("Concat", [g.weight("cls", 1, 1, 8), x], "c", axis=1)
    h = g.node("MatMul", [c, g.weight("w", 8, 8)], "h")
    k = g.node("Greater", [h, g.constant("zero", np.float32(0))], "k")
    s = g.node("Where", [k, h, g.constant("floor", np.float32(-0.25))], "s")
    g.node("MatMul", [s, g.weight("w2", 8, 8)], "y")
    g.output("y")
    return g.model()


@pattern()
def power_and_scalar_chains() -> ModelProto:
    """The erf and tanh forms of GELU, written out."""
    g = GraphBuilder()
    x = g.input("x", 2, 8)
    h = g.node("MatMul", [x, g.weight("w", 8, 8)], "h")
    d = g.node("Div", [h, g.constant("root", np.float32(1.4142))], "d")
    e = g.node("Erf", [d], "e")
    a = g.node("Add", [e, g.constant("one", np.float32(1))], "a")
    m = g.node("Mul", [h, a], "m")
    n = g.node("Mul", [m, g.constant("half", np.float32(0.5))], "n")
    g.node("MatMul", [n, g.weight("w2", 8, 8)], "y")
    g.output("y")
    return g.model()


# What optimisers of transformers make.


@pattern()
def fused_by_the_transformers_optimizer() -> ModelProto:  # 8770
    g = GraphBuilder()
    ms = "com.microsoft"
    x = g.input("x", 1, 6, 8)
    s, b = g.constant("s", np.linspace(0.5, 2, 8)), g.weight("b", 8)
    q, k = (g.node("MatMul", [x, g.weight(f"w{n}", 8, 8)], n) for n in "qk")
    f = g.node("FusedMatMul", [q, k], "f", domain=ms, transB=1, alpha=0.35)
    p = g.node("Softmax", [f], "p", axis=-1)
    a = g.node("MatMul", [p, x], "a")
    g.node("SkipLayerNormalization", [a, x, s, b], ["n"], domain=ms)
    h = g.node("MatMul", ["n", g.weight("w1", 8, 16)], "h")
    u = g.node("BiasGelu", [h, g.weight("bg", 16)], "u", domain=ms)
    v = g.node("FastGelu", [u], "v", domain=ms)
    g.node("MatMul", [v, g.weight("w2", 16, 8)], "y")
    g.output("y")
    return g.model()


@pattern()
def fused_convolution() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    c = g.node(
        "FusedConv", [x, g.weight("w", 4, 4, 3, 3), g.weight("b", 4)], "c", domain="com.microsoft", activation="Relu"
    )
    g.node("Conv", [c, g.weight("w2", 4, 4, 3, 3)], "y")
    g.output("y")
    return g.model()


@pattern()
def local_functions_nested() -> ModelProto:
    g = GraphBuilder()
    x = g.input("x", 1, 4, 8, 8)
    ops = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    inner = [helper.make_node("Conv", ["a", "w"], ["b"]), helper.make_node("Relu", ["b"], ["c"])]
    outer = [
        helper.make_node("ConvRelu", ["a", "w"], ["b"], domain="local"),
        helper.make_node("ConvRelu", ["b", "w"], ["c"], domain="local"),
    ]
    g.functions = [
        helper.make_function("local", "ConvRelu", ["a", "w"], ["c"], inner, ops[:1]),
        helper.make_function("local", "Twice", ["a", "w"], ["c"], outer, ops),
    ]
    g.node("Twice", [x, g.weight("w", 4, 4, 3, 3)], "y", domain="local")
    g.output("y")
    return g.model()


# Operator set versions.


def _old_and_new(opset: int) -> ModelProto:
    g = GraphBuilder(opset=opset)
    x = g.input("x", 1, 4, 8, 8)
    c = g.node("Conv", [x, g.weight("w", 6, 4, 3, 3), g.weight("b", 6)], "c")
    names = [
        g.constant("s", np.linspace(0.5, 2, 6)),
        g.weight("o", 6),
        g.weight("m", 6),
        g.constant("var", np.linspace(0.5, 2, 6)),
    ]
    n = g.node("BatchNormalization", [c, *names], "n")
    r = g.node("Relu", [n], "r")
    p = g.node("MaxPool", [r], "p", kernel_shape=[2, 2], strides=[2, 2])
    q = (
        g.node("Pad", [p], "q", pads=[0, 0, 0, 0, 0, 0, 1, 1])
        if opset < 11
        else g.node("Pad", [p, g.constant("pads", [0, 0, 0, 0, 0, 0, 1, 1], np.int64)], "q")
    )
    v = g.node(
        "Squeeze",
        [g.node("GlobalAveragePool", [q], "a"), *([g.constant("axes", [2, 3], np.int64)] if opset >= 13 else [])],
        "v",
        **({} if opset >= 13 else {"axes": [2, 3]}),
    )
    h = g.node("Gemm", [v, g.weight("w2", 6, 5), g.weight("b2", 5)], "h")
    k = (
        g.node("Clip", [h], "k", min=-2.0, max=2.0)
        if opset < 11
        else g.node("Clip", [h, g.constant("lo", np.float32(-2)), g.constant("hi", np.float32(2))], "k")
    )
    g.node("Softmax", [k], "y", axis=1)
    g.output("y")
    return g.model()


def _register_opsets() -> None:
    for opset in (*range(7, 24),):
        PATTERNS.append(Pattern(f"opset_{opset}", lambda opset=opset: _old_and_new(opset), dict.fromkeys(ALL, 28.0)))


_register_opsets()
