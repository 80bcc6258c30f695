"""What cannot be had is told early, in words, with the right exit code."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from harness.errors import ExitCode
from harness.quantize.contract import Cause, ModelRefused, QuantizeLimits
from harness.quantize.prepare import prepare_model

Boardtune = Callable[..., tuple[int, str, str]]
SEARCH = ("--model", "model.onnx", "--calib", "calib.npz", "--boards", "alpha", "--run-dir", "run")
QUANTIZE = ("--calib", "calib.npz", "--recipe", "preset:quick#1", "--out", "out")


def write(path: Path, nodes: list[Any], constants: dict[str, Any], *, opset: int = 17) -> Path:
    """x [1, 6] -> y."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made.opset_import[0].version = opset
    path.write_bytes(made.SerializeToString())
    return path


def already_quantized(path: Path) -> Path:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    return write(path, nodes, {"s": np.float32(0.1), "z": np.int8(0)})


class TestQuantize:
    @pytest.mark.parametrize(
        ("make", "cause", "told"),
        [
            (already_quantized, Cause.ALREADY_QUANTIZED, "boardtune measure"),
            (
                lambda path: write(path, [helper.make_node("Relu", ["x"], ["y"])], {}, opset=999),
                Cause.DOES_NOT_LOAD,
                "opset 999",
            ),
        ],
    )
    def test_a_model_that_nothing_can_be_made_of(
        self, boardtune: Boardtune, tmp_path: Path, make: Callable[[Path], Path], cause: Cause, told: str
    ) -> None:
        path = make(tmp_path / "odd.onnx")
        code, out, err = boardtune("quantize", "--model", path, *QUANTIZE, "--json")
        assert code == ExitCode.NO_FEASIBLE_CANDIDATE, err
        value = json.loads(out)
        assert (value["status"], value["cause"], value["artifact"], value["recipe"]) == ("refused", cause, None, None)
        assert told in value["message"]
        code, out, _ = boardtune("quantize", "--model", path, *QUANTIZE)
        assert code == ExitCode.NO_FEASIBLE_CANDIDATE
        assert f"refused ({cause})" in out

    def test_a_broken_file_is_a_mistake(self, boardtune: Boardtune, tmp_path: Path) -> None:
        (tmp_path / "odd.onnx").write_bytes(b"no model")
        code, out, err = boardtune("quantize", "--model", "odd.onnx", *QUANTIZE, "--json")
        assert code == ExitCode.USAGE
        assert out == ""
        assert "not an ONNX model" in err

    @pytest.mark.parametrize("option", ["--min-snr", "--timeout"])
    @pytest.mark.parametrize("value", ["nan", "inf"])
    def test_limits_that_limit_nothing(self, boardtune: Boardtune, option: str, value: str) -> None:
        code, _, err = boardtune("quantize", "--model", "model.onnx", *QUANTIZE, option, value)
        assert code == ExitCode.USAGE
        assert f"{value!r} is not a finite number" in err
        with pytest.raises(ValueError, match="finite"):
            QuantizeLimits(min_snr_db=float(value))

    def test_a_refusal_crosses_processes(self) -> None:
        error = ModelRefused("no", cause=Cause.CRASHED, hint="try", where="m.onnx")
        made, arguments = error.__reduce__()  # type: ignore[misc]
        again = made(*arguments)
        assert (str(again), again.cause) == (str(error), Cause.CRASHED)

    def test_a_defect_of_the_preparation_is_no_mistake_of_the_model(self, tmp_path: Path) -> None:
        reply = {"internal": "KeyError: 'oops'", "trace": "Traceback: here"}
        with (
            mock.patch("harness.quantize.prepare.ask_child", return_value=reply),
            pytest.raises(RuntimeError, match=r"model.onnx: KeyError: 'oops'") as raised,
        ):
            prepare_model(tmp_path / "model.onnx", tmp_path / "out.onnx")
        assert raised.value.__notes__ == ["Traceback: here"]


def test_the_model_as_an_argument(boardtune: Boardtune) -> None:
    code, named, _ = boardtune("search", *SEARCH, "--dry-run")
    assert (code, boardtune("search", SEARCH[1], *SEARCH[2:], "--dry-run")) == (ExitCode.OK, (code, named, ""))
    code, _, err = boardtune("search", "other.onnx", *SEARCH, "--dry-run")
    assert code == ExitCode.USAGE
    assert "two models: other.onnx and --model model.onnx" in err


class TestSamplers:
    @pytest.mark.parametrize("dry", [True, False])
    def test_one_whose_package_is_missing(self, boardtune: Boardtune, tmp_path: Path, dry: bool) -> None:
        find = importlib.util.find_spec
        with mock.patch("importlib.util.find_spec", lambda name, *rest: None if name == "torch" else find(name, *rest)):
            code, _, err = boardtune(
                "search", *SEARCH, "--preset", "standard", "--sampler", "gp", *(["--dry-run"] if dry else [])
            )
        assert code == ExitCode.USAGE
        assert "pip install torch" in err
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("dry", [True, False])
    def test_a_grid_of_what_has_none(self, boardtune: Boardtune, tmp_path: Path, dry: bool) -> None:
        code, _, err = boardtune(
            "search", *SEARCH, "--preset", "full", "--sampler", "grid", *(["--dry-run"] if dry else [])
        )
        assert code == ExitCode.USAGE
        assert "grid" in err
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize(("words", "told"), [(["--sampler", "random"], True), ([], False)])
    def test_one_without_effect(self, boardtune: Boardtune, words: list[str], told: bool) -> None:
        code, out, _ = boardtune("search", *SEARCH, "--dry-run", *words)
        assert code == ExitCode.OK
        assert ("--sampler random has no effect" in out) == told


@pytest.mark.parametrize("preset", ["quick", "standard", "full"])
def test_a_dry_run_names_no_recipe_twice(boardtune: Boardtune, preset: str) -> None:
    code, out, _ = boardtune("search", *SEARCH, "--preset", preset, "--dry-run", "--json")
    assert code == ExitCode.OK
    recipes = json.loads(out)["recipes"]
    assert recipes.count("float32") == 1
    assert len(set(recipes)) == len(recipes)


def test_a_report_that_cannot_be_written(boardtune: Boardtune, tmp_path: Path) -> None:
    from tests.ledger.synthetic_run import finished_run

    finished_run(tmp_path / "run").close()
    code, _, err = boardtune("report", "run", "--out", "missing/x.html")
    assert code == ExitCode.USAGE
    assert "missing/x.html" in err
    assert "--out" in err
