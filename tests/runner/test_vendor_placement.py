"""Receipts from the vendors' own stacks: QNN's simulator of the Hexagon processor, OpenVINO on the CPU.

BOARDTUNE_QNN_PYTHON and BOARDTUNE_OPENVINO_PYTHON name interpreters of environments with ``onnxruntime-qnn`` and with
``onnxruntime-openvino`` (docs/placement.md). Nodes are counted with the onnx package.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from device_agents.contract import BoardUnfit
from harness.boards.schema import Board
from harness.controller.deployable import deployable
from harness.controller.placing import Placed, place_on

EXAMPLE = Path(__file__).parents[2] / "examples" / "fashion_mnist" / "model.onnx"
CPU, QNN, OPENVINO = "CPUExecutionProvider", "QNNExecutionProvider", "OpenVINOExecutionProvider"
pytestmark = pytest.mark.slow


def python(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} names no interpreter with the vendor's ONNX Runtime")
    return value


def board(python: str, workdir: Path, **provider: Any) -> Board:
    return Board.model_validate(
        {
            "apiVersion": "boardtune/v1",
            "kind": "Board",
            "metadata": {"name": "vendor"},
            "transport": {"kind": "local", "python": python, "workdir": str(workdir)},
            "runtime": {"providers": [provider, CPU]},
            "limits": {"min_offload": 0.8},
        }
    )


class Noise(CalibrationDataReader):
    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.feeds = iter([{"image": random.random((1, 1, 28, 28), dtype=np.float32)} for _ in range(4)])

    def get_next(self) -> Any:
        return next(self.feeds, None)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantized")
    fixed, out = folder / "fixed.onnx", folder / "int8.onnx"
    model = onnx.load(EXAMPLE)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, fixed)
    quantize_static(
        str(fixed), str(out), Noise(), quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8, per_channel=True
    )
    return out


def told(placed: Placed) -> list[str]:
    nodes = [name for names in placed.placement.nodes.values() for name in names]
    return sorted([*nodes, *placed.placement.fused, *placed.placement.folded])


@pytest.mark.parametrize("named", [True, False])
def test_qnn_runs_all_but_the_conversions_at_the_ends_and_says_why(
    named: bool, quantized: Path, tmp_path: Path
) -> None:
    model = onnx.load(quantized)
    if not named:
        for node in model.graph.node:
            node.name = ""
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    vendor = board(python("BOARDTUNE_QNN_PYTHON"), tmp_path / "w", name=QNN, options={"backend_type": "htp"})
    placed = place_on(vendor, deployable(path, tmp_path, {}, 1))
    placement = placed.placement
    assert len(told(placed)) == len(set(told(placed))) == len(model.graph.node)
    assert placed.unaccounted == ()
    assert placement.agrees is True
    assert placed.counts(placement.nodes[CPU]) == {"QuantizeLinear": 1, "DequantizeLinear": 1}
    convolutions = sum(node.op_type == "Conv" for node in model.graph.node)
    assert placed.counts(placement.nodes[QNN])["Conv"] == convolutions
    assert not placed.below_floor
    reasons = [placement.fallback_reasons[name] for name in placement.nodes[CPU]]
    assert all("configured to not take" in reason for reason in reasons)


def test_qnn_says_why_it_takes_nothing_of_a_model_with_a_free_dimension(tmp_path: Path) -> None:
    vendor = board(python("BOARDTUNE_QNN_PYTHON"), tmp_path / "w", name=QNN, options={"backend_type": "htp"})
    # As the file is: deployable() fixes the batch in the one it would send.
    ready = replace(deployable(EXAMPLE, tmp_path, {}, 1), path=EXAMPLE)
    placed = place_on(vendor, ready, compare_cpu=True)
    assert placed.comparison is not None
    assert placed.comparison.outputs_differ is None
    assert placed.placement.offload_ratio == 0.0
    assert placed.below_floor
    assert {"Cannot get shape" in reason for reason in placed.placement.fallback_reasons.values()} == {True}
    assert set(placed.placement.fallback_reasons) == set(placed.placement.nodes[CPU])


def test_a_library_of_qnn_s_that_is_not_its_plugin(quantized: Path, tmp_path: Path) -> None:
    interpreter = python("BOARDTUNE_QNN_PYTHON")
    (found,) = Path(interpreter).parents[1].glob("lib/python*/site-packages/onnxruntime_qnn/libQnnSystem.so")
    vendor = board(interpreter, tmp_path / "w", name=QNN, library=str(found))
    with pytest.raises(BoardUnfit, match="no provider plugin"):
        place_on(vendor, deployable(quantized, tmp_path, {}, 1))


def test_openvino_by_name(quantized: Path, tmp_path: Path) -> None:
    interpreter = python("BOARDTUNE_OPENVINO_PYTHON")
    vendor = board(interpreter, tmp_path / "w", name=OPENVINO, options={"device_type": "CPU"})
    placed = place_on(vendor, deployable(quantized, tmp_path, {}, 1))
    assert len(told(placed)) == len(onnx.load(quantized).graph.node)
    assert placed.placement.agrees is True
    assert placed.counts(placed.placement.nodes[OPENVINO])["Conv"] > 0
    assert not placed.below_floor
