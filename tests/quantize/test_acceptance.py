"""Planted garbage must not be accepted; what is accepted must be described rightly."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper
from quantize_models import conv_net, matmul_net, samples, weights, write

from harness.errors import DataError
from harness.quantize.acceptance import accept
from harness.quantize.contract import Artifact, Cause, Refusal
from harness.quantize.ort_backend import OrtBackend
from harness.quantize.prepare import prepare_model
from harness.quantize.snr import MAX_SNR_DB, NonFiniteOutputError, snr_db
from harness.recipes.recipe import FLOAT32, Recipe

GOOD = Recipe(activation="uint8", granularity="per_channel")


@dataclass(frozen=True)
class Case:
    model: Path
    data: Path
    made: Path

    def tampered(self, tmp_path: Path, change: Callable[[ModelProto], None]) -> Path:
        model = onnx.load(self.made)
        change(model)
        path = tmp_path / "tampered.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    def judge(self, artifact: Path, recipe: Recipe = GOOD, floor: float = 15.0) -> Artifact | Refusal:
        return accept(self.model, artifact, self.data, recipe, min_snr_db=floor)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("accept")
    prepared = prepare_model(write(conv_net(), folder / "m.onnx"), folder / "p.onnx")
    data = samples(folder / "c.npz", x=(3, 12, 12))
    OrtBackend().quantize(prepared.path, data, GOOD, folder / "q.onnx")
    return Case(prepared.path, data, folder / "q.onnx")


def set_constant(model: ModelProto, name: str, value: np.ndarray) -> None:
    target = next(t for t in model.graph.initializer if t.name == name)
    target.CopyFrom(numpy_helper.from_array(value, name))


def _nan_scale(model: ModelProto) -> None:
    set_constant(model, "y_scale", np.array(np.nan, np.float32))


def _nan_weights(model: ModelProto) -> None:
    # The QuantizeLinear behind turns NaN into a number: finite, and wrong.
    set_constant(model, "w3_scale", np.full(5, np.nan, np.float32))


def _zero_weights(model: ModelProto) -> None:
    target = next(t for t in model.graph.initializer if t.name == "w3_quantized")
    set_constant(model, "w3_quantized", np.zeros(tuple(target.dims), np.int8))


def _renamed_input(model: ModelProto) -> None:
    model.graph.input[0].name = "z"
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == "x":
                node.input[index] = "z"


def _renamed_output(model: ModelProto) -> None:
    old = model.graph.output[0].name
    model.graph.output[0].name = "z"
    for node in model.graph.node:
        for index, name in enumerate(node.output):
            if name == old:
                node.output[index] = "z"


def _unknown_operator(model: ModelProto) -> None:
    model.graph.node[-1].op_type = "Frobnicate"


@pytest.mark.parametrize(
    ("change", "cause", "words"),
    [
        (_nan_scale, Cause.NON_FINITE, ["'y'", "NaN"]),
        (_nan_weights, Cause.LOW_SNR, ["'y'"]),
        (_zero_weights, Cause.LOW_SNR, ["'y'", "floor of 15 dB", "--min-snr", "per-channel"]),
        (_renamed_input, Cause.DOES_NOT_RUN, ["input"]),
        (_renamed_output, Cause.FAILED, ["'z'", "'y'"]),
        (_unknown_operator, Cause.DOES_NOT_LOAD, ["Frobnicate"]),
    ],
)
def test_garbage_is_refused(
    case: Case, tmp_path: Path, change: Callable[[ModelProto], None], cause: Cause, words: list[str]
) -> None:
    result = case.judge(case.tampered(tmp_path, change))
    assert isinstance(result, Refusal), result
    assert result.cause == cause, result
    for word in words:
        assert word in result.message
    assert (result.snr_db is not None) == (cause == Cause.LOW_SNR)


def test_the_good_one_is_accepted_with_the_ratio_it_has(case: Case) -> None:
    import onnxruntime as ort

    result = case.judge(case.made)
    assert isinstance(result, Artifact)
    x = np.load(case.data)["x"]
    outputs = []
    for path in (case.model, case.made):
        session = ort.InferenceSession(str(path))
        outputs.append(np.concatenate([session.run(None, {"x": row[None]})[0] for row in x]))
    expected = 10 * np.log10(np.sum(outputs[0] ** 2) / np.sum((outputs[0] - outputs[1]) ** 2))
    assert result.snr_db == pytest.approx(expected, abs=0.05)
    assert isinstance(case.judge(case.made, floor=float(expected) + 0.5), Refusal)
    assert isinstance(case.judge(case.made, floor=float(expected) - 0.5), Artifact)


def test_nothing_quantized(case: Case) -> None:
    for recipe, words in (
        (GOOD, "no operator"),
        (GOOD.with_changes(op_types=("Conv",)), "among Conv"),
        (GOOD.with_changes(exclude_op_types=("Conv",)), "leaves in float"),
        (Recipe(scheme="float16"), "float16"),
    ):
        result = case.judge(case.model, recipe)
        assert isinstance(result, Refusal)
        assert result.cause == Cause.NOTHING_QUANTIZED
        assert words in result.message
    kept = case.judge(case.model, FLOAT32)
    assert isinstance(kept, Artifact)
    assert kept.snr_db is None
    assert kept.quantized_operators == 0


def test_a_pair_that_feeds_nothing_quantizes_nothing(case: Case, tmp_path: Path) -> None:
    model = onnx.load(case.model)
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.1, np.float32), "s"))
    model.graph.node.append(helper.make_node("QuantizeLinear", ["x", "s"], ["q"], "q"))
    model.graph.node.append(helper.make_node("DequantizeLinear", ["q", "s"], ["d"], "d"))
    path = write(model, tmp_path / "fake.onnx")
    result = case.judge(path)
    assert isinstance(result, Refusal)
    assert result.cause == Cause.NOTHING_QUANTIZED


def test_float_model_given_is_quantized_already(case: Case, tmp_path: Path) -> None:
    result = accept(case.made, case.made, case.data, GOOD, min_snr_db=15.0)
    assert isinstance(result, Refusal)
    assert result.cause == Cause.ALREADY_QUANTIZED
    assert "QuantizeLinear" in result.message


def _two_heads() -> ModelProto:
    base = matmul_net()
    base.graph.node.append(helper.make_node("MatMul", ["x", "tiny"], ["other"], "head2"))
    base.graph.initializer.append(numpy_helper.from_array(weights(9, 64, 10), "tiny"))
    base.graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [1, 7, 10]))
    return base


def test_the_worst_output_decides_and_swapped_outputs_are_caught(tmp_path: Path) -> None:
    prepared = prepare_model(write(_two_heads(), tmp_path / "m.onnx"), tmp_path / "p.onnx")
    data = samples(tmp_path / "c.npz", x=(7, 64))
    made = tmp_path / "q.onnx"
    OrtBackend().quantize(prepared.path, data, GOOD, made)
    good = accept(prepared.path, made, data, GOOD, min_snr_db=15.0)
    assert isinstance(good, Artifact)

    model = onnx.load(made)
    names = {"y": "other", "other": "y"}
    for node in model.graph.node:
        for index, name in enumerate(node.output):
            node.output[index] = names.get(name, name)
        for index, name in enumerate(node.input):
            node.input[index] = names.get(name, name)
    swapped = tmp_path / "swapped.onnx"
    swapped.write_bytes(model.SerializeToString())
    result = accept(prepared.path, swapped, data, GOOD, min_snr_db=15.0)
    assert isinstance(result, Refusal)
    assert result.cause == Cause.LOW_SNR


def test_integer_outputs_are_compared_by_agreement(tmp_path: Path) -> None:
    model = matmul_net()
    model.graph.node.append(helper.make_node("ArgMax", ["y"], ["best"], "argmax", axis=2, keepdims=0))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("best", TensorProto.INT64, [1, 7]))
    prepared = prepare_model(write(model, tmp_path / "m.onnx"), tmp_path / "p.onnx")
    data = samples(tmp_path / "c.npz", x=(7, 64))
    fine, coarse = Recipe(activation="uint16"), Recipe(scheme="weight_only", weight="int4", block_size=16)
    for recipe in (fine, coarse):
        OrtBackend().quantize(prepared.path, data, recipe, tmp_path / "q.onnx")
        result = accept(prepared.path, tmp_path / "q.onnx", data, recipe, min_snr_db=3.0)
        assert isinstance(result, Artifact), result
        assert result.snr_db is not None
        if recipe is fine:
            assert result.snr_db > 15
    model = onnx.load(tmp_path / "q.onnx")
    next(n for n in model.graph.node if n.op_type == "ArgMax").op_type = "ArgMin"
    (tmp_path / "min.onnx").write_bytes(model.SerializeToString())
    result = accept(prepared.path, tmp_path / "min.onnx", data, coarse, min_snr_db=3.0)
    assert isinstance(result, Refusal)
    assert result.cause == Cause.LOW_SNR
    assert result.snr_db == pytest.approx(0.0, abs=0.5)


def test_masks_with_infinities_are_no_fault_of_the_artifact(tmp_path: Path) -> None:
    mask = np.zeros((1, 7, 10), np.float32)
    mask[..., 5:] = -np.inf
    model = matmul_net()
    model.graph.initializer.append(numpy_helper.from_array(mask, "mask"))
    model.graph.node.append(helper.make_node("Add", ["y", "mask"], ["masked"], "mask_add"))
    model.graph.output[0].name = "masked"
    prepared = prepare_model(write(model, tmp_path / "m.onnx"), tmp_path / "p.onnx")
    data = samples(tmp_path / "c.npz", x=(7, 64))
    recipe = GOOD.with_changes(op_types=("Gemm", "MatMul"))
    OrtBackend().quantize(prepared.path, data, recipe, tmp_path / "q.onnx")
    assert isinstance(accept(prepared.path, tmp_path / "q.onnx", data, recipe, min_snr_db=15.0), Artifact)


def test_data_that_does_not_fit(case: Case, tmp_path: Path) -> None:
    other = samples(tmp_path / "c.npz", z=(3, 12, 12))
    with pytest.raises(DataError, match="no array for input 'x'"):
        accept(case.model, case.made, other, GOOD, min_snr_db=15.0)


def test_size_counts_the_data_beside(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    shutil.copy(case.made, path)
    (tmp_path / "q.onnx.data").write_bytes(b"x" * 1000)
    result = case.judge(path)
    assert isinstance(result, Artifact)
    assert result.size_bytes == path.stat().st_size + 1000


# The ratio itself.


@given(st.floats(-60, 60), st.integers(1, 5), st.integers(0, 1000))
def test_known_noise_gives_known_ratio(decibel: float, count: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    reference = [generator.standard_normal(50) for _ in range(count)]
    noise = [generator.standard_normal(50) for _ in range(count)]
    factor = np.sqrt(sum(np.sum(r**2) for r in reference) / sum(np.sum(n**2) for n in noise) / 10 ** (decibel / 10))
    outputs = [r + factor * n for r, n in zip(reference, noise, strict=True)]
    assert snr_db(reference, outputs) == pytest.approx(decibel, abs=1e-6)


def test_ratio_at_the_edges() -> None:
    x = np.array([1.0, 2.0], np.float32)
    assert snr_db([x], [x]) == MAX_SNR_DB
    assert snr_db([np.zeros(2)], [x]) == -MAX_SNR_DB
    assert snr_db([np.zeros(2)], [np.zeros(2)]) == MAX_SNR_DB
    assert snr_db([x], [np.zeros((1, 2))]) == 0.0
    assert snr_db([x.astype(np.int64)], [np.array([1, 3])]) == pytest.approx(10 * np.log10(2))
    assert snr_db([np.array([True, False])], [np.array([True, False])]) == MAX_SNR_DB
    assert snr_db([np.array([1, 2, 3])], [np.array([1])]) == 0.0
    masked = np.array([1.0, -np.inf])
    assert snr_db([masked], [masked]) == MAX_SNR_DB
    assert snr_db([masked], [np.array([1.0, 0.0])]) == 0.0
    for bad in (np.nan, np.inf):
        with pytest.raises(NonFiniteOutputError, match="1 of 2"):
            snr_db([x], [np.array([1.0, bad])])
