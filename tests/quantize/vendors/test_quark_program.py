"""What Quark is told, as far as it needs no Quark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from harness.quantize.vendors.programs import quark as program


def model(path: Path, shape: list[int]) -> Path:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], "only")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    onnx.save(helper.make_model(graph), path)
    return path


@pytest.mark.parametrize(
    ("shape", "stored", "feeds"),
    [([1, 3], (5, 3), [(1, 3)] * 5), ([2, 3], (5, 3), [(2, 3)] * 2), ([3], (5, 3), [(3,)] * 5)],
)
def test_samples_come_in_the_models_batches(
    tmp_path: Path, shape: list[int], stored: tuple[int, ...], feeds: list[tuple[int, ...]]
) -> None:
    array = np.arange(np.prod(stored), dtype=np.float32).reshape(stored)
    np.savez(tmp_path / "c.npz", x=array)
    reader = program.Reader(str(model(tmp_path / "m.onnx", shape)), str(tmp_path / "c.npz"))
    assert len(reader) == len(feeds)
    seen = list(iter(reader.get_next, None))
    assert [feed["x"].shape for feed in seen] == feeds
    count = sum(feed["x"].size for feed in seen)
    assert np.array_equal(np.concatenate([feed["x"].ravel() for feed in seen]), array.ravel()[:count])
    reader.reset_iter()
    assert reader.get_next()["x"].shape == feeds[0]


def test_a_calibration_that_fails_is_told() -> None:
    # What quark.onnx.calibration.interface says before it goes on with another method, amd-quark 0.13.
    told = [
        "Encountered an unexpected error: autodetected range of [nan, nan] is not finite",
        "Will automatically set the 'calibrate_method' to the simple and faster method 'MinMax' and retry.",
    ]
    with pytest.raises(RuntimeError, match=r"calibration failed, .* another method: .*not finite"):
        program.check_calibration(told)
    program.check_calibration(["The opset version is 17 < 20. Skipping fusing Gelu."])


def test_probes_among_the_outputs_are_taken_out(tmp_path: Path) -> None:
    plain = model(tmp_path / "m.onnx", [1, 3])
    made = onnx.load(plain)
    made.graph.output.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3]))
    onnx.save(made, tmp_path / "made.onnx")
    assert program.take_probes_out(str(plain), str(tmp_path / "made.onnx"))[0].startswith("1 outputs")
    assert [value.name for value in onnx.load(tmp_path / "made.onnx").graph.output] == ["y"]
    assert program.take_probes_out(str(plain), str(plain)) == []


def test_subgraphs_are_pairs() -> None:
    assert program.subgraph("a..b") == (["a"], ["b"])
