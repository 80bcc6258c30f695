"""The packaged canary is the model that was pinned, and runs."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import shape_inference

import device_agents
from harness.boards.canaries.make_canaries import make
from harness.boards.canary import PACKAGED, canary_inputs, canary_path
from harness.boards.schema import Board
from harness.errors import ConfigError


def board(**canary: Any) -> Board:
    return Board.model_validate(
        {
            "apiVersion": "boardtune/v1",
            "kind": "Board",
            "metadata": {"name": "pi"},
            "transport": {"kind": "local"},
            "canary": canary,
        }
    )


def test_the_firmwares_canary_has_the_digest_that_the_firmware_says() -> None:
    found = hashlib.sha256(canary_path(board(model="firmware-1")).read_bytes()).hexdigest()
    source = Path(device_agents.__file__ or "").parent / "firmware" / "core" / "bt_canary.c"
    bytes_in_c = re.findall(r"0x([0-9a-f]{2}),", source.read_text().split("bt_canary_sha256", 1)[1].split("};")[0])
    assert "".join(bytes_in_c) == found == PACKAGED["firmware-1"]


@pytest.mark.parametrize("name", [name for name in PACKAGED if name not in ("firmware-1", "compiled-in")])
def test_packaged_canary_is_made_again_to_the_bit(name: str, tmp_path: Path) -> None:
    path = canary_path(board(model=name))
    made = make(tmp_path)
    assert made[name] == PACKAGED[name]
    assert (tmp_path / f"{name}.onnx").read_bytes() == path.read_bytes()


def test_canary_has_the_work_that_its_name_says() -> None:
    model = shape_inference.infer_shapes(onnx.load(canary_path(board())))
    shapes = {
        value.name: [size.dim_value for size in value.type.tensor_type.shape.dim] for value in model.graph.value_info
    }
    weights = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    macs = sum(
        int(np.prod(shapes[node.output[0]])) * int(np.prod(weights[node.input[1]][1:]))
        for node in model.graph.node
        if node.op_type == "Conv"
    )
    assert 8_000_000 < macs < 8_500_000


def test_canary_is_read_by_the_oldest_runtime_that_is_supported() -> None:
    model = onnx.load(canary_path(board()))
    # ONNX Runtime 1.16 reads IR version 9 and opset 19 at most.
    assert model.ir_version <= 9
    assert [opset.version for opset in model.opset_import] == [13]


def test_canary_runs_on_its_inputs() -> None:
    session = ort.InferenceSession(canary_path(board()), providers=["CPUExecutionProvider"])
    given = session.get_inputs()[0]
    inputs = canary_inputs([(given.name, "float32", tuple(given.shape))], rows=2)
    assert inputs[given.name].shape == (2, *given.shape[1:])
    outputs = [session.run(None, {given.name: row[None]})[0] for row in inputs[given.name]]
    assert np.isfinite(outputs).all()
    assert not np.array_equal(outputs[0], outputs[1])
    again = canary_inputs([(given.name, "float32", tuple(given.shape))], rows=2)
    np.testing.assert_array_equal(again[given.name], inputs[given.name])


@pytest.mark.parametrize("shape", [("n", 3), (), (2, 3)])
def test_inputs_of_an_unfit_canary(shape: tuple[int | str, ...]) -> None:
    with pytest.raises(ConfigError, match="fixed shape"):
        canary_inputs([("x", "float32", shape)])


def test_canary_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.onnx"
    path.write_bytes(b"model")
    digest = hashlib.sha256(b"model").hexdigest()
    assert canary_path(board(model=str(path), sha256=digest)) == path
    path.write_bytes(b"another model")
    with pytest.raises(ConfigError, match="not the pinned model") as caught:
        canary_path(board(model=str(path), sha256=digest))
    assert digest in caught.value.message
    with pytest.raises(ConfigError, match="cannot be read"):
        canary_path(board(model=str(tmp_path / "gone.onnx"), sha256=digest))


def test_wrong_canaries() -> None:
    with pytest.raises(ConfigError, match="unknown canary 'conv-8n'") as caught:
        canary_path(board(model="conv-8n"))
    assert "did you mean 'conv-8m'?" in caught.value.hint
    with pytest.raises(ConfigError, match="not that of the packaged canary"):
        canary_path(board(sha256="a" * 64))
    assert canary_path(board(sha256=PACKAGED["conv-8m"])).is_file()
