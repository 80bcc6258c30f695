"""Models over 2 GB keep their tensors beside the file; here the limit is lowered instead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from harness.controller.measuring import MeasureJob, measure
from harness.errors import ModelError
from harness.quantize import model_file
from harness.quantize.contract import Cause, ModelRefused
from harness.quantize.model_file import copy_model, load_model, refuse_two_files, save_model
from harness.quantize.outputs import data_of


def _matrix(rows: int, columns: int) -> ModelProto:
    weight = numpy_helper.from_array(np.ones((rows, columns), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, columns])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _claiming(path: Path, size: int) -> Path:
    """A model whose only weight, of ``size`` by ``size``, is said to be in a file (of holes) beside it."""
    made = _matrix(1, 1)
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.dims[:] = [size, size]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", str(4 * size * size))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    for value in (made.graph.input[0], made.graph.output[0]):
        value.type.tensor_type.shape.dim[1].dim_value = size
    with (path.parent / "w.bin").open("wb") as file:
        file.truncate(4 * size * size)
    path.write_bytes(made.SerializeToString())
    return path


def test_copies_under_other_names_do_not_share_their_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(model_file, "INLINE_LIMIT_BYTES", 1000)
    (tmp_path / "out").mkdir()
    for rows in (32, 48):
        save_model(_matrix(rows, 16), tmp_path / "quantized.onnx")
        assert data_of(tmp_path / "quantized.onnx").exists()
        copy_model(tmp_path / "quantized.onnx", tmp_path / "out" / f"m{rows}.onnx")
    for rows in (32, 48):
        found = load_model(tmp_path / "out" / f"m{rows}.onnx")
        np.testing.assert_array_equal(numpy_helper.to_array(found.graph.initializer[0]), np.ones((rows, 16)))
    (tmp_path / "out" / "m32.onnx.data").unlink()
    with pytest.raises(ModelError, match=r"m32\.onnx\.data"):
        load_model(tmp_path / "out" / "m32.onnx")


def test_small_models_are_copied_as_they_are(tmp_path: Path) -> None:
    save_model(_matrix(4, 4), tmp_path / "a.onnx")
    copy_model(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert (tmp_path / "b.onnx").read_bytes() == (tmp_path / "a.onnx").read_bytes()
    assert not data_of(tmp_path / "b.onnx").exists()
    refuse_two_files(tmp_path / "a.onnx", "a board")


def test_what_takes_one_file_refuses_two_before_reading_them(tmp_path: Path) -> None:
    path = _claiming(tmp_path / "m.onnx", 23_200)  # 2.15 GB, none of it on the disk
    with pytest.raises(ModelRefused, match=r"2\.\d+ G.*a search takes models that fit into one file") as refused:
        refuse_two_files(path, "a search")
    assert refused.value.cause == Cause.UNSUPPORTED
    with pytest.raises(ModelRefused, match="a board takes"):
        measure(MeasureJob(model=path, boards=("local",)))


def test_external_data_outside_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    (tmp_path / "inner").mkdir()
    made = _matrix(4, 4)
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for location in ("../secret.bin", str(tmp_path / "secret.bin")):
        del tensor.external_data[:]
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", location
        path = tmp_path / "inner" / "m.onnx"
        path.write_bytes(made.SerializeToString())
        with pytest.raises(ModelError, match="external data"):
            load_model(path)


@pytest.mark.parametrize(
    ("key", "value"), [("offset", "-4"), ("offset", "middle"), ("length", "8"), ("length", "1e3"), ("offset", "4")]
)
def test_external_data_in_places_that_are_none(key: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(64))
    made = _matrix(4, 4)
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for name, content in {"location": "w.bin", "offset": "0", "length": "64", key: value}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = name, content
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(ModelError, match="external data"):
        load_model(tmp_path / "m.onnx")
