"""Every axis of a recipe must be visible in the graph that is made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from quantize_models import Array, conv_net, matmul_net, samples, write

from harness.quantize.graph import count_quantized_operators
from harness.quantize.identity import identity
from harness.quantize.ort_backend import OrtBackend, UnsupportedRecipeError
from harness.quantize.prepare import prepare_model
from harness.quantize.weight_only import quantize_blocks
from harness.recipes.recipe import Calibration, Recipe

_NUMPY = {"uint8": np.uint8, "int8": np.int8, "uint16": np.uint16, "int16": np.int16}


@dataclass(frozen=True)
class Made:
    model: ModelProto
    path: Path

    def tensor(self, name: str) -> Array:
        return numpy_helper.to_array(next(t for t in self.model.graph.initializer if t.name == name))

    def tensor_type(self, name: str) -> int:
        return int(next(t for t in self.model.graph.initializer if t.name == name).data_type)

    def nodes(self, op_type: str) -> list[NodeProto]:
        return [node for node in self.model.graph.node if node.op_type == op_type]

    def producer(self, name: str) -> NodeProto | None:
        return next((node for node in self.model.graph.node if name in node.output), None)

    def by_name(self, name: str) -> NodeProto:
        return next(node for node in self.model.graph.node if node.name == name)

    def weight_dequantize(self, name: str) -> NodeProto:
        """The DequantizeLinear behind input 1 of a node."""
        found = self.producer(self.by_name(name).input[1])
        assert found is not None
        assert found.op_type == "DequantizeLinear"
        return found


@dataclass(frozen=True)
class Bench:
    model: Path
    data: Path
    folder: Path

    def make(self, recipe: Recipe) -> Made:
        out = self.folder / f"{recipe.digest[:12]}.onnx"
        OrtBackend().quantize(self.model, self.data, recipe, out)
        ort.InferenceSession(str(out))
        made = Made(onnx.load(out), out)
        seen = {t.name for t in made.model.graph.initializer} | {"x", ""}
        for node in made.model.graph.node:
            # The standard wants nodes in order; ONNX Runtime would forgive.
            assert set(node.input) <= seen, node.name
            seen |= set(node.output)
        return made


@pytest.fixture(scope="module")
def conv(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("conv")
    prepared = prepare_model(write(conv_net(), folder / "m.onnx"), folder / "p.onnx")
    return Bench(prepared.path, samples(folder / "c.npz", x=(3, 12, 12)), folder)


@pytest.fixture(scope="module")
def matmul(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("matmul")
    prepared = prepare_model(write(matmul_net(), folder / "m.onnx"), folder / "p.onnx")
    return Bench(prepared.path, samples(folder / "c.npz", x=(7, 64)), folder)


U8S8 = Recipe(activation="uint8", granularity="per_channel")


def input_quantize(made: Made) -> NodeProto:
    return next(node for node in made.nodes("QuantizeLinear") if node.input[0] == "x")


@pytest.mark.parametrize("activation", ["uint8", "int8", "uint16", "int16"])
def test_activation_type(conv: Bench, activation: str) -> None:
    made = conv.make(Recipe.from_dict({"activation": activation}))
    for node in made.nodes("QuantizeLinear"):
        assert made.tensor(node.input[2]).dtype == _NUMPY[activation]
    wide = activation.endswith("16")
    domains = {node.domain for node in made.nodes("QuantizeLinear") + made.nodes("DequantizeLinear")}
    # Opset 17 has no 16-bit QuantizeLinear; Microsoft's operator has.
    assert domains == ({"com.microsoft"} if wide else {""})
    assert {o.domain for o in made.model.opset_import} == ({"", "com.microsoft"} if wide else {""})


def test_sixteen_bits_are_standard_from_opset_21(tmp_path: Path) -> None:
    prepared = prepare_model(write(conv_net(opset=21), tmp_path / "m.onnx"), tmp_path / "p.onnx")
    bench = Bench(prepared.path, samples(tmp_path / "c.npz", x=(3, 12, 12)), tmp_path)
    made = bench.make(Recipe(activation="uint16", weight="int16"))
    assert {node.domain for node in made.nodes("QuantizeLinear")} == {""}


@pytest.mark.parametrize(
    ("weight", "onnx_type"),
    [
        ("int8", TensorProto.INT8),
        ("uint8", TensorProto.UINT8),
        ("int16", TensorProto.INT16),
        ("int4", TensorProto.INT4),
        ("uint4", TensorProto.UINT4),
    ],
)
def test_weight_type(conv: Bench, weight: str, onnx_type: int) -> None:
    made = conv.make(Recipe.from_dict({"activation": "uint8", "weight": weight, "granularity": "per_channel"}))
    for name in ("conv1", "conv2"):
        assert made.tensor_type(made.weight_dequantize(name).input[0]) == onnx_type


def test_granularity(conv: Bench) -> None:
    per_tensor, per_channel = conv.make(Recipe(activation="uint8")), conv.make(U8S8)
    assert per_tensor.tensor(per_tensor.weight_dequantize("conv2").input[1]).size == 1
    dequantize = per_channel.weight_dequantize("conv2")
    scales = per_channel.tensor(dequantize.input[1])
    assert scales.shape == (8,)
    assert [a.i for a in dequantize.attribute if a.name == "axis"] == [0]
    # Per channel: the largest magnitude of each channel over 127.
    float_weights = numpy_helper.to_array(
        next(t for t in onnx.load(conv.model).graph.initializer if list(t.dims) == [8, 1, 3, 3])
    )
    np.testing.assert_allclose(scales, np.abs(float_weights).reshape(8, -1).max(axis=1) / 127, rtol=1e-6)


def test_activation_symmetry(conv: Bench) -> None:
    for activation, middle in (("int8", 0), ("uint8", 128), ("uint16", 32768)):
        made = conv.make(Recipe.from_dict({"activation": activation, "activation_symmetric": True}))
        # Softmax keeps its own fixed scale.
        zeros = {int(made.tensor(n.input[2])) for n in made.nodes("QuantizeLinear") if n.input[0] != "y"}
        assert zeros == {middle}
    relaxed = conv.make(Recipe(activation="uint8"))
    assert int(relaxed.tensor(input_quantize(relaxed).input[2])) not in (0, 128)


def test_weight_symmetry(conv: Bench) -> None:
    for weight, symmetric, middle in (("int8", True, 0), ("uint8", True, 128)):
        made = conv.make(Recipe.from_dict({"activation": "uint8", "weight": weight, "weight_symmetric": symmetric}))
        assert int(made.tensor(made.weight_dequantize("conv1").input[2])) == middle
    made = conv.make(Recipe(activation="uint8", weight="uint8"))
    assert int(made.tensor(made.weight_dequantize("conv1").input[2])) != 128


def test_reduce_range(conv: Bench) -> None:
    full, reduced = conv.make(U8S8), conv.make(U8S8.with_changes(reduce_range=True))
    assert np.abs(full.tensor(full.weight_dequantize("conv1").input[0])).max() > 64
    assert np.abs(reduced.tensor(reduced.weight_dequantize("conv1").input[0])).max() <= 64


def test_format(conv: Bench) -> None:
    made = conv.make(U8S8.with_changes(format="QOperator"))
    assert len(made.nodes("QLinearConv")) == 2
    assert not made.nodes("Conv")
    assert len(conv.make(U8S8).nodes("Conv")) == 2


def test_calibration_method_and_percentile_set_the_scale(conv: Bench) -> None:
    scales = {}
    for calibration in (
        Calibration("minmax"), Calibration("percentile", 99.9), Calibration("percentile", 90.0),
        Calibration("entropy"), Calibration("mse"), Calibration("distribution"),
    ):  # fmt: skip
        made = conv.make(U8S8.with_changes(calibration=calibration))
        scales[calibration] = float(made.tensor(input_quantize(made).input[1]))
    data = np.load(conv.data)["x"]
    assert scales[Calibration("minmax")] == pytest.approx((data.max() - data.min()) / 255, rel=1e-5)
    low, high = np.percentile(data, [5, 95])
    assert scales[Calibration("percentile", 90.0)] == pytest.approx((high - low) / 255, rel=0.01)
    assert all(scale <= scales[Calibration("minmax")] for scale in scales.values())
    # Under 128 bins of 64 values the search for the least divergence has one candidate.
    assert data.size < 16_384
    assert scales[Calibration("entropy")] == scales[Calibration("minmax")]
    assert len(set(scales.values())) >= 3


def test_calibration_samples(conv: Bench) -> None:
    few = conv.make(U8S8.with_changes(calibration=Calibration(samples=2)))
    everything = conv.make(U8S8)
    one = float(few.tensor(input_quantize(few).input[1]))
    assert one < float(everything.tensor(input_quantize(everything).input[1]))
    more_than_there_are = conv.make(U8S8.with_changes(calibration=Calibration(samples=10_000)))
    assert identity(more_than_there_are.path) == identity(everything.path)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
def test_power_of_two_scales(conv: Bench, granularity: str, symmetric: bool) -> None:
    raw = {"scale": "power_of_two", "activation_symmetric": symmetric, "granularity": granularity}
    made = conv.make(Recipe.from_dict(raw))
    plain = conv.make(Recipe.from_dict({**raw, "scale": "float32"}))
    nodes = made.nodes("QuantizeLinear") + made.nodes("DequantizeLinear")
    scales = np.concatenate([made.tensor(node.input[1]).ravel() for node in nodes])
    assert len(scales) > 8
    assert all(math.log2(scale).is_integer() for scale in scales)
    if symmetric:
        for node in made.nodes("QuantizeLinear"):
            assert int(made.tensor(node.input[2])) == 0
    # Rounded up, never down: nothing is clipped that was not.
    for name in ("conv1", "conv2"):
        rounded = made.tensor(made.weight_dequantize(name).input[1])
        exact = plain.tensor(plain.weight_dequantize(name).input[1])
        assert (rounded >= exact * (1 - 1e-6)).all()
        assert (rounded < 2 * exact).all()
    x = np.load(conv.data)["x"][:1]
    got = ort.InferenceSession(str(made.path)).run(None, {"x": x})[0]
    want = ort.InferenceSession(str(conv.model)).run(None, {"x": x})[0]
    assert np.abs(got - want).max() < 0.15


def test_excluded_nodes_and_types_stay_float(conv: Bench) -> None:
    for recipe, floats in (
        (U8S8.with_changes(exclude_nodes=("conv2",)), {"conv2"}),
        (U8S8.with_changes(exclude_op_types=("Conv",)), {"conv1", "conv2"}),
        (U8S8.with_changes(op_types=("Conv",)), {"gemm"}),
    ):
        made = conv.make(recipe)
        for name in ("conv1", "conv2", "gemm"):
            producer = made.producer(made.by_name(name).input[1])
            assert (producer is None) == (name in floats), (recipe.label, name)
            if name in floats:
                assert made.tensor_type(made.by_name(name).input[1]) == TensorProto.FLOAT


def test_excluded_from_dynamic_and_float16(matmul: Bench) -> None:
    names = [node.name for node in onnx.load(matmul.model).graph.node if node.op_type in ("MatMul", "Gemm")]
    assert len(names) == 2
    dynamic = Recipe(scheme="dynamic")
    whole, part = matmul.make(dynamic), matmul.make(dynamic.with_changes(exclude_nodes=(names[0],)))
    assert len(whole.nodes("MatMulInteger")) == 2
    assert len(part.nodes("MatMulInteger")) == 1
    types = [node.op_type for node in onnx.load(matmul.model).graph.node if node.name in names]
    assert types == ["Gemm", "MatMul"]
    for op_type in types:
        only = matmul.make(dynamic.with_changes(op_types=(op_type,)))
        assert len(only.nodes("MatMulInteger")) == 1
        assert identity(only.path) == identity(
            matmul.make(dynamic.with_changes(exclude_op_types=tuple({*types} - {op_type}))).path
        )
    half = matmul.make(Recipe(scheme="float16", exclude_nodes=(names[1],)))
    types = {t.name: t.data_type for t in half.model.graph.initializer}
    assert types[half.by_name(names[1]).input[1]] == TensorProto.FLOAT
    assert types[half.by_name(names[0]).input[1]] == TensorProto.FLOAT16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exclude_nodes": ("conv3",)}, r"exclude_nodes(.|\n)*'conv3'(.|\n)*did you mean 'conv"),
        ({"exclude_op_types": ("Convv",)}, r"exclude_op_types(.|\n)*did you mean 'Conv'"),
        ({"op_types": ("MatMul",)}, r"op_types(.|\n)*'MatMul'"),
    ],
)
def test_names_the_model_does_not_have_are_refused(conv: Bench, change: dict, message: str) -> None:
    with pytest.raises(UnsupportedRecipeError, match=message):
        conv.make(U8S8.with_changes(**change))


def test_float16_keeps_the_interface(conv: Bench) -> None:
    made = conv.make(Recipe(scheme="float16"))
    assert {v.type.tensor_type.elem_type for v in (*made.model.graph.input, *made.model.graph.output)} == {1}
    assert TensorProto.FLOAT16 in {t.data_type for t in made.model.graph.initializer}


def test_dynamic_weight_type_and_granularity(matmul: Bench) -> None:
    for weight, dtype in (("int8", np.int8), ("uint8", np.uint8)):
        made = matmul.make(Recipe.from_dict({"scheme": "dynamic", "weight": weight}))
        node = made.nodes("MatMulInteger")[0]
        assert made.tensor(node.input[1]).dtype == dtype
        assert made.tensor(node.input[3]).size == 1
    per_channel = matmul.make(Recipe(scheme="dynamic", granularity="per_channel"))
    assert per_channel.tensor(per_channel.nodes("MatMulInteger")[0].input[3]).size > 1


def test_float32_is_the_prepared_model(conv: Bench) -> None:
    assert identity(conv.make(Recipe(scheme="float32")).path) == identity(conv.model)


# Block-wise weights.


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_blocks_are_within_half_a_step(bits: int, symmetric: bool) -> None:
    matrix = np.random.default_rng(1).standard_normal((50, 6)).astype(np.float32)
    blocks = quantize_blocks(matrix, bits, 16, symmetric)
    assert blocks.codes.shape == (6, 4, 16)
    codes = blocks.codes.astype(np.float64) - blocks.zero_points[..., None]
    back = (codes * blocks.scales[..., None]).reshape(6, -1)[:, :50].T
    steps = np.repeat(np.abs(blocks.scales), 16, axis=1)[:, :50].T
    # The end opposite to the extreme of a symmetric block may be clipped by one step.
    limit = 1.0 if symmetric else 0.5 + (1.0 if bits == 4 else 0.5)
    assert (np.abs(back - matrix) <= limit * steps + 1e-6).all()
    assert np.sqrt(np.mean((back - matrix) ** 2)) < 0.35 * steps.mean()


@pytest.mark.parametrize("build", [matmul_net, conv_net])
@pytest.mark.parametrize("weight", ["int4", "uint4", "int8"])
def test_weight_only_forms_agree_with_the_mathematics(tmp_path: Path, weight: str, build: object) -> None:
    model = build()  # type: ignore[operator]
    prepared = prepare_model(write(model, tmp_path / "m.onnx"), tmp_path / "p.onnx")
    shape = tuple(int(n) for n in prepared.inputs[0].shape[1:])
    bench = Bench(prepared.path, samples(tmp_path / "c.npz", x=shape), tmp_path)
    raw = {"scheme": "weight_only", "weight": weight, "block_size": 16}
    operator = bench.make(Recipe.from_dict({**raw, "format": "QOperator"}))
    qdq = bench.make(Recipe.from_dict({**raw, "format": "QDQ"}))
    assert operator.nodes("MatMulNBits")
    assert {a.i for n in operator.nodes("MatMulNBits") for a in n.attribute if a.name == "bits"} == {
        8 if weight == "int8" else 4
    }
    blocked = qdq.nodes("DequantizeLinear")
    assert blocked
    assert {a.i for n in blocked for a in n.attribute if a.name == "block_size"} == {16}
    assert qdq.tensor_type(blocked[0].input[0]) == TensorProto.DataType.Value(weight.upper())
    assert count_quantized_operators(qdq.model) == len(operator.nodes("MatMulNBits"))

    x = np.load(bench.data)["x"][:1]
    reference = ort.InferenceSession(str(bench.model)).run(None, {"x": x})[0]
    # Optimised, ONNX Runtime would fuse the QDQ form into MatMulNBits with 8-bit activations.
    plain = ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    got = [ort.InferenceSession(str(m.path), plain).run(None, {"x": x})[0] for m in (operator, qdq)]
    # Two encodings of the same numbers, executed by different kernels.
    np.testing.assert_allclose(got[0], got[1], atol=2e-4 * max(1.0, np.abs(reference).max()))
    noise = np.sum((reference - got[0]) ** 2)
    assert 10 * np.log10(np.sum(reference**2) / noise) > (35 if weight == "int8" else 12)


# Reproducibility.


@pytest.mark.parametrize(
    "recipe",
    [
        U8S8,
        U8S8.with_changes(format="QOperator"),
        U8S8.with_changes(calibration=Calibration("entropy", samples=8)),
        Recipe(scheme="float16"),
        Recipe(scheme="dynamic"),
        Recipe(activation="uint16"),
        Recipe(scheme="weight_only", weight="int4"),
    ],
    ids=lambda r: r.label,
)
def test_twice_the_same_bytes(conv: Bench, recipe: Recipe, tmp_path: Path) -> None:
    first = conv.make(recipe)
    OrtBackend().quantize(conv.model, conv.data, recipe, tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == first.path.read_bytes()
    assert not first.model.producer_name
    assert not first.model.metadata_props


def test_onnxruntimes_own_result_is_the_same(conv: Bench, tmp_path: Path) -> None:
    """Per-channel min-max through ONNX Runtime's front door gives the same artifact."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(np.load(conv.data)["x"])

        def get_next(self) -> dict[str, Array] | None:
            row = next(self._left, None)
            return None if row is None else {"x": row[None]}

    quantize_static(
        str(conv.model), str(tmp_path / "theirs.onnx"), Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    theirs, ours = onnx.load(tmp_path / "theirs.onnx").graph, conv.make(U8S8).model.graph
    for parts in ("node", "initializer"):
        assert sorted(p.SerializeToString(deterministic=True) for p in getattr(ours, parts)) == sorted(
            p.SerializeToString(deterministic=True) for p in getattr(theirs, parts)
        )
