"""Reading .espdl: what ESP-PPQ wrote, what our own writer wrote, and what neither would write."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agents.contract import ModelRejected
from device_agents.emulated.espdl.errors import EncryptedModel, EspdlError, MalformedModel
from device_agents.emulated.espdl.interpreter import Interpreter
from device_agents.emulated.espdl.layout import filter_ohwi
from device_agents.emulated.espdl.model import Tensor
from device_agents.emulated.espdl.reader import read_model
from tests.espdl.espdl_random import random_model
from tests.espdl.espdl_writer import Constant, Emit, Graph, Out, Step, Value, blocked, table, text, vector
from tests.espdl.golden_models import GOLDEN, golden, target_of

PLAIN = Graph(
    inputs=[Value("x", (1, 4), -4)],
    outputs=[Value("y", (1, 4), -3)],
    steps=[
        Step(
            "RequantizeLinear",
            ("x",),
            ("y",),
            {"quant_type": "S8", "many": (1, 2, -3), "one": 7, "real": 0.25},
            name="/r",
        )
    ],
    constants=[Constant("c", np.asarray([[1, -2], [3, 4]], np.int16), (2, 2), (-5, -6), "NHWC")],
    tests_in=[Constant("x", np.asarray([1, 2, 3, -4], np.int8), (1, 4), (-4,))],
    metadata={"recipe": "abc", "empty": ""},
)


def test_everything_that_was_written_is_read() -> None:
    model = read_model(PLAIN.to_bytes())
    assert [(v.name, v.shape, v.exponent, v.dtype) for v in model.inputs] == [("x", (1, 4), -4, 3)]
    assert [(v.name, v.shape, v.exponent) for v in model.outputs] == [("y", (1, 4), -3)]
    node = model.nodes[0]
    assert (node.op, node.name, node.inputs, node.outputs) == ("RequantizeLinear", "/r", ("x",), ("y",))
    assert node.attributes == {"quant_type": "S8", "many": (1, 2, -3), "one": 7, "real": 0.25}
    constant = model.constants["c"]
    assert constant.array().tolist() == [[1, -2], [3, 4]]
    assert (constant.exponents, constant.layout) == ((-5, -6), "NHWC")
    assert model.test_inputs["x"].values.tolist() == [1, 2, 3, -4]
    assert model.metadata == {"recipe": "abc", "empty": ""}
    assert (model.ir_version, model.model_version) == (8, 1)


def test_files_of_esp_ppq_have_nodes_tensors_and_test_values() -> None:
    model = golden("tiny_images-esp32s3-w8a8")
    assert [value.shape for value in model.inputs] == [(1, 8, 8, 3)]
    assert [node.op for node in model.nodes][:3] == ["Conv", "Conv", "Clip"]
    first = model.constants[model.nodes[0].inputs[1]]
    assert (first.dims, first.layout) == ((3, 3, 3, 18), "(N/16)HWC16_UNALIGNED")
    assert set(model.test_inputs) == {"input"}
    assert len(model.test_outputs) == 16


@given(st.data())
def test_blocked_filters_are_put_back_in_order(data: st.DataObject) -> None:
    lanes = data.draw(st.sampled_from([8, 16]))
    groups = data.draw(st.sampled_from([1, 2]))
    outer, height, width, inner = (data.draw(st.integers(1, most)) for most in (40, 3, 3, 4))
    ohwi = np.arange(outer * height * width * inner, dtype=np.int16).reshape(outer, height, width, inner)
    values, layout = blocked(ohwi, lanes, groups)
    dims = (height, width, inner, outer) if groups == 1 else (height, width, outer, inner)
    tensor = Tensor("w", dims, (0,), layout, values)
    assert np.array_equal(filter_ohwi(tensor, groups), ohwi)


@pytest.mark.parametrize("layout", ["(N/16)HWC8", "NCHW", "(N/16)HWC16"])
def test_a_filter_of_unknown_or_unfitting_layout_is_refused(layout: str) -> None:
    with pytest.raises(MalformedModel, match="'w'"):
        filter_ohwi(Tensor("w", (1, 1, 2, 18), (0,), layout, np.zeros(36, np.int8)), 1)


def test_an_encrypted_model_is_refused() -> None:
    data = bytearray(PLAIN.to_bytes())
    data[4] = 1
    with pytest.raises(EncryptedModel, match="encrypted"):
        read_model(bytes(data))


@pytest.mark.parametrize("magic", [b"PDL1", b"PDL2", b"PDL3"])
def test_a_pack_is_refused(magic: bytes) -> None:
    with pytest.raises(EspdlError, match="pack of models"):
        read_model(magic + bytes(100))


def test_what_is_no_espdl_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedModel, match="begins with"):
        read_model(b"\x08\x08onnx-model-bytes")
    with pytest.raises(MalformedModel, match="0 bytes"):
        read_model(b"")
    with pytest.raises(EspdlError, match=r"nothere\.espdl"):
        read_model(tmp_path / "nothere.espdl")


def test_a_truncated_file_is_refused_wherever_it_ends() -> None:
    data = PLAIN.to_bytes()
    for end in range(len(data)):
        with pytest.raises(MalformedModel):
            read_model(data[:end])
        cut = data[:8] + struct.pack("<I", max(0, end - 16)) + data[12:end]
        if end > 16:  # even with a header that says so
            with contextlib.suppress(ModelRejected):
                read_model(cut)


def test_a_table_named_many_times_does_not_cost_any_time() -> None:
    """300 nodes that are one table, of 300 attributes that are one: 90,000 tables in four kilobytes."""

    def shared(count: int, item: Emit) -> Emit:
        def emit(out: Out) -> int:
            at = out.put("I", count)
            slots = [out.put("I", 0) for _ in range(count)]
            target = item(out)
            for slot in slots:
                out.point(slot, target)
            return at

        return emit

    attribute = table({0: text("a"), 3: ("i", 2), 5: ("q", 1)})
    node = table({0: vector([]), 1: vector([text("y")]), 2: text("n"), 3: text("Identity"), 5: shared(300, attribute)})
    out = Out()
    slot = out.put("I", 0)
    out.point(slot, table({7: table({0: shared(300, node)})})(out))
    assert len(out.data) < 4096
    with pytest.raises(MalformedModel, match="than the file has room for"):
        read_model(b"EDL2" + struct.pack("<3I", 0, len(out.data), 0) + bytes(out.data))


@pytest.mark.parametrize("path", GOLDEN[:3], ids=lambda path: path.stem)
@settings(max_examples=60, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=8))
def test_corrupted_files_give_typed_errors_or_run(path: Path, changes: list[tuple[int, int]]) -> None:
    """Flips bytes where the structure is (the values of filters cannot be wrong), reads, prepares and runs."""
    data = bytearray(path.read_bytes())
    for place, value in changes:
        data[16 + place % (len(data) - 16)] = value
    _read_and_run(bytes(data), target_of(path))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    changes=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_corrupted_small_models_give_typed_errors_or_run(seed: int, changes: list[tuple[int, int]]) -> None:
    data = bytearray(random_model(seed, "esp32s3", steps=3).to_bytes())
    for place, value in changes:
        data[16 + place % (len(data) - 16)] = value
    _read_and_run(bytes(data), "esp32s3")


def _read_and_run(data: bytes, target: str) -> None:
    with contextlib.suppress(ModelRejected):  # any other exception is a finding
        model = read_model(data)
        if sum(int(np.prod(value.shape)) for value in model.inputs) > 1 << 16:
            return
        interpreter = Interpreter(model, target)
        zeros = {v.name: np.zeros((1, *v.shape), interpreter.input_dtype(v.name)) for v in model.inputs}
        for _name, array in interpreter.tensors(zeros):
            if array.size > 1 << 18:
                return
