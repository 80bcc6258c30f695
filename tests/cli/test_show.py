"""``boardtune show``: any ONNX file in words, and what boardtune stamped into it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import harness
from harness.errors import ExitCode
from harness.ledger.provenance import PREFIX, read_stamp, stamp
from harness.quantize.identity import identity
from tests.controller import made_up

Boardtune = Callable[..., tuple[int, str, str]]


def qdq_model(path: Path) -> Path:
    """x -> QuantizeLinear -> DequantizeLinear -> Gemm (int8 weights) -> Softmax -> y."""
    weights = np.arange(-12, 12, dtype=np.int8).reshape(6, 4)
    constants = {"s": np.float32(0.1), "z": np.int8(0), "w": weights, "ws": np.float32(0.02)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wd"]),
        helper.make_node("Gemm", ["d", "wd"], ["g"]),
        helper.make_node("Softmax", ["g"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="elsewhere"
    )
    onnx.save(made, str(path))
    return path


STAMP = {
    "version": "0.1.0",
    "run": "00112233aabbccdd",
    "trial": "3",
    "label": "static QDQ u8/s8 per-channel minmax",
    "recipe_sha256": "ab" * 32,
    "float_model": "model.onnx",
    "float_model_sha256": "cd" * 32,
    "calibration_sha256": "ef" * 32,
    "versions": '{"numpy":"2.0","onnx":"1.22","onnxruntime":"1.30","ray":"9"}',
    "snr_db": "29.654321",
    "board": "rpi5-emulated",
    "emulated": "true",
    "runtime": "onnxruntime 1.30",
}


def stamped(path: Path, **changes: str) -> Path:
    model = onnx.load(qdq_model(path))
    stamp(model, {**STAMP, "artifact_identity": identity(path), **changes})
    onnx.save(model, str(path))
    return path


def test_a_model_of_anybody(boardtune: Boardtune) -> None:
    path = qdq_model(Path("any.onnx"))
    code, out, _ = boardtune("show", path)
    assert code == ExitCode.OK
    assert out.splitlines()[0] == "any.onnx: QDQ, made by elsewhere; no boardtune provenance"
    for line in (
        "input x float32 [n, 6]",
        "output y float32 [n, 4]",
        "quantized 1 (1 Gemm)",
        "in float 1 (1 Softmax)",
        "conversions 3 (1 QuantizeLinear, 2 DequantizeLinear)",
        "opsets ai.onnx 17",
    ):
        assert line in re.sub(" +", " ", out)
    code, out, _ = boardtune("show", path, "--json")
    value = json.loads(out)
    assert (value["provenance"], value["intact"]) == (None, None)
    assert value["size_bytes"] == path.stat().st_size
    assert value["weights"] == {"int8": 25, "float32": 2}
    assert value["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["n", 6]}]


@pytest.mark.parametrize(
    ("op_type", "kind"), [("Gemm", "float"), ("MatMulInteger", "QOperator"), ("DynamicQuantizeMatMul", "dynamic")]
)
def test_kinds(boardtune: Boardtune, op_type: str, kind: str) -> None:
    made_up.write_model(Path("m.onnx"))
    model = onnx.load("m.onnx")
    model.graph.node[0].op_type = op_type
    onnx.save(model, "m.onnx")
    value = json.loads(boardtune("show", "m.onnx", "--json")[1])
    assert value["kind"] == kind


def test_what_was_stamped(boardtune: Boardtune) -> None:
    path = stamped(Path("shipped.onnx"))
    code, out, _ = boardtune("show", path)
    assert code == ExitCode.OK
    assert out.splitlines()[0] == f"shipped.onnx: {STAMP['label']}, exported by boardtune 0.1.0"
    text = re.sub(" +", " ", out)
    for line in (
        "content as it was measured",
        "run 00112233aabbccdd, trial 0003",
        f"recipe sha256 {'ab' * 32}",
        f"float model model.onnx, sha256 {'cd' * 32}",
        f"calibration sha256 {'ef' * 32}",
        "versions onnx 1.22, onnxruntime 1.30, numpy 2.0",
        "measured on rpi5-emulated, EMULATED, onnxruntime 1.30",
    ):
        assert line in text
    value = json.loads(boardtune("show", path, "--json")[1])
    assert value["intact"] is True
    assert value["provenance"]["run"] == STAMP["run"]
    assert json.loads(json.dumps(harness.show_model(path).to_json())) == value


def test_a_model_that_was_changed_since(boardtune: Boardtune) -> None:
    path = stamped(Path("shipped.onnx"))
    model = onnx.load(path)
    weights = next(tensor for tensor in model.graph.initializer if tensor.name == "w")
    weights.CopyFrom(numpy_helper.from_array(np.ones((6, 4), np.int8), "w"))
    onnx.save(model, str(path))
    assert "CHANGED since it was measured" in boardtune("show", path)[1]
    assert json.loads(boardtune("show", path, "--json")[1])["intact"] is False


def test_a_stamp_that_makes_no_sense_is_shown_all_the_same(boardtune: Boardtune) -> None:
    path = stamped(Path("odd.onnx"), versions="[broken", trial="three", snr_db="much", run="\x1b[31mred")
    code, out, _ = boardtune("show", path)
    assert code == ExitCode.OK
    assert "trial three" in out
    assert "\x1b" not in out


def test_stamping_again_leaves_nothing_of_before() -> None:
    model = onnx.load(stamped(Path("m.onnx")))
    helper.set_model_props(model, {**{p.key: p.value for p in model.metadata_props}, "author": "me"})
    stamp(model, {"version": "2"})
    assert read_stamp(model) == {"version": "2"}
    assert {p.key: p.value for p in model.metadata_props} == {"author": "me", f"{PREFIX}version": "2"}


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "no such model file"), (b"", "empty"), (b"<html>", "not an ONNX model"), ("folder", "is a folder")],
)
def test_bad_files(boardtune: Boardtune, content: bytes | str | None, told: str) -> None:
    if content == "folder":
        Path("bad.onnx").mkdir()
    elif isinstance(content, bytes):
        Path("bad.onnx").write_bytes(content)
    code, out, err = boardtune("show", "bad.onnx")
    assert (code, out) == (ExitCode.USAGE, "")
    assert "bad.onnx" in err
    assert told in err


def test_a_name_that_is_no_text(boardtune: Boardtune) -> None:
    path = qdq_model(Path("bad.onnx"))
    path.write_bytes(path.read_bytes().replace(b"Softmax", b"Soft\xff\xfex"))
    code, _, err = boardtune("show", path)
    assert code == ExitCode.USAGE
    assert "bad.onnx: is damaged: a name in it is no text" in err


def test_external_data_counts_and_must_be_there(boardtune: Boardtune) -> None:
    model = onnx.load(qdq_model(Path("inside.onnx")))
    onnx.save(model, "apart.onnx", save_as_external_data=True, location="apart.bin", size_threshold=0)
    apart = json.loads(boardtune("show", "apart.onnx", "--json")[1])
    inside = json.loads(boardtune("show", "inside.onnx", "--json")[1])
    assert apart["identity"] == inside["identity"]
    assert apart["size_bytes"] == Path("apart.onnx").stat().st_size + Path("apart.bin").stat().st_size
    Path("apart.bin").unlink()
    code, _, err = boardtune("show", "apart.onnx")
    assert code == ExitCode.USAGE
    assert "apart.bin" in err
