from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from quantize_models import conv_net, matmul_net, model_of, weights, write

from harness.errors import ConfigError, ExitCode, ModelError
from harness.quantize.graph import all_nodes, quantization_found
from harness.quantize.identity import identity
from harness.quantize.prepare import prepare_model
from harness.quantize.shapes import parse_set_dims
from harness.tensors import TensorSpec


def outputs(path: Path, **feeds: np.ndarray) -> list[np.ndarray]:
    return list(ort.InferenceSession(str(path)).run(None, feeds))


def refused(path: Path, tmp_path: Path, **set_dims: int) -> str:
    with pytest.raises(ModelError) as caught:
        prepare_model(path, tmp_path / "prepared.onnx", set_dims)
    assert caught.value.exit_code == ExitCode.USAGE
    assert str(path) in str(caught.value)
    assert not (tmp_path / "prepared.onnx").exists()
    return str(caught.value)


# What is refused.


def test_missing_and_folder(tmp_path: Path) -> None:
    assert "no such model file" in refused(tmp_path / "none.onnx", tmp_path)
    (tmp_path / "folder.onnx").mkdir()
    assert "folder" in refused(tmp_path / "folder.onnx", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"PK\x03\x04" + b"\0" * 64, "zip"),
        (b"\x1c\0\0\0TFL3" + b"\0" * 64, "TFLite"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\n", "git lfs pull"),
        (bytes(range(1, 200)), "not an ONNX model"),
        (b"\x08\x08", "not an ONNX model"),
    ],
)
def test_not_a_model(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert message in refused(path, tmp_path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_truncated(tmp_path: Path, share: float) -> None:
    path = write(conv_net(), tmp_path / "m.onnx")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    assert "truncated" in refused(path, tmp_path)


def test_opset_and_ir_version_too_new(tmp_path: Path) -> None:
    model = conv_net()
    model.opset_import[0].version = 99
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    text = refused(tmp_path / "m.onnx", tmp_path)
    assert "opset 99" in text
    assert ort.__version__ in text
    model.opset_import[0].version = 17
    model.ir_version = 99
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert "IR version 99" in refused(tmp_path / "m.onnx", tmp_path)


def test_unknown_operator_is_named(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Frobnicate", ["x"], ["y"])], {}, {"x": [1]}, {"y": [1]})
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    text = refused(tmp_path / "m.onnx", tmp_path)
    assert "cannot load" in text
    assert "Frobnicate" in text


def test_no_inputs(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Relu", ["c"], ["y"])], {"c": weights(1, 3)}, {}, {"y": [3]})
    assert "no inputs" in refused(write(model, tmp_path / "m.onnx"), tmp_path)


def test_inputs_that_cannot_be_fed(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Shape", ["x"], ["y"])], {}, {"x": [2]}, {"y": [1]}, output_type=7)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    assert "strings" in refused(write(model, tmp_path / "s.onnx"), tmp_path)
    sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None)
    graph = helper.make_graph(
        [helper.make_node("SequenceLength", ["x"], ["y"])], "g", [sequence], [helper.make_tensor_value_info("y", 7, [])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert "sequence" in refused(write(model, tmp_path / "q.onnx"), tmp_path)


def test_external_data_missing_or_short(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save_model(conv_net(), path, save_as_external_data=True, location="m.bin", size_threshold=0)
    data = (tmp_path / "m.bin").read_bytes()
    (tmp_path / "m.bin").unlink()
    text = refused(path, tmp_path)
    assert "'m.bin'" in text
    assert str(tmp_path) in text
    (tmp_path / "m.bin").write_bytes(data[:-5])
    assert "truncated" in refused(path, tmp_path)
    (tmp_path / "m.bin").write_bytes(data)
    prepared = prepare_model(path, tmp_path / "p.onnx")
    assert not list(tmp_path.glob("p.onnx.data"))
    (tmp_path / "m.bin").unlink()
    assert outputs(prepared.path, x=np.zeros((1, 3, 12, 12), np.float32))[0].shape == (1, 5)


def test_already_quantized(tmp_path: Path) -> None:
    constants = {"s": np.array(0.1, np.float32), "z": np.array(3, np.uint8)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    text = refused(write(model_of(nodes, constants, {"x": [4]}, {"y": [4]}), tmp_path / "m.onnx"), tmp_path)
    for word in ("already quantized", "1 QuantizeLinear", "1 DequantizeLinear", "boardtune measure", "--add-candidate"):
        assert word in text


def test_would_overwrite(tmp_path: Path) -> None:
    path = write(conv_net(), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="overwrite"):
        prepare_model(path, path)


# Dimensions.


def _dynamic() -> ModelProto:
    nodes = [helper.make_node("Add", ["ids", "mask"], ["y"])]
    shape: list[int | str] = ["batch", "sequence"]
    return model_of(nodes, {}, {"ids": shape, "mask": shape}, {"y": shape})


def test_free_first_axis_becomes_one_with_a_notice(tmp_path: Path) -> None:
    path = write(conv_net(batch="N"), tmp_path / "m.onnx")
    prepared = prepare_model(path, tmp_path / "p.onnx")
    assert prepared.inputs == (TensorSpec("x", "float32", (1, 3, 12, 12)),)
    assert prepared.outputs == (TensorSpec("y", "float32", (1, 5)),)
    assert any("'x'" in n and "set to 1" in n and "--set-dim N=" in n for n in prepared.notices)
    assert prepare_model(path, tmp_path / "p.onnx", {"N": 4}).inputs[0].shape == (4, 3, 12, 12)


def test_free_first_axis_becomes_the_batch(tmp_path: Path) -> None:
    path = write(conv_net(batch="N"), tmp_path / "m.onnx")
    prepared = prepare_model(path, tmp_path / "p.onnx", batch=8)
    assert [spec.shape for spec in (*prepared.inputs, *prepared.outputs)] == [(8, 3, 12, 12), (8, 5)]
    assert any("'x'" in n and "set to 8" in n and "--batch" in n for n in prepared.notices)
    assert prepare_model(path, tmp_path / "p.onnx", {"N": 8}, batch=8).inputs[0].shape == (8, 3, 12, 12)
    fixed = write(conv_net(batch=8), tmp_path / "fixed.onnx")
    assert prepare_model(fixed, tmp_path / "p.onnx", batch=8).notices == ()


def test_a_batch_that_the_first_axis_contradicts(tmp_path: Path) -> None:
    path = write(conv_net(batch="N"), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"--batch 7 and --set-dim N=8 contradict .*'x'"):
        prepare_model(path, tmp_path / "p.onnx", {"N": 8}, batch=7)
    with pytest.raises(ModelError, match=r"--batch 7 and --set-dim x:0=8 contradict"):
        prepare_model(path, tmp_path / "p.onnx", {"x:0": 8}, batch=7)
    fixed = write(conv_net(batch=1), tmp_path / "fixed.onnx")
    with pytest.raises(ModelError, match=r"--batch 7: the model fixes the first axis of input 'x' at 1"):
        prepare_model(fixed, tmp_path / "p.onnx", batch=7)


def test_a_batch_size_within_the_model_is_named_as_the_suspect(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("MatMul", ["r", "w"], ["y"])]
    weights = {"shape": np.array([1, -1]), "w": np.ones((12, 4), np.float32)}
    model = model_of(nodes, weights, {"x": ["N", 3, 4]}, {"y": [1, 4]})
    path = write(model, tmp_path / "m.onnx")
    assert prepare_model(path, tmp_path / "p.onnx").inputs[0].shape == (1, 3, 4)
    with pytest.raises(ModelError) as caught:
        prepare_model(path, tmp_path / "p.onnx", batch=4)
    assert "without --batch" in caught.value.hint


def test_inner_axis_must_be_given(tmp_path: Path) -> None:
    path = write(_dynamic(), tmp_path / "m.onnx")
    text = refused(path, tmp_path)
    for word in ("'sequence'", "'ids', axis 1", "'mask', axis 1", "--set-dim sequence=N", "--set-dim sequence=64"):
        assert word in text
    assert "'batch'" not in text
    prepared = prepare_model(path, tmp_path / "p.onnx", {"sequence": 5})
    assert [spec.shape for spec in prepared.inputs] == [(1, 5), (1, 5)]
    assert not prepared.facts.has_dynamic


def test_dims_by_place_and_nameless(tmp_path: Path) -> None:
    model = _dynamic()
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[1].ClearField("dim_param")
    path = write(model, tmp_path / "m.onnx")
    assert "--set-dim ids:1=N --set-dim mask:1=N" in refused(path, tmp_path)
    prepared = prepare_model(path, tmp_path / "p.onnx", {"ids:1": 6, "mask:1": 6, "batch": 2})
    assert prepared.inputs[0].shape == (2, 6)


@pytest.mark.parametrize("placeholder", ["?", "-1", "None"])
def test_placeholders_are_no_names(tmp_path: Path, placeholder: str) -> None:
    """Paddle's exporter calls height and width of an image ``?`` both; they need not be equal."""
    conv = helper.make_node("Conv", ["image", "kernel"], ["out"])
    shape = [1, 3, placeholder, placeholder]
    model = model_of([conv], {"kernel": weights(0, 4, 3, 3, 3)}, {"image": shape}, {"out": [1, 4, "h", "w"]})
    path = write(model, tmp_path / "m.onnx")
    assert "--set-dim image:2=N --set-dim image:3=N" in refused(path, tmp_path)
    prepared = prepare_model(path, tmp_path / "p.onnx", {"image:2": 8, "image:3": 20})
    assert prepared.inputs[0].shape == (1, 3, 8, 20)
    (found,) = outputs(prepared.path, image=np.zeros((1, 3, 8, 20), np.float32))
    assert found.shape == (1, 4, 6, 18)


def test_wrong_dims(tmp_path: Path) -> None:
    path = write(_dynamic(), tmp_path / "m.onnx")
    assert "did you mean 'sequence'" in refused(path, tmp_path, sequense=4)
    assert "1 or more" in refused(path, tmp_path, sequence=0)
    assert "both" in refused(path, tmp_path, **{"sequence": 4, "ids:1": 5})
    fixed = write(conv_net(), tmp_path / "fixed.onnx")
    assert "no free dimensions" in refused(fixed, tmp_path, batch=1)


def test_command_line_form() -> None:
    assert parse_set_dims(["seq=64", "ids:1=3", "a=b=2"]) == {"seq": 64, "ids:1": 3, "a=b": 2}
    for wrong in ("seq", "seq=", "=4", "seq=0", "seq=-1", "seq=1.5", "seq=²"):
        with pytest.raises(ConfigError, match="--set-dim"):
            parse_set_dims([wrong])
    with pytest.raises(ConfigError, match="both 1 and 2"):
        parse_set_dims(["a=1", "a=2"])


# What preparation does.


@pytest.mark.parametrize("build", [conv_net, matmul_net])
def test_meaning_kept_file_untouched_bytes_reproducible(tmp_path: Path, build: Callable[[], ModelProto]) -> None:
    model = build()
    path = write(model, tmp_path / "m.onnx")
    before = path.read_bytes()
    first = prepare_model(path, tmp_path / "a" / "p.onnx")
    second = prepare_model(path, tmp_path / "b" / "p.onnx")
    assert path.read_bytes() == before
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.digest == second.digest == identity(first.path)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    np.testing.assert_allclose(outputs(first.path, x=x)[0], outputs(path, x=x)[0], rtol=1e-5, atol=1e-6)
    assert not quantization_found(onnx.load(first.path))


def test_facts(tmp_path: Path) -> None:
    facts = prepare_model(write(matmul_net(), tmp_path / "m.onnx"), tmp_path / "p.onnx").facts
    assert facts.op_types["MatMul"] + facts.op_types.get("Gemm", 0) == 2
    assert facts.matmul_weights == 2
    assert facts.parameters == 64 * 48 + 48 + 48 * 10
    assert facts.input_dtypes == ("float32",)
    assert facts.opset == 17


def test_constants_become_initializers_and_batch_norm_is_folded(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(weights(1, 4, 3, 3, 3), "value")
    nodes = [
        helper.make_node("Constant", [], ["w"], value=weight),
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Identity", ["n"], ["y"]),
    ]
    constants = {"s": weights(2, 4), "b": weights(3, 4), "m": weights(4, 4), "v": np.abs(weights(5, 4)) + 1}
    model = model_of(nodes, constants, {"x": [1, 3, 8, 8]}, {"y": [1, 4, 6, 6]})
    path = write(model, tmp_path / "m.onnx")
    prepared = prepare_model(path, tmp_path / "p.onnx")
    made = onnx.load(prepared.path)
    assert [node.op_type for node in made.graph.node] == ["Conv"]
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(outputs(prepared.path, x=x)[0], outputs(path, x=x)[0], rtol=1e-4, atol=1e-5)


def test_nodes_get_unique_names_opsets_are_stripped_old_opset_is_raised(tmp_path: Path) -> None:
    model = conv_net(opset=11)
    for node in model.graph.node:
        node.name = "same" if node.op_type == "Conv" else ""
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    prepared = prepare_model(tmp_path / "m.onnx", tmp_path / "p.onnx")
    made = onnx.load(prepared.path)
    names = [node.name for node in all_nodes(made)]
    assert all(names)
    assert len(set(names)) == len(names)
    assert [(o.domain, o.version >= 13) for o in made.opset_import] == [("", True)]
    x = np.random.default_rng(1).standard_normal((1, 3, 12, 12)).astype(np.float32)
    # ONNX Runtime refuses the file as it is, for the equal names.
    reference = outputs(write(conv_net(opset=11), tmp_path / "named.onnx"), x=x)
    np.testing.assert_allclose(outputs(prepared.path, x=x)[0], reference[0], atol=1e-6)


def test_initializers_listed_as_inputs(tmp_path: Path) -> None:
    model = conv_net()
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    prepared = prepare_model(write(model, tmp_path / "m.onnx"), tmp_path / "p.onnx")
    assert [spec.name for spec in prepared.inputs] == ["x"]
    assert [value.name for value in onnx.load(prepared.path).graph.input] == ["x"]
    assert any("default value" in notice for notice in prepared.notices)


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Twice", ["x"], ["y"], domain="local")], {}, {"x": [1, 4]}, {"y": [1, 4]})
    model.opset_import.append(helper.make_opsetid("local", 1))
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    model.functions.append(helper.make_function("local", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    prepared = prepare_model(write(model, tmp_path / "m.onnx"), tmp_path / "p.onnx")
    made = onnx.load(prepared.path)
    assert [node.op_type for node in made.graph.node] == ["Add"]
    assert not made.functions
    assert [o.domain for o in made.opset_import] == [""]


@pytest.mark.parametrize("shape", [(), (1,), (1, 4), (1, 1), (4,)])
@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm_biases_are_flattened(tmp_path: Path, shape: tuple[int, ...], transposed: int) -> None:
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], "gemm", transB=transposed)
    weight = weights(1, 6, 4)
    constants = {"w": weight.T.copy() if transposed else weight, "b": np.asarray(weights(2, *shape), np.float32)}
    path = write(model_of([node], constants, {"x": [2, 6]}, {"y": [2, 4]}), tmp_path / "m.onnx")
    prepared = prepare_model(path, tmp_path / "p.onnx")
    made = onnx.load(prepared.path)
    bias = next(t for t in made.graph.initializer if t.name == made.graph.node[0].input[2])
    assert list(bias.dims) == [4]
    x = weights(3, 2, 6)
    np.testing.assert_allclose(outputs(prepared.path, x=x)[0], outputs(path, x=x)[0], atol=1e-6)


def test_integer_model_without_a_valid_random_sample(tmp_path: Path) -> None:
    """A lookup whose indices must be over 1 cannot be checked at random; preparation goes on."""
    nodes = [
        helper.make_node("Sub", ["ids", "two"], ["i"]),
        helper.make_node("Gather", ["table", "i"], ["e"]),
        helper.make_node("MatMul", ["e", "w"], ["y"]),
    ]
    constants = {"two": np.array(5, np.int64), "table": weights(1, 4, 8), "w": weights(2, 8, 3)}
    model = model_of(nodes, constants, {"ids": [1, 6]}, {"y": [1, 6, 3]}, input_type=TensorProto.INT64)
    prepared = prepare_model(write(model, tmp_path / "m.onnx"), tmp_path / "p.onnx")
    assert prepared.inputs[0].dtype == "int64"
    ids = np.full((1, 6), 7, np.int64)
    np.testing.assert_allclose(outputs(prepared.path, ids=ids)[0], outputs(tmp_path / "m.onnx", ids=ids)[0])


def test_a_split_output_left_out_is_given_a_name(tmp_path: Path) -> None:
    """It passes the checker, and crashes ONNX Runtime in float."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Split", ["c"], ["s1", ""], axis=1),
        helper.make_node("Relu", ["s1"], ["y"]),
    ]
    model = model_of(nodes, {"w": weights(1, 4, 3, 1, 1)}, {"x": [1, 3, 4, 4]}, {"y": [1, 2, 4, 4]})
    prepared = prepare_model(write(model, tmp_path / "m.onnx"), tmp_path / "p.onnx")
    x = weights(2, 1, 3, 4, 4)
    expected = np.maximum(np.einsum("oi,bihw->bohw", weights(1, 4, 3, 1, 1)[:, :, 0, 0], x)[:, :2], 0)
    np.testing.assert_allclose(outputs(prepared.path, x=x)[0], expected, atol=1e-6)


def test_a_float_model_that_kills_the_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told, not suffered. The child that dies is a stand-in: those that did are mended by now."""
    path = write(conv_net(), tmp_path / "m.onnx")
    dying = """
import json, os, signal, sys
json.load(sys.stdin)
print(json.dumps({"phase": "running the float model"}), flush=True)
os.kill(os.getpid(), signal.SIGSEGV)
"""
    started = subprocess.Popen

    def start(command: list[str], **options: Any) -> subprocess.Popen[str]:
        return started([sys.executable, "-c", dying], **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(ModelError) as caught:
        prepare_model(path, tmp_path / "p.onnx")
    assert signal.SIGSEGV.name in str(caught.value)
    assert "runs this float model" in str(caught.value)


def test_deadline(tmp_path: Path) -> None:
    path = write(conv_net(), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"no end after 0\.001 s"):
        prepare_model(path, tmp_path / "p.onnx", timeout_s=0.001)
