"""``boardtune placement`` on boards that are here: text, JSON and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.errors import ExitCode

Boardtune = Callable[..., tuple[int, str, str]]
RYZEN = yaml.safe_load((Path(__file__).parents[2] / "boards" / "ryzen-ai-emulated.yaml").read_text())
LOCAL = yaml.safe_load((Path(__file__).parents[2] / "boards" / "local.yaml").read_text())
CPU, NPU = "CPUExecutionProvider", "VitisAIExecutionProvider"


def board(base: dict[str, Any], name: str, **sections: Any) -> None:
    content = {**base, **sections, "metadata": {"name": name}}
    Path(f"boards/{name}.yaml").write_text(yaml.safe_dump(content))


def test_a_processor_runs_everything(boardtune: Boardtune) -> None:
    board(LOCAL, "here")
    code, out, err = boardtune("placement", "model.onnx", "--boards", "here", "--json")
    assert code == ExitCode.OK, err
    placed = json.loads(out)["here"]
    nodes = [name for names in placed["placement"]["nodes"].values() for name in names]
    gone = placed["placement"]["fused"] + placed["placement"]["folded"]
    assert sorted([*nodes, *gone]) == sorted(placed["op_types"])
    assert placed["unaccounted"] == []
    assert set(placed["placement"]["nodes"]) == {CPU}
    assert placed["placement"]["offload_ratio"] is None
    assert (placed["below_floor"], placed["comparison"], placed["emulated"]) == (False, None, False)


def test_words_say_the_evidence_and_the_floor(boardtune: Boardtune) -> None:
    board(RYZEN, "npu", limits={"min_offload": 1.0})
    code, out, err = boardtune("placement", "model.onnx", "--boards", "npu")
    assert code == ExitCode.NO_FEASIBLE_CANDIDATE, err
    assert "npu (emulated):" in out
    assert "evidence   emulated-cost-model; no second source" in out
    assert "BELOW the board's floor of 100%" in out
    assert "left to the CPU because" in out


def test_the_claim_is_compared_with_the_cpu(boardtune: Boardtune) -> None:
    board(RYZEN, "npu")
    code, out, err = boardtune("placement", "model.onnx", "--boards", "npu", "--compare-cpu", "--json")
    comparison = json.loads(out)["npu"]["comparison"]
    # The emulated NPU and CPU execute the same arithmetic; float models run on its CPU, so there is no other latency.
    assert comparison["outputs_differ"] is None, err
    assert comparison["tolerance"] == 0.05
    wanted = ExitCode.MEASUREMENTS_INVALID if comparison["problems"] else ExitCode.OK
    assert code == wanted
    assert bool(comparison["problems"]) is not comparison["distinguishable"]


def test_what_fails_on_one_board_does_not_keep_the_others(boardtune: Boardtune) -> None:
    board(LOCAL, "here")
    board(LOCAL, "bare", runtime={"providers": ["QNNExecutionProvider", CPU]})
    code, out, err = boardtune("placement", "model.onnx", "--boards", "bare,here", "--json")
    assert code == ExitCode.BOARD_UNAVAILABLE
    assert "pip install onnxruntime-qnn" in err
    found = json.loads(out)
    assert found["bare"] is None
    assert found["here"] is not None


@pytest.mark.parametrize(("option", "meant"), [("backend_typ", "backend_type"), ("htp_performence_mode", "htp_perf")])
def test_an_option_that_is_misspelt_is_refused(boardtune: Boardtune, option: str, meant: str) -> None:
    provider = {"name": "QNNExecutionProvider", "options": {option: "x"}}
    board(LOCAL, "typo", runtime={"providers": [provider, CPU]})
    code, _, err = boardtune("placement", "model.onnx", "--boards", "typo")
    assert code == ExitCode.USAGE
    assert f"no option '{option}'" in err
    assert f"did you mean '{meant}" in err
    assert "typo.yaml" in err


def test_a_new_option_and_a_library_are_let_through(boardtune: Boardtune) -> None:
    provider = {"name": "QNNExecutionProvider", "library": "/no/such/plugin.so", "options": {"brand_new": "1"}}
    board(LOCAL, "plugin", runtime={"providers": [provider, CPU]})
    code, _, err = boardtune("placement", "model.onnx", "--boards", "plugin")
    assert code == ExitCode.BOARD_UNAVAILABLE
    assert "there is no file /no/such/plugin.so" in err
    assert "library:" in err
