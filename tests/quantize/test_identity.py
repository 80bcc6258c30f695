from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, helper, numpy_helper
from quantize_models import conv_net, model_of, weights

from harness.errors import ModelError
from harness.quantize.identity import file_sha256, identity, identity_of

_TEXT = st.text(max_size=12)


@given(
    producer=_TEXT,
    version=_TEXT,
    domain=_TEXT,
    number=st.integers(0, 2**40),
    docs=_TEXT,
    metadata=st.dictionaries(_TEXT, _TEXT, max_size=3),
)
def test_labels_do_not_matter(
    producer: str, version: str, domain: str, number: int, docs: str, metadata: dict[str, str]
) -> None:
    model = conv_net()
    before = identity_of(model)
    model.producer_name, model.producer_version, model.domain, model.model_version = producer, version, domain, number
    model.doc_string = model.graph.doc_string = model.graph.node[0].doc_string = docs
    model.graph.input[0].doc_string = model.graph.initializer[0].doc_string = docs
    helper.set_model_props(model, metadata)
    for key, value in metadata.items():
        model.graph.node[1].metadata_props.add(key=key, value=value)
        model.graph.initializer[1].metadata_props.add(key=key, value=value)
    assert identity_of(model) == before


@given(st.integers(0, 5), st.integers(0, 39), st.integers(0, 31))
def test_every_bit_of_every_weight_matters(tensor: int, element: int, bit: int) -> None:
    model = conv_net()
    before = identity_of(model)
    target = model.graph.initializer[tensor]
    data = bytearray(target.raw_data)
    position = (element * 4 + bit // 8) % len(data)
    data[position] ^= 1 << bit % 8
    target.raw_data = bytes(data)
    assert identity_of(model) != before


def _rename_output(model: ModelProto) -> None:
    model.graph.output[0].name = "z"
    model.graph.node[-1].output[0] = "z"


def _add_attribute(model: ModelProto) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("auto_pad", "NOTSET"))


def _change_opset(model: ModelProto) -> None:
    model.opset_import[0].version += 1


def _retype(model: ModelProto) -> None:
    model.graph.initializer[0].data_type = onnx.TensorProto.INT32


def _reshape(model: ModelProto) -> None:
    dims = model.graph.initializer[2].dims
    dims[0], dims[1] = dims[1], dims[0]


def _add_function(model: ModelProto) -> None:
    model.functions.append(
        helper.make_function("local", "F", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], model.opset_import)
    )


@pytest.mark.parametrize("change", [_rename_output, _add_attribute, _change_opset, _retype, _reshape, _add_function])
def test_what_changes_the_computation_matters(change: Callable[[ModelProto], None]) -> None:
    model = conv_net()
    before = identity_of(model)
    change(model)
    assert identity_of(model) != before


def test_order_and_storage_of_constants_do_not_matter(tmp_path: Path) -> None:
    model = conv_net()
    shuffled = copy.deepcopy(model)
    reverse = [copy.deepcopy(t) for t in reversed(shuffled.graph.initializer)]
    del shuffled.graph.initializer[:]
    shuffled.graph.initializer.extend(reverse)
    shuffled.opset_import.insert(0, helper.make_opsetid("z", 1))
    model.opset_import.append(helper.make_opsetid("z", 1))
    assert identity_of(shuffled) == identity_of(model)

    typed = copy.deepcopy(model)
    first = typed.graph.initializer[0]
    values = numpy_helper.to_array(first).ravel().tolist()
    first.CopyFrom(helper.make_tensor(first.name, first.data_type, first.dims, values))
    assert first.float_data
    assert identity_of(typed) == identity_of(model)

    inline, outside = tmp_path / "inline.onnx", tmp_path / "sub" / "outside.onnx"
    outside.parent.mkdir()
    onnx.save_model(model, inline)
    onnx.save_model(copy.deepcopy(model), outside, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert identity(outside) == identity(inline) == identity_of(model)
    assert file_sha256(outside) != file_sha256(inline)

    data = bytearray((outside.parent / "w.bin").read_bytes())
    data[0] ^= 1
    (outside.parent / "w.bin").write_bytes(data)
    assert identity(outside) != identity(inline)


def test_typed_storage_of_every_type() -> None:
    for dtype in (np.float16, np.int8, np.uint8, np.int32, np.int64, np.bool_, np.float64, np.uint16):
        values = np.arange(6).reshape(2, 3).astype(dtype)
        raw = model_of([helper.make_node("Shape", ["c"], ["y"])], {"c": values}, {"x": [1]}, {"y": [2]})
        typed = copy.deepcopy(raw)
        tensor = typed.graph.initializer[0]
        onnx_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        tensor.CopyFrom(helper.make_tensor("c", onnx_type, [2, 3], values.ravel().tolist()))
        assert not tensor.raw_data
        assert identity_of(typed) == identity_of(raw), dtype


def test_constants_in_attributes_and_subgraphs_matter() -> None:
    def build(value: float) -> ModelProto:
        constant = numpy_helper.from_array(np.array([value], np.float32), "v")
        branch = helper.make_graph(
            [helper.make_node("Constant", [], ["c"], value=constant)],
            "b",
            [],
            [helper.make_tensor_value_info("c", 1, [1])],
        )
        nodes = [helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)]
        return model_of(nodes, {}, {"x": []}, {"y": [1]}, input_type=onnx.TensorProto.BOOL)

    assert identity_of(build(1.0)) == identity_of(build(1.0))
    assert identity_of(build(1.0)) != identity_of(build(2.0))


def test_the_model_given_is_not_changed() -> None:
    model = conv_net()
    model.doc_string = "kept"
    before = model.SerializeToString()
    identity_of(model)
    assert model.SerializeToString() == before


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot read"):
        identity(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"\xff" * 100)
    with pytest.raises(ModelError, match=r"bad\.onnx"):
        identity(tmp_path / "bad.onnx")
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"w": weights(1, 64, 64)}, {"x": [1]}, {"y": [1]})
    onnx.save_model(model, tmp_path / "e.onnx", save_as_external_data=True, location="e.bin", size_threshold=0)
    (tmp_path / "e.bin").unlink()
    with pytest.raises(ModelError, match="external data of tensor 'w'"):
        identity(tmp_path / "e.onnx")
